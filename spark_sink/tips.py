"""The rows of `stream_tips`, as a pure function of the rows of `raw_events`: Arrow in, Arrow out.

Each stream is computed on its own and from all of its events, so the work can be cut by stream and
done anywhere: on the driver today, in `mapInArrow` over the partitions of `raw_events` when it
grows.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from recon_node.ceramic import CeramicError, Event, EventKind, InitHeader, parse_event
from recon_node.lattice import StreamEvent, StreamShapeError, select_tip
from spark_sink.errors import TablesError
from spark_sink.schema import STREAM_TIPS, partition_of

Row = dict[str, Any]


def compute_tips(raw_events: pa.Table) -> pa.Table:
    """One row of `stream_tips` for each stream among the rows of `raw_events`.

    Args:
        raw_events: at least the columns position, stream_cid and car; of each stream all rows.

    Raises:
        TablesError: a row holds no event of its stream, or a stream's events are not all there.
    """
    streams: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
    columns = (raw_events[name].to_pylist() for name in ("stream_cid", "position", "car"))
    for stream_cid, position, car in zip(*columns, strict=True):
        streams[stream_cid].append((position, car))
    rows = [_tip_row(stream_cid, events) for stream_cid, events in streams.items()]
    return pa.Table.from_pylist(rows, schema=STREAM_TIPS)


def _tip_row(stream_cid: bytes, positioned: Iterable[tuple[int, bytes]]) -> Row:
    events: dict[bytes, Event] = {}
    last = 0
    header: InitHeader | None = None
    for position, car in positioned:
        event = _parse(car, position)
        events[event.cid] = event
        header = header or event.header
        last = max(last, position)
    try:
        tip = select_tip(map(_stream_event, events.values()))
    except StreamShapeError as error:
        raise TablesError(
            f"raw_events does not hold the whole stream {stream_cid.hex()}: {error}"
        ) from error
    event = events[tip.event]
    if header is None or event.init != stream_cid:
        raise TablesError(f"raw_events holds events of another stream under {stream_cid.hex()}")
    return {
        "stream_cid": stream_cid,
        "stream_id": str(event.stream_id(header)),
        "stream_type": int(header.stream_type),
        "controller": header.controller,
        "dimensions": _dimensions(header),
        "event_cid": tip.event,
        "event_type": event.kind.value,
        "event_height": tip.height,
        "data_tip": tip.data_tip,
        "anchored_at": tip.anchored_at,
        "tips": tip.candidates,
        "pruned": tip.pruned,
        "diverged": tip.diverged,
        "events": len(events),
        "pending_time_events": sum(e.kind is EventKind.TIME for e in events.values()),
        "position": last,
        "stream_cid_partition": partition_of(stream_cid),
    }


def _stream_event(event: Event) -> StreamEvent[bytes]:
    """An event's shape. The node served it, so it is valid; its anchor's time is not known yet."""
    return StreamEvent(bytes(event.cid), event.kind.value, tuple(map(bytes, event.prevs)))


def _dimensions(header: InitHeader) -> list[tuple[str, bytes]]:
    """What ceramic-one keeps of a stream's header: these four, empty when they are not given."""
    return [
        ("model", header.model.to_bytes()),
        ("controller", header.controller.encode()),
        ("context", header.context or b""),
        ("unique", header.unique or b""),
    ]


def _parse(car: bytes, position: int) -> Event:
    try:
        return parse_event(car)
    except CeramicError as error:
        raise TablesError(f"raw_events holds no event at position {position}: {error}") from error
