"""Checks the options of the source "recon", which `spark_sink.source.data_source` lists.

An option that is unknown or wrong, or that the feed cannot fulfil, is a `SinkError`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Final, TypeVar

from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from recon_node.base.timestamps import parse_timestamp
from spark_sink.errors import SinkError
from spark_sink.source.feed_client import DEFAULT_PATIENCE, Feed, FeedTime, Head, find_time

MAX_ROWS_PER_BATCH: Final = 10_000
PARTITIONS: Final = 2
FILTERS: Final = ("sortKey", "sortValue", "controller", "streamId", "controllers")
_BOUNDS: Final = ("startingOffset", "startingTimestamp", "endingOffset", "endingTimestamp")
_OPTIONS: Final = ("url", "token", *_BOUNDS, "maxRowsPerBatch", "partitions", *FILTERS, "patience")
# Options that Spark adds: the arguments of `load()`, and properties of a table in a catalog.
# Names with a dot are table properties or settings, not options of this source.
_SPARKS_OWN: Final = frozenset(
    {"path", "paths", "provider", "location", "is_managed_location", "external"}
    | {"owner", "comment", "collation"}
)
_MIN_RANGE: Final = 500
"""Positions of a range up to which it is not split: one more request would cost more than it
saves."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The positions (after, upto] of the log `epoch`."""

    after: int
    upto: int
    epoch: str


