"""The options of the source "recon", checked. `spark_sink.source.data_source` lists them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

from spark_sink.errors import SinkError
from spark_sink.source.feed import PATIENCE, Feed, Head

MAX_ROWS_PER_BATCH: Final = 10_000
PARTITIONS: Final = 2
FAILOVER_AFTER: Final = 30.0
FILTERS: Final = ("sortKey", "sortValue", "controller", "streamId")
# Below this a range is not cut further: one more request would cost more than it saves.
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
    """The options of one `load()`, checked. There is one feed for each url."""

    feeds: tuple[Feed, ...]
    starting_offset: str | int
    max_rows: int
    partitions: int
    failover_after: float

    @property
    def feed(self) -> Feed:
        """The feed of the node that is named first."""
        return self.feeds[0]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Check the options as Spark hands them over: text, names in any case.

        Raises:
            SinkError: the url is missing, or a value is not of the right kind.
        """
        given = {name.lower(): value for name, value in options.items()}
        urls = [url.strip() for url in given.get("url", "").split(",")]
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise SinkError(
                    "the source 'recon' needs the option url, as in http://127.0.0.1:5101, or "
                    f"several with commas between; it is {url!r}"
                )
        start = given.get("startingoffset", "earliest")
        if start not in ("earliest", "latest") and len(urls) > 1:
            raise SinkError(
                f"startingOffset {start} is a position in the log of one node, and there are "
                f"{len(urls)} in url: name one, or start at earliest or latest"
            )
        filters = {name: given[name.lower()] for name in FILTERS if name.lower() in given}
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
        """The position after which reading starts."""
        if self.starting_offset == "latest":
            return head.head
        if self.starting_offset == "earliest":
            return head.low
        position = int(self.starting_offset)
        self.feed.check(position, head.epoch, head)
        return position

    def ranges(self, after: int, upto: int, epoch: str) -> list[RangePartition]:
        """(after, upto] as at most `partitions` ranges of about the same size."""
        count = max(1, min(self.partitions, (upto - after) // _MIN_RANGE))
        cuts = [after + (upto - after) * i // count for i in range(count + 1)]
        return [RangePartition(low, high, epoch) for low, high in pairwise(cuts) if low < high]


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
