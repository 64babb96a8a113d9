"""The streams of the log: lists of them, and searches by parts of names and by text.

A stream is listed by its init event, in the order in which these arrived. A page of a list is read
from the end of one of the indexes of init events, without a look at other streams; two texts
with the same hash are distinguished by the table `streams`.

Events and streams are also found by the first characters of their names (`name_prefixes`).

No index has what documents hold: it would have to be kept by every node for a few. So, to find
streams in whose events texts occur, a bounded part of the log is looked through for each page; what
the streams hold at their tips is for others to compute (`recon_node.api.routes.listings`).
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from recon_node.base.latest import Latest
from recon_node.ceramic import (
    METAMODEL,
    Event,
    EventKind,
    InvalidEventError,
    StreamId,
    StreamType,
    parse_event,
)
from recon_node.ceramic.auth.did import did_spellings
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY, short_hash
from recon_node.ipld import CID, CarError
from recon_node.store.admission.records import State
from recon_node.store.db.event_table import BOTH, CONTROLLER, SORT_VALUE
from recon_node.store.db.sql import select_in, select_named, short, short_of
from recon_node.store.reading import Reader
from recon_node.store.reading.feed_rows import delivered_at
from recon_node.store.reading.name_prefixes import MIN_PREFIX, cid_ranges, init_ranges

_SELECT: Final = (
    "SELECT events.id, cid, controller, sep_key, sep_value, "
    "(SELECT count(*) FROM events AS each WHERE each.stream = events.id "
    " AND each.position IS NOT NULL), "
    "(SELECT max(position) FROM events AS each WHERE each.stream = events.id "
    " AND each.position IS NOT NULL) "
    "FROM events {index} CROSS JOIN streams ON streams.init_cid = events.cid "
    "WHERE kind = 'init' AND events.position IS NOT NULL {terms} ORDER BY events.id DESC LIMIT ?"
)
MAX_SHOWN_TEXT: Final = 300
"""Characters of a name, a controller or a sort value in a list; a longer one is cut."""
_READ_AT_ONCE: Final = 16
"""Init events in memory at once, each of up to 1 MiB."""
_MAX_SORT_VALUES: Final = 2000
_SEARCHED_INITS: Final = 1000
"""Init events looked at for the StreamIDs that begin with a prefix."""
_SEARCHED_MODELS: Final = 1000
"""Models whose names are searched, the latest ones."""


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which streams are wanted: those that match every field that is given.

    `sort_value` is text; a StreamID is its base36 form.
    """

    sort_key: str = DEFAULT_SORT_KEY
    """Of the sort value; without one, it does not count."""
    sort_value: str | None = None
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream as lists have it."""

    row: int
    """Its position in the lists: later streams have greater ones."""
    id: StreamId
    controller: str
    sort_key: str
    sort_value: str
    events: int
    """Delivered ones."""
    position: int
    """Of the latest of them, in the feed."""
    delivered_at: int | None
    """When that was delivered, in Unix milliseconds; None if an earlier version delivered it."""
    name: str | None
    """What a model calls itself in its init event."""


@dataclass(frozen=True, slots=True)
class StreamPage:
    """A page of a list of streams, the latest first."""

    streams: Sequence[ListedStream]
    total: int
    """Streams in the whole list."""
    next: int | None
    """The `before` of the following page; None: this is the last one."""


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event that was searched for."""

    cid: CID
    kind: EventKind
    state: State
    stream: StreamId | None
    """None while its init event is not here."""


def read_streams(
    reader: Reader, wanted: StreamFilter, before: int | None, limit: int
) -> StreamPage:
    """Return the latest streams that match a filter, of those before a position in the list."""
    index, terms, values = _where(wanted)
    connection = reader.connection
    total = _count(connection, index, terms, values)
    if wanted.sort_value is not None:
        terms += "AND sep_key = ? AND sep_value = ? "
        values += (wanted.sort_key, wanted.sort_value)
    if wanted.controller is not None:
        names = did_spellings(wanted.controller)
        terms += f"AND controller IN ({', '.join('?' * len(names))}) "
        values += names
    if before is not None:
        terms += "AND events.id < ? "
        values += (before,)
    sql = _SELECT.format(index=f"INDEXED BY {index}", terms=terms)
    rows = connection.execute(sql, (*values, limit + 1)).fetchall()
    following = rows[limit - 1][0] if 0 < limit < len(rows) else None
    return StreamPage(_listed(reader, rows[:limit]), total, following)