@dataclass(frozen=True, slots=True)
class FeedBound:
    """Where reading starts or ends: a position, Unix milliseconds, or a word."""

    option: str
    value: int | str
    text: str

    @property
    def is_time(self) -> bool:
        """Whether it is a time."""
        return self.option.endswith("Timestamp")

    def __str__(self) -> str:
        return f"{self.option} {self.text}"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one `load()`."""

    feed: Feed
    starts: FeedBound
    ends: FeedBound | None
    max_rows: int
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Check the options as Spark passes them: as text, with names in any case."""
        values = known_options("recon", options, _OPTIONS)
        url = _url(values.get("url", ""))
        starts, ends = _bounds(values)
        filters = _checked(
            {name: values[name.lower()] for name in FILTERS if name.lower() in values}
        )
        patience = number(values, "patience", DEFAULT_PATIENCE, float)
        return cls(
            feed=Feed(url, patience, values.get("token"), filters),
            starts=starts,
            ends=ends,
            max_rows=number(values, "maxRowsPerBatch", MAX_ROWS_PER_BATCH, int, least=1),
            partitions=number(values, "partitions", PARTITIONS, int, least=1),
        )

    def start(self, head: Head) -> int:
        """Return the position after which reading starts."""
        bound = self.starts
        if bound.is_time:
            time = self._find_time(bound, head)
            if not time.is_final:
                raise SinkError(
                    f"{bound} is in the future of the node at {self.feed.url}: events that it "
                    "delivers until then cannot be left out"
                )
            return time.position
        position = {"latest": head.head, "earliest": head.low}.get(str(bound.value))
        if position is not None:
            return position
        position = int(bound.value)
        if position > head.head:
            raise SinkError(f"{bound} is beyond the node's head, {head.head}")
        if position < head.low:
            raise SinkError(
                f"{bound} is before the node's first event: it has dropped those up to position "
                f"{head.low}"
            )
        return position

    def end(self, head: Head) -> int:
        """Return the position with which reading ends: by default, the head."""
        bound = self.ends
        if bound is None or bound.value == "latest":
            return head.head
        if bound.is_time:
            return self._find_time(bound, head).position
        if int(bound.value) > head.head:
            raise SinkError(f"{bound} is beyond the node's head, {head.head}")
        return int(bound.value)

    def span(self, head: Head) -> tuple[int, int]:
        """Return both."""
        after, upto = self.start(head), self.end(head)
        if after > upto and self.ends is not None:
            raise SinkError(
                f"{self.starts}, position {after}, is after {self.ends}, position {upto}"
            )
        return after, max(after, upto)

    def _find_time(self, bound: FeedBound, head: Head) -> FeedTime:
        time = find_time(self.feed, int(bound.value))
        self.feed.check(head.head, time.epoch, head)
        return time

    def ranges(self, after: int, upto: int, epoch: str) -> list[RangePartition]:
        """Split (after, upto] into at most `partitions` ranges of about the same size."""
        count = max(1, min(self.partitions, (upto - after) // _MIN_RANGE))
        cuts = [after + (upto - after) * i // count for i in range(count + 1)]
        return [RangePartition(low, high, epoch) for low, high in pairwise(cuts) if low < high]


def _url(text: str) -> str:
    url = text.strip()
    if not url.startswith(("http://", "https://")):
        raise SinkError(
            f"the source 'recon' needs the option url, such as http://127.0.0.1:5101; it is {url!r}"
        )
    if "," in url:
        raise SinkError(
            f"the source 'recon' reads one node, but url is {url!r}: name one; spark-sink run can "
            "go over to another"
        )
    return url


def _bounds(options: Mapping[str, str]) -> tuple[FeedBound, FeedBound | None]:
    """Return where reading starts and, if that is given, where it ends."""
    bounds = {
        name: _bound(name, options[name.lower()]) for name in _BOUNDS if name.lower() in options
    }
    for which in ("starting", "ending"):
        if {f"{which}Offset", f"{which}Timestamp"} <= bounds.keys():
            raise SinkError(f"{which}Offset and {which}Timestamp are both given: give one of them")
    starts = bounds.get("startingTimestamp") or bounds.get("startingOffset")
    starts = starts or FeedBound("startingOffset", "earliest", "earliest")
    ends = bounds.get("endingTimestamp") or bounds.get("endingOffset")
    if (
        ends is not None
        and starts.is_time is ends.is_time
        and isinstance(starts.value, int)
        and isinstance(ends.value, int)
        and starts.value > ends.value
    ):
        raise SinkError(f"{starts} is after {ends}")
    return starts, ends


def _bound(name: str, text: str) -> FeedBound:
    if name.endswith("Timestamp"):
        try:
            return FeedBound(name, parse_timestamp(text.strip()), text)
        except ValueError as error:
            raise SinkError(f"the option {name}: {error}") from None
    if text == "latest" or (text == "earliest" and name == "startingOffset"):
        return FeedBound(name, text, text)
    return FeedBound(name, number({name.lower(): text}, name, 0, int), text)


def check_schema(source: DataSource, schema: StructType) -> None:
    """Check that the columns that a reader asks for are those that a source has."""
    own = source.schema()
    assert isinstance(own, StructType)
    asked, theirs = ([(f.name, f.dataType) for f in columns.fields] for columns in (schema, own))
    if asked != theirs:
        raise SinkError(
            f"the source {source.name()!r} has columns of its own: leave out schema(...), and "
            "select() those that you need"
        )


def known_options(source: str, options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return options by their names in lower case, as Spark passes them in any case."""
    known = {name.lower(): name for name in names}
    lowered = {name.lower(): value for name, value in options.items()}
    for name in lowered:
        if name not in known and name not in _SPARKS_OWN and "." not in name:
            close = get_close_matches(name, known, n=1)
            meant = f": did you mean {known[close[0]]}?" if close else ""
            raise SinkError(
                f"the source {source!r} has no option {name}{meant}; it has {', '.join(names)}"
            )
    return lowered


def _checked(filters: dict[str, str]) -> dict[str, str]:
    """Return the filters as the node compares them; refuse those that cannot match any event.

    A sort key or a sort value alone is fine: the node supports both.
    """
    if not filters:
        return filters
    # Spark's workers get checked options. Without these imports they start faster.
    from recon_node.ceramic import EventIdError, Shard, StreamId, StreamIdError
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
    if "controllers" in filters:
        try:
            right["controllers"] = str(Shard.parse(filters["controllers"]))
        except EventIdError as error:
            raise SinkError(f"the option controllers: {error}") from None
    return right


def number(
    values: Mapping[str, str],
    name: str,
    default: _Number,
    kind: Callable[[str], _Number],
    least: int = 0,
) -> _Number:
    """Return an option that is a number."""
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        raise SinkError(f"the option {name} must be a number, not {text!r}") from None
    if not value >= least:
        raise SinkError(f"the option {name} must be at least {least}, not {text}")
    return value
