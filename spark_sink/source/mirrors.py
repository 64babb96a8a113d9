"""Reads ranges of one node's feed from several nodes: the first gives the order, others the bytes.

Positions are those of one node's log, but events have the same CIDs everywhere. So whoever reads a
range from a *mirror* lists it at the first node (all columns but the CARs), and asks the mirror for
the events by their CIDs. The listing takes about a third of the work that the whole rows would.

The rows are those that the first node would have given, whichever node gave the CARs, so a batch
that is read again is the same batch. Only the order of the blocks within a CAR may differ, if one
event was written to the two nodes in different CARs.

**What a mirror sends is checked.** Each CAR holds each block of the event that was asked for,
unchanged, and nothing else. Everything else comes from the first node. So a mirror that lies costs
time and memory, but changes nothing.

**A mirror may fail.** What it does not have is read from the first node. If it does not answer, is
an older node, or sends something else, it is left alone for a while, by each of Spark's workers,
and what is left of the range is read from the first node, too.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from recon_node.backoff import Backoff
from spark_sink.errors import FeedRefusedError, SinkError
from spark_sink.schema import FEED
from spark_sink.source.feed import Feed
from spark_sink.source.feed_columns import LISTING, last_position

_log = logging.getLogger(__name__)

#: Positions that are listed at a time, and at most as many events that are asked for.
PIECE: Final = 10_000
# Seconds: of each step, and for the events of a piece.
_TIMEOUT: Final = httpx.Timeout(15.0, connect=5.0)
_PATIENCE: Final = 120.0
# Rows between two that the mirror lacks, for which another request would cost more.
_SHORT_RUN: Final = 20
# A mirror that lacks more than this part of a piece is not worth the listing.
_MOST_LACKING: Final = 0.5
_PAUSES: Final = Backoff(first=10.0, longest=300.0)


def fault_of(mirror: Feed) -> str | None:
    """Return why a node is of no use as a mirror now; None if it is."""
    try:
        for _ in mirror.events(pa.array([], pa.binary()), _TIMEOUT, _PATIENCE):
            return "it sends events that were not asked for"
    except SinkError as error:
        return str(error)
    finally:
        mirror.close()
    return None


class _MirrorError(Exception):
    """The mirror is of no use now."""


class _Rest(NamedTuple):
    failures: int
    until: float


# The mirrors that failed, by URL. Spark's workers live on from batch to batch.
_resting: dict[str, _Rest] = {}


def read_mirrored(
    first: Feed, mirror: Feed, after: int, upto: int, epoch: str, patience: float
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that `first.read` would, most of their CARs from another node.

    Raises:
        SinkError: as `first.read`.
    """
    while after < upto:
        end = min(upto, after + PIECE)
        try:
            if not _rests(mirror):
                for batch in _from_mirror(first, mirror, after, end, epoch, patience):
                    yield batch
                    after = last_position(batch)
                after = end
        except _MirrorError as error:
            _let_rest(mirror, error)
        if after < end:
            yield from first.read(after, end, epoch, patience)
        after = end