def read_models(reader: Reader, before: int | None, limit: int) -> StreamPage:
    """Return the latest models, of those before a position in the list."""
    return read_streams(reader, StreamFilter(sort_value=str(METAMODEL)), before, limit)


def count_streams(reader: Reader, sort_values: Iterable[str]) -> dict[str, int]:
    """Return how many streams have each of some sort values."""
    index, terms = "by_sort_value", f"AND {SORT_VALUE} = ? "
    return {
        sort_value: _count(reader.connection, index, terms, (short_hash(sort_value),))
        for sort_value in sort_values
    }


def read_sort_values(reader: Reader) -> set[tuple[str, str]]:
    """Return the sort keys and values that streams have, at most 2,000 of them."""
    sql = (
        f"SELECT {SORT_VALUE}, sep_key, sep_value FROM events INDEXED BY by_sort_value "
        "CROSS JOIN streams ON streams.init_cid = events.cid "
        f"WHERE kind = 'init' AND position IS NOT NULL AND {SORT_VALUE} > ? "
        f"ORDER BY {SORT_VALUE} LIMIT 1"
    )
    sort_values: set[tuple[str, str]] = set()
    after = b""
    while len(sort_values) < _MAX_SORT_VALUES and (
        row := reader.connection.execute(sql, (after,)).fetchone()
    ):
        after = row[0]
        sort_values.add((row[1], row[2]))
    return sort_values


def streams_of(reader: Reader, inits: Sequence[CID]) -> list[ListedStream]:
    """Return those of some streams that are here, by their init events, the latest first."""
    sql = _SELECT.format(index="INDEXED BY by_cid", terms="AND short_cid = ? AND cid = ?")
    rows = [
        row
        for init in dict.fromkeys(inits)
        for row in reader.connection.execute(sql, (short(init), init, 1)).fetchall()
    ]
    return sorted(_listed(reader, rows), key=lambda stream: -stream.row)


def find_events(reader: Reader, prefix: str, limit: int) -> list[FoundEvent]:
    """Return events whose CIDs start with some characters, at least 10, in base32."""
    events: list[FoundEvent] = []
    for first, last in cid_ranges(prefix) if len(prefix) >= MIN_PREFIX else ():
        events += _find_by_cid(reader, first, last, limit - len(events))
    return events


def find_streams(reader: Reader, prefix: str, limit: int) -> list[ListedStream]:
    """Return streams whose StreamIDs start with some characters, at least 10, in base36."""
    inits: list[CID] = []
    for first, last in init_ranges(prefix) if len(prefix) >= MIN_PREFIX else ():
        # A range has the init events of streams of every type; few prefixes are so short that it
        # has more than these.
        init_events = _find_by_cid(reader, first, last, _SEARCHED_INITS, kind=EventKind.INIT)
        inits += [event.cid for event in init_events if str(event.stream).startswith(prefix)]
    return streams_of(reader, inits[:limit])


def _find_by_cid(
    reader: Reader, first: bytes, last: bytes, limit: int, *, kind: EventKind | None = None
) -> list[FoundEvent]:
    """Return events whose CIDs, of one codec, are from `first` to `last`, in that order."""
    rows = reader.connection.execute(
        "SELECT cid, kind, state, init_cid FROM events INDEXED BY by_cid "
        f"WHERE short_cid BETWEEN {short_of('?1')} AND {short_of('?2')} "
        "AND cid BETWEEN ?1 AND ?2 AND (?3 IS NULL OR kind = ?3) "
        "GROUP BY short_cid, cid ORDER BY short_cid, cid LIMIT ?4",
        (first, last, None if kind is None else kind.value, limit),
    ).fetchall()
    streams = stream_ids(reader, [CID(init) for *_, init in rows])
    return [
        FoundEvent(CID(cid), EventKind(event_kind), State(state), streams.get(CID(init)))
        for cid, event_kind, state, init in rows
    ]


def find_models(reader: Reader, part: str, limit: int) -> list[ListedStream]:
    """Return the models whose names contain a text in any case, of the latest 1,000 models."""
    page = read_models(reader, None, _SEARCHED_MODELS)
    wanted = part.casefold()
    models = [model for model in page.streams if model.name and wanted in model.name.casefold()]
    return models[:limit]


