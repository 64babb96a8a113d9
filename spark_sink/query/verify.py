"""`spark-sink verify`: whether the tables hold exactly what a node has delivered.

Theory of operation. Both sides hash their events by Sha256a (CIP-124, appendix A): a sum, so that
the hash of a set is that of its parts added up. Equal hashes mean equal sets. If they differ, the
parts are compared, by sort value (model) first, then by the next bytes of the EventIds, and only
parts that differ are divided further: as Recon does it, and in as few questions. In the end, few
EventIds are left, which are compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from recon_node.ceramic import EventId, EventIdError, StreamId, StreamIdError
from recon_node.ceramic.event_id import FIELDS_SIZE, SHORT_HASH_SIZE, short_hash
from spark_sink.errors import TablesError
from spark_sink.query.question import run_query
from spark_sink.schema import RAW
from spark_sink.source.feed_client import Feed
from spark_sink.tables.catalog import made_from
from spark_sink.tables.location import Location

MAX_SHOWN: Final = 1000
"""EventIds that differ, which are found; there may be more."""


class Hash(NamedTuple):
    """A number of events, and their Sha256a in upper-case hex."""

    events: int
    sha256a: str


NOTHING: Final = Hash(0, "00" * 32)


@dataclass(slots=True)
class TableComparison:
    """What came of the comparison.

    Attributes:
        url: of the node.
        upto: the feed's position up to which events were compared.
        node: the hash of the node's events.
        tables: that of the tables'.
        models: both, by sort value, as text where the tables know it, else as its hash.
        missing: EventIds that the tables lack.
        extra: EventIds that the node lacks.
        is_complete: whether these are all.
    """

    url: str
    upto: int
    node: Hash
    tables: Hash
    models: dict[str, tuple[Hash, Hash]]
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    is_complete: bool = True

    @property
    def is_equal(self) -> bool:
        """Whether both have the same events."""
        return self.node == self.tables


def verify(tables: Location, url: str, token: str | None = None) -> TableComparison:
    """Compare the tables in a directory with a node."""
    raw = made_from(tables / RAW)
    if raw is None:
        raise TablesError(f"there is no table {RAW} in {tables}")
    read = raw.reading
    feed = Feed(url, patience=0, token=token)
    feed.check(read.position, read.epoch, feed.head())

    def at_node(prefix: bytes, size: int) -> dict[str, Any]:
        return feed.hashes(read.position, read.epoch, prefix, size)

    whole = at_node(b"", SHORT_HASH_SIZE)
    start = _start(tables)
    mine = _parts(tables, start, b"", SHORT_HASH_SIZE)
    theirs = _parts_at_node(whole)
    names = _names(tables) if mine else {}
    verdict = TableComparison(
        url=url,
        upto=read.position,
        node=Hash(whole["count"], whole["sha256a"]),
        tables=_all(tables),
        models={
            names.get(part, part.hex()): (theirs.get(part, NOTHING), mine.get(part, NOTHING))
            for part in sorted(mine.keys() | theirs.keys())
        },
    )
    for event_id, is_missing in _differences(tables, start, at_node, b"", SHORT_HASH_SIZE):
        if len(verdict.missing) + len(verdict.extra) == MAX_SHOWN:
            verdict.is_complete = False
            break
        (verdict.missing if is_missing else verdict.extra).append(event_id)
    return verdict


def event_of(event_id: str) -> str:
    """Return the CID of the event with an EventId in hexadecimal, or that text."""
    try:
        return str(EventId(bytes.fromhex(event_id)).event_cid)
    except (EventIdError, ValueError):
        return event_id


def _differences(
    tables: Location,
    start: int,
    at_node: Callable[[bytes, int], dict[str, Any]],
    prefix: bytes,
    size: int,
) -> Iterator[tuple[str, bool]]:
    """Yield the EventIds that one side has, and whether the tables lack them."""
    answer = at_node(prefix, size)
    if "event_ids" in answer or len(prefix) == FIELDS_SIZE:
        theirs, mine = set(answer.get("event_ids", ())), set(_event_ids(tables, start, prefix))
        if "event_ids" in answer or not mine:
            yield from ((key, key in theirs) for key in sorted(theirs ^ mine))
            return
        raise TablesError(
            f"a stream of more than a thousand events differs: rebuild {RAW} (spark-sink rebuild)"
        )
    at_theirs, at_mine = _parts_at_node(answer), _parts(tables, start, prefix, size)
    for part in sorted(at_theirs.keys() | at_mine.keys()):
        if at_theirs.get(part) != at_mine.get(part):
            yield from _differences(tables, start, at_node, part, 1)


def _parts_at_node(answer: dict[str, Any]) -> dict[bytes, Hash]:
    return {
        bytes.fromhex(part["prefix"]): Hash(part["count"], part["sha256a"])
        for part in answer["parts"]
    }


def _ask(tables: Location, sql: str) -> list[tuple[Any, ...]]:
    with run_query(tables, sql) as answer:
        return list(answer.rows)


def _start(tables: Location) -> int:
    """Return the number of the digit after the network id, in the tables' EventIds as hex."""
    rows = _ask(tables, f"SELECT hex(event_id) FROM {RAW} LIMIT 1")
    if not rows:
        return 1
    key = EventId(bytes.fromhex(rows[0][0]))
    return 2 * (len(key.prefix) - FIELDS_SIZE) + 1


def _all(tables: Location) -> Hash:
    [row] = _ask(tables, f"SELECT count(*), sha256a(event_id) FROM {RAW}")
    return Hash(*row)


def _parts(tables: Location, start: int, prefix: bytes, size: int) -> dict[bytes, Hash]:
    digits = min(2 * (len(prefix) + size), 2 * FIELDS_SIZE)
    rows = _ask(
        tables,
        f"SELECT substr(hex(event_id), {start}, {digits}) AS part, count(*), sha256a(event_id) "
        f"FROM {RAW} WHERE {_within(start, prefix)} GROUP BY part",
    )
    return {bytes.fromhex(part): Hash(count, sha256a) for part, count, sha256a in rows}


def _event_ids(tables: Location, start: int, prefix: bytes) -> list[str]:
    where = _within(start, prefix)
    return [key for (key,) in _ask(tables, f"SELECT lower(hex(event_id)) FROM {RAW} WHERE {where}")]


def _within(start: int, prefix: bytes) -> str:
    return f"substr(hex(event_id), {start}, {2 * len(prefix)}) = '{prefix.hex().upper()}'"


def _names(tables: Location) -> dict[bytes, str]:
    """Return the models that the tables know, by their hash in EventIds."""
    rows = _ask(tables, "SELECT DISTINCT hex(dimensions['model']) FROM stream_tips")
    models = {}
    for (model,) in rows:
        try:
            name = str(StreamId.from_bytes(bytes.fromhex(model or "")))
        except StreamIdError:
            continue
        models[short_hash(name)] = name
    return models
