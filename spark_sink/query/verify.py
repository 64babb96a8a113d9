"""`spark-sink verify`: whether the tables hold exactly what a node has delivered.

Theory of operation. Both sides hash their events by Sha256a (CIP-124, appendix A): a sum, so that
the hash of a set is that of its parts added up. Equal hashes mean equal sets. If they differ, the
parts are compared, by sort value (model) first, then by the next bytes of the EventIds, and only
parts that differ are divided further: as Recon does it, and in as few questions. In the end, few
EventIds are left, which are compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from recon_node.ceramic import EventId, EventIdError, StreamId, StreamIdError
from recon_node.ceramic.event_id import FIELDS_SIZE, SHORT_HASH_SIZE, short_hash
from spark_sink.errors import TablesError
from spark_sink.query.question import run_query
from spark_sink.schema import RAW
from spark_sink.source.feed_client import Feed
from spark_sink.tables.catalog import find_own_table, no_tables
from spark_sink.tables.delta_log import position_of, reading_of
from spark_sink.tables.location import Location

MAX_SHOWN: Final = 1000
"""EventIds that differ, which are found; there may be more."""

Hash = dict[str, Any]
"""A number of `events`, and their `sha256a` in upper-case hex."""
NOTHING: Final[Hash] = {"events": 0, "sha256a": "00" * 32}


def verify(tables: Location, url: str, token: str | None = None) -> dict[str, Any]:
    """Compare the tables in a directory with a node.

    Returns:
        What `spark-sink verify --json` prints: the feed's position `upto` which events were
        compared; whether both are `equal`; the hashes of `node` and `tables`, also by sort value
        in `models`, as text where the tables know it, else as its hash; the EventIds that are
        `missing` in the tables, and those that the node lacks, `extra`; `complete` if these are
        all.
    """
    raw = find_own_table(tables / RAW)
    if raw is None:
        raise no_tables(tables)
    read = reading_of(raw)
    feed = Feed(url, patience=0, token=token)
    feed.check(read.position, read.epoch, feed.head())

    def at_node(prefix: bytes, size: int) -> dict[str, Any]:
        return feed.hashes(read.position, read.epoch, prefix, size)

    whole = at_node(b"", SHORT_HASH_SIZE)
    rows = _Rows(tables, position_of(raw))
    mine, theirs = rows.parts(b"", SHORT_HASH_SIZE), _parts_at_node(whole)
    names = _names(tables) if mine else {}
    differences = _differences(rows, at_node, b"", SHORT_HASH_SIZE)
    found = list(islice(differences, MAX_SHOWN))
    at_both = {"node": {"events": whole["count"], "sha256a": whole["sha256a"]}, "tables": rows.all}
    return {
        "upto": read.position,
        "equal": at_both["node"] == at_both["tables"],
        **at_both,
        "models": {
            names.get(part, part.hex()): {
                "node": theirs.get(part, NOTHING),
                "tables": mine.get(part, NOTHING),
            }
            for part in sorted(mine.keys() | theirs.keys())
        },
        "missing": [event_id for event_id, is_missing in found if is_missing],
        "extra": [event_id for event_id, is_missing in found if not is_missing],
        "complete": next(differences, None) is None,
    }


def event_of(event_id: str) -> str:
    """Return the CID of the event with an EventId in hexadecimal, or that text."""
    try:
        return str(EventId(bytes.fromhex(event_id)).event_cid)
    except (EventIdError, ValueError):
        return event_id


def _differences(
    rows: _Rows, at_node: Callable[[bytes, int], dict[str, Any]], prefix: bytes, size: int
) -> Iterator[tuple[str, bool]]:
    """Yield the EventIds that one side has, and whether the tables lack them."""
    answer = at_node(prefix, size)
    if "event_ids" in answer or len(prefix) == FIELDS_SIZE:
        theirs, mine = set(answer.get("event_ids", ())), rows.event_ids(prefix)
        if "event_ids" in answer or not mine:
            yield from ((key, key in theirs) for key in sorted(theirs ^ mine))
            return
        raise TablesError(
            f"a stream of more than a thousand events differs: rebuild {RAW} (spark-sink rebuild)"
        )
    at_theirs, at_mine = _parts_at_node(answer), rows.parts(prefix, size)
    for part in sorted(at_theirs.keys() | at_mine.keys()):
        if at_theirs.get(part) != at_mine.get(part):
            yield from _differences(rows, at_node, part, 1)


def _parts_at_node(answer: dict[str, Any]) -> dict[bytes, Hash]:
    return {
        bytes.fromhex(part["prefix"]): {"events": part["count"], "sha256a": part["sha256a"]}
        for part in answer["parts"]
    }


class _Rows:
    """The rows of `raw_events` up to a position: `spark-sink run` may add others meanwhile."""

    def __init__(self, tables: Location, upto: int) -> None:
        self._tables = tables
        self._from = f"FROM {RAW} WHERE position <= {upto}"
        # Where the digits after the network id begin, in an EventId as hex.
        self._start = 1
        for (key,) in _ask(tables, f"SELECT hex(event_id) {self._from} LIMIT 1"):
            self._start += 2 * (len(EventId(bytes.fromhex(key)).prefix) - FIELDS_SIZE)

    @property
    def all(self) -> Hash:
        """The hash of all events."""
        [(count, sha256a)] = _ask(self._tables, f"SELECT count(*), sha256a(event_id) {self._from}")
        return {"events": count, "sha256a": sha256a}

    def parts(self, prefix: bytes, size: int) -> dict[bytes, Hash]:
        """Return the hashes of parts of the events with a prefix, by `size` more bytes of it."""
        digits = min(2 * (len(prefix) + size), 2 * FIELDS_SIZE)
        rows = _ask(
            self._tables,
            f"SELECT substr(hex(event_id), {self._start}, {digits}) AS part, count(*), "
            f"sha256a(event_id) {self._within(prefix)} GROUP BY part",
        )
        return {bytes.fromhex(part): {"events": n, "sha256a": sha} for part, n, sha in rows}

    def event_ids(self, prefix: bytes) -> set[str]:
        """Return the EventIds with a prefix, in hexadecimal."""
        rows = _ask(self._tables, f"SELECT lower(hex(event_id)) {self._within(prefix)}")
        return {key for (key,) in rows}

    def _within(self, prefix: bytes) -> str:
        digits = prefix.hex().upper()
        return f"{self._from} AND substr(hex(event_id), {self._start}, {len(digits)}) = '{digits}'"


def _ask(tables: Location, sql: str) -> list[tuple[Any, ...]]:
    with run_query(tables, sql) as answer:
        return list(answer.rows)


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