def stream_ids(reader: Reader, inits: Iterable[CID]) -> dict[CID, StreamId]:
    """Return the StreamIDs of those of some streams that are here, by their init events."""
    sql = "SELECT init_cid, sep_key, sep_value FROM streams WHERE init_cid IN (?)"
    sort_pairs = {
        CID(init): (key, value)
        for init, key, value in select_in(reader.connection, sql, list(dict.fromkeys(inits)))
    }
    return {init: identity[0] for init, identity in _identify(reader, sort_pairs).items()}


def names_of(reader: Reader, models: Iterable[StreamId]) -> dict[StreamId, str]:
    """Return what some models call themselves in their init events, of those that are here."""
    wanted = {model.cid: model for model in models}
    return {
        wanted[init]: name
        for init, (_, name) in _named(reader, dict.fromkeys(wanted, True)).items()
        if name is not None
    }


def _count(connection: sqlite3.Connection, index: str, terms: str, values: Sequence[object]) -> int:
    """Count delivered init events: all in an index, but for the few that are withheld."""
    count = "SELECT count(*) FROM events INDEXED BY"
    withheld = "WHERE position IS NULL AND state = ?"
    (total,) = connection.execute(f"{count} {index} WHERE kind = 'init' {terms}", values).fetchone()
    (held,) = connection.execute(
        f"{count} undelivered {withheld} AND kind = 'init' {terms}", (State.UNCOVERED, *values)
    ).fetchone()
    return int(total - held)


def _where(wanted: StreamFilter) -> tuple[str, str, tuple[object, ...]]:
    """Return the index of a filter, its terms and their parameters."""
    by_value = b"" if wanted.sort_value is None else short_hash(wanted.sort_value)
    if wanted.controller is not None:
        index, column = ("by_both", BOTH) if by_value else ("by_controller", CONTROLLER)
        names = did_spellings(wanted.controller)
        terms = f"AND {column} IN ({', '.join('?' * len(names))}) "
        return index, terms, tuple(by_value + short_hash(name) for name in names)
    if by_value:
        return "by_sort_value", f"AND {SORT_VALUE} = ? ", (by_value,)
    return "init_events", "", ()


def _listed(reader: Reader, rows: Sequence[tuple[Any, ...]]) -> list[ListedStream]:
    ids = _identify(reader, {CID(row[1]): (row[3], row[4]) for row in rows})
    listed = []
    for row, cid, controller, sort_key, sort_value, events, position in rows:
        if CID(cid) in ids:  # else its init event is damaged: it is being fetched again
            stream_id, name = ids[CID(cid)]
            listed.append(
                ListedStream(
                    row,
                    stream_id,
                    _cut(controller),
                    _cut(sort_key),
                    _cut(sort_value),
                    events,
                    position,
                    delivered_at(reader.connection, position),
                    name,
                )
            )
    return listed


def _identify(
    reader: Reader, streams: Mapping[CID, tuple[str, str]]
) -> dict[CID, tuple[StreamId, str | None]]:
    """Return the StreamIDs of streams with these sort keys and values, and the models' names.

    Models and their documents are known by their sort keys; of others, the init event has the
    type.
    """
    identities: dict[CID, tuple[StreamId, str | None]] = {}
    others: dict[CID, bool] = {}
    metamodel = str(METAMODEL)
    for init, (sort_key, sort_value) in streams.items():
        if sort_key == DEFAULT_SORT_KEY and sort_value != metamodel:
            identities[init] = (StreamId(StreamType.MODEL_INSTANCE, init), None)
        else:
            others[init] = sort_key == DEFAULT_SORT_KEY
    return identities | _named(reader, others)