def _from_mirror(
    first: Feed, mirror: Feed, after: int, end: int, epoch: str, patience: float
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece, those that the mirror lacks from the first node.

    Raises:
        _MirrorError: the rows that are left have to be read from the first node.
        SinkError: as `first.read`.
    """
    try:
        listed = pa.Table.from_batches(first.listing(after, end, epoch, patience), LISTING)
    except FeedRefusedError as error:  # an older node; if it is something else, reading tells
        raise _MirrorError(f"the node at {first.url} cannot list events: {error}") from None
    rows = listed.combine_chunks()
    if not rows.num_rows:
        return
    done = lacking = 0
    for batch in _events(mirror, rows):
        places = _places(rows, done, batch)
        for run in _runs(places, done):
            if run.source is None:
                lacking += run.end - run.start
                yield from _from_first(first, rows, run, epoch, patience)
            else:
                cars = batch.column("car").slice(run.source, run.end - run.start)
                yield _joined(rows.slice(run.start, run.end - run.start), cars)
        done = places[-1] + 1
    lacking += rows.num_rows - done
    if lacking > rows.num_rows * _MOST_LACKING:
        raise _MirrorError(f"it lacks {lacking} of {rows.num_rows} events")
    _resting.pop(mirror.url, None)
    if done < rows.num_rows:
        yield from _from_first(first, rows, _Run(done, rows.num_rows, None), epoch, patience)


def _events(mirror: Feed, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    try:
        yield from mirror.events(rows["event_cid"], _TIMEOUT, _PATIENCE)
    except SinkError as error:
        raise _MirrorError(str(error)) from None


class _Run(NamedTuple):
    """Rows of a listing that come from one node."""

    start: int
    end: int
    source: int | None
    """Where they start in the mirror's batch; None: the first node has them."""


def _places(rows: pa.Table, start: int, batch: pa.RecordBatch) -> list[int]:
    """Return which rows of a listing, from `start` on, the events of a batch are.

    Raises:
        _MirrorError: others were not asked for, or not in this order.
    """
    wanted = rows["event_cid"].slice(start).combine_chunks()
    found = pc.index_in(batch.column("event_cid"), value_set=wanted)
    steps = pc.all(pc.less(found[:-1], found[1:]), min_count=0).as_py()
    if found.null_count or not steps:
        raise _MirrorError("it sends events that were not asked for")
    return [start + place for place in found.to_pylist()]


def _runs(places: Sequence[int], start: int) -> list[_Run]:
    """Divide the rows from `start` to the last of `places` among the mirror and the first node."""
    runs: list[_Run] = []
    for source, place in enumerate(places):
        last = runs[-1] if runs else None
        end = start if last is None else last.end
        if last is not None and last.source is not None and end == place:
            runs[-1] = last._replace(end=place + 1)
            continue
        if end < place:
            runs.append(_Run(end, place, None))
        runs.append(_Run(place, place + 1, source))
    return _joined_gaps(runs)


def _joined_gaps(runs: Sequence[_Run]) -> list[_Run]:
    """Let the first node have short runs between two of its own."""
    joined: list[_Run] = []
    for run in runs:
        after_gap = bool(joined) and joined[-1].source is None
        if after_gap and (run.source is None or run.end - run.start < _SHORT_RUN):
            joined[-1] = joined[-1]._replace(end=run.end)
        else:
            joined.append(run)
    return joined


def _from_first(
    first: Feed, rows: pa.Table, run: _Run, epoch: str, patience: float
) -> Iterator[pa.RecordBatch]:
    positions = rows["position"]
    after, upto = positions[run.start].as_py() - 1, positions[run.end - 1].as_py()
    return first.read(after, upto, epoch, patience)


def _joined(rows: pa.Table, cars: pa.Array) -> pa.RecordBatch:
    """Return the rows of a listing with their CARs.

    Raises:
        _MirrorError: a CAR is not that of its row.
    """
    from recon_node.ceramic.plain_car import holds_event  # takes long: only who needs it

    if cars.null_count:
        raise _MirrorError("it sends rows without CARs")
    names = ("event_cid", "event_id", "stream_cid", "event_type")
    columns = (rows[name].to_pylist() for name in names)
    for car, cid, event_id, stream, kind in zip(cars.to_pylist(), *columns, strict=True):
        if not holds_event(car, cid):
            raise _MirrorError("it sends CARs that are not those of the events")
        # If the row is damaged, the first node knows once it reads it with its CAR.
        if not event_id.endswith(cid) or not (stream == cid if kind == "init" else stream in car):
            raise _MirrorError(f"the row of an event is damaged at {cid.hex()}")
    arrays = [cars if name == "car" else rows[name].combine_chunks() for name in FEED.names]
    return pa.RecordBatch.from_arrays(arrays, schema=FEED)


def _rests(mirror: Feed) -> bool:
    rest = _resting.get(mirror.url)
    return rest is not None and time.monotonic() < rest.until


def _let_rest(mirror: Feed, error: _MirrorError) -> None:
    """Leave a mirror alone for a while; tell it once, until it is of use again."""
    mirror.close()
    rest = _resting.get(mirror.url)
    failures = 1 if rest is None else rest.failures + 1
    pause = _PAUSES.wait(failures)
    _resting[mirror.url] = _Rest(failures, time.monotonic() + pause)
    if failures == 1:
        _log.warning("not reading from the mirror %s for a while: %s", mirror.url, error)
