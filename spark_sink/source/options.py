"""Checks the options of the source "recon", which `spark_sink.source.data_source` lists."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

from spark_sink.errors import SinkError
from spark_sink.source.feed import PATIENCE, Feed, Head

MAX_ROWS_PER_BATCH: Final = 10_000
PARTITIONS: Final = 2
FAILOVER_AFTER: Final = 30.0
"""Seconds to wait for the log that is being read before another node is read."""
FILTERS: Final = ("sortKey", "sortValue", "controller", "streamId")
_OPTIONS: Final = (
    "url",
    "token",
    "startingOffset",
    "maxRowsPerBatch",
    "partitions",
    *FILTERS,
    "patience",
    "failoverAfter",
)
# Options that Spark adds: the arguments of `load()`, and properties of a table in a catalog.
# Names with a dot are table properties or settings, not options of this source.
_SPARKS_OWN: Final = frozenset(
    {"path", "paths", "provider", "location", "is_managed_location", "external"}
    | {"owner", "comment", "collation"}
)
# Positions. A smaller range is not split: one more request would cost more than it saves.
_MIN_RANGE: Final = 500

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The positions (after, upto] of the log `epoch`."""

    after: int
    upto: int
    epoch: str


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one `load()`, with one feed per url."""

    feeds: tuple[Feed, ...]
    starting_offset: str | int
    max_rows: int
    partitions: int
    failover_after: float

    @property
    def feed(self) -> Feed:
        """The feed of the node that is named first."""
        return self.feeds[0]

    @property
    def patience(self) -> float:
        """Seconds to wait for a node."""
        return self.feed.patience

    @property
    def log_patience(self) -> float:
        """Seconds to wait for the log that is being read; with several nodes, before another."""
        return self.failover_after if len(self.feeds) > 1 else self.patience

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Check the options as Spark passes them: as text, with names in any case.

        Raises:
            SinkError: the url is missing, an option is unknown, or a value is not of the right
                kind.
        """
        given = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(given)
        urls = [url.strip() for url in given.get("url", "").split(",")]
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise SinkError(
                    "the source 'recon' needs the option url, such as http://127.0.0.1:5101, or a "
                    f"comma-separated list of urls; it is {url!r}"
                )
        start = given.get("startingoffset", "earliest")
        if start not in ("earliest", "latest") and len(urls) > 1:
            raise SinkError(
                f"startingOffset {start} is a position in the log of one node, but url has "
                f"{len(urls)}: name one, or start at earliest or latest"
            )
        filters = _checked({name: given[name.lower()] for name in FILTERS if name.lower() in given})
        patience = _number(given, "patience", PATIENCE, float)
        return cls(
            feeds=tuple(Feed(url, patience, given.get("token"), filters) for url in urls),
            starting_offset=start
            if start in ("earliest", "latest")
            else _number(given, "startingOffset", 0, int),
            max_rows=_number(given, "maxRowsPerBatch", MAX_ROWS_PER_BATCH, int, least=1),
            partitions=_number(given, "partitions", PARTITIONS, int, least=1),
            failover_after=_number(given, "failoverAfter", FAILOVER_AFTER, float),
        )

    def start(self, head: Head) -> int:
        """Return the position after which reading starts.

        Raises:
            SinkError: the feed has no such position.
        """
        if self.starting_offset == "latest":
            return head.head
        if self.starting_offset == "earliest":
            return head.low
        position = int(self.starting_offset)
        if position > head.head:
            raise SinkError(f"startingOffset {position} is beyond the node's head, {head.head}")
        if position < head.low:
            raise SinkError(
                f"startingOffset {position} is before the node's first event: it has dropped "
                f"those up to position {head.low}"
            )
        return position

    def ranges(self, after: int, upto: int, epoch: str) -> list[RangePartition]:
        """Split (after, upto] into at most `partitions` ranges of about the same size."""
        count = max(1, min(self.partitions, (upto - after) // _MIN_RANGE))
        cuts = [after + (upto - after) * i // count for i in range(count + 1)]
        return [RangePartition(low, high, epoch) for low, high in pairwise(cuts) if low < high]


def _refuse_unknown(given: Iterable[str]) -> None:
    known = {name.lower(): name for name in _OPTIONS}
    for name in given:
        if name not in known and name not in _SPARKS_OWN and "." not in name:
            raise SinkError(
                f"the source 'recon' has no option {name}{_meant(name, known)}; it has "
                + ", ".join(_OPTIONS)
            )


def _meant(given: str, known: Mapping[str, str]) -> str:
    close = get_close_matches(given.lower(), known, n=1)
    return f": did you mean {known[close[0]]}?" if close else ""


def _checked(filters: dict[str, str]) -> dict[str, str]:
    """Return the filters as the node compares them; refuse those that cannot match any event.

    A sort key or a sort value alone is fine: the node supports both.
    """
    if not filters:
        return filters
    # Spark's workers get checked options. Without these imports they start faster.
    from recon_node.ceramic import StreamId, StreamIdError
    from recon_node.ceramic.auth.did import is_did

    def stream_id(name: str, what: str = "") -> str:
        try:
            return str(StreamId.parse(filters[name]))
        except StreamIdError as error:
            raise SinkError(f"the option {name}{what}: {error}") from None

    def did(name: str) -> str:
        if not is_did(filters[name]):
            raise SinkError(f"the option {name} must be a DID, not {filters[name]!r}")
        return filters[name]

    key = filters.get("sortKey")
    right = dict(filters)
    if key == "model" and "sortValue" in filters:
        right["sortValue"] = stream_id("sortValue", " names a model")
    if key == "controllers" and "sortValue" in filters:
        right["sortValue"] = did("sortValue")
    if "controller" in filters:
        right["controller"] = did("controller")
    if "streamId" in filters:
        right["streamId"] = stream_id("streamId")
    return right


def _number(
    given: Mapping[str, str],
    name: str,
    default: _Number,
    kind: Callable[[str], _Number],
    least: int = 0,
) -> _Number:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        raise SinkError(f"the option {name} must be a number, not {text!r}") from None
    if not value >= least:
        raise SinkError(f"the option {name} must be at least {least}, not {text}")
    return value