def _named(reader: Reader, inits: Mapping[CID, bool]) -> dict[CID, tuple[StreamId, str | None]]:
    """Return the StreamIDs, and the names of models, of init events that are here and sound.

    To decode a large init event takes up to a second, and holds the interpreter. So nobody can have
    it done again and again: what was read is remembered, and of models that are too large to be
    used, no name is read. `inits` says whether each is known to start a model.
    """
    with _KNOWN_LOCK:
        identities = {init: known for init in inits if (known := _KNOWN.use(init)) is not None}
    unknown = [init for init in inits if init not in identities]
    for start in range(0, len(unknown), _READ_AT_ONCE):
        for cid, car in _read_inits(reader, unknown[start : start + _READ_AT_ONCE]):
            if inits[cid] and len(car) > _LARGEST_NAMED:
                known = StreamId(StreamType.MODEL, cid), None
            elif (event := _parse(cid, car)) is None:
                continue
            else:
                stream_id = event.stream_id()
                known = stream_id, _name(event) if stream_id.type == StreamType.MODEL else None
            identities[cid] = known
            with _KNOWN_LOCK:
                _KNOWN[cid] = known
    return identities


_LARGEST_NAMED: Final = 256 * 1024
"""Bytes of a model's init event whose name is read; a definition that counts has 100 kB."""
_KNOWN: Final = Latest[CID, tuple[StreamId, str | None]](16_384)
"""What init events say, by their CIDs: it never changes."""
_KNOWN_LOCK: Final = Lock()


def _read_inits(reader: Reader, inits: Sequence[CID]) -> Iterator[tuple[CID, bytes]]:
    sql = (
        "SELECT cid, car FROM events JOIN cars USING (id) WHERE kind = 'init' AND short_cid IN (?)"
    )
    rows = list(select_named(reader.connection, sql, inits))
    cars = reader.blocks.restore_each([car for _, car in rows])
    for (cid, _), car in zip(rows, cars, strict=True):
        if not isinstance(car, CarError):
            yield CID(cid), car


def _parse(cid: CID, car: bytes) -> Event | None:
    """Return an init event; None if it is damaged."""
    try:
        event = parse_event(car)
    except InvalidEventError:
        return None
    return event if event.cid == cid and event.kind is EventKind.INIT else None


def _name(init: Event) -> str | None:
    data = init.payload.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    return _cut(name) if isinstance(name, str) else None


def _cut(text: str) -> str:
    """A text of strangers, not longer than a list has room for."""
    return text if len(text) <= MAX_SHOWN_TEXT else text[: MAX_SHOWN_TEXT - 1] + "…"


_SIGNED: Final = (
    "FROM events INDEXED BY by_stream CROSS JOIN cars USING (id) "
    "WHERE stream = ? AND position IS NOT NULL AND kind <> 'time'"
)
_MAX_SCANNED: Final = 1000
"""Streams in which texts are looked for, for one page."""
_MAX_SCANNED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of their events, but for those of the last one."""
_BYTES_PER_EVENT: Final = 100
"""Bytes that it counts to look up an event."""


def read_streams_with(
    reader: Reader,
    wanted: StreamFilter,
    texts: Collection[str],
    before: int | None,
    limit: int,
    max_bytes: int,
) -> StreamPage:
    """Return the latest streams that match a filter and in whose signed events each text occurs.

    They are found by looking at the events: a page ends after 1,000 streams or 16 MiB at the
    latest, so it may have few streams, or none, while there is a following one. What occurs in the
    content at any time occurs in an event, as DAG-CBOR has texts as they are. Streams whose events
    have more than `max_bytes` are left out.
    """
    page = read_streams(reader, wanted, before, _MAX_SCANNED)
    matching: list[ListedStream] = []
    left = _MAX_SCANNED_BYTES
    for stream in page.streams:
        size = _size_of(reader, stream)
        if size <= max_bytes and _has_texts(reader, stream, texts):
            matching.append(stream)
        left -= size + _BYTES_PER_EVENT * stream.events
        if (left <= 0 or len(matching) >= limit) and stream is not page.streams[-1]:
            return StreamPage(matching, page.total, stream.row)
    return StreamPage(matching, page.total, page.next)


def _size_of(reader: Reader, stream: ListedStream) -> int:
    sql = f"SELECT coalesce(sum(length(car)), 0) {_SIGNED}"
    return int(reader.connection.execute(sql, (stream.row,)).fetchone()[0])


def _has_texts(reader: Reader, stream: ListedStream, texts: Collection[str]) -> bool:
    """Whether each text occurs in an event. CARs are looked at as they are stored: only blocks of
    capabilities are cut out of them."""
    sql = f"SELECT 1 {_SIGNED} AND instr(car, ?) LIMIT 1"
    return all(
        reader.connection.execute(sql, (stream.row, text.encode())).fetchone() is not None
        for text in texts
    )
