"""What the tables must hold, computed from a feed's rows at once: no batches, no state, no Arrow.

Beside `recon_node.streams`, the judge of tips and states, nothing here is the pipeline's own.
"""

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from recon_node.ceramic import METAMODEL, Event, StreamId, parse_event
from recon_node.ipld import CID, dag_cbor
from recon_node.streams import EventShape, StreamShapeError, StreamStates, accepted_tip, select_tip
from spark_sink.tables.location import Location, is_delta, storage_options

Row = dict[str, Any]
KEYS = {
    "raw_events": "position",
    "conclusion_events": "conclusion_event_order",
    "event_states": "conclusion_event_order",
    "stream_tips": "stream_cid",
    "stream_states": "stream_cid",
    "unprocessed_streams": "stream_cid",
}
SECONDS = {"4102444800": "2100-01-01T00:00:00Z"}


def tables_of(feed: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of all tables, each table's in the order of its key."""
    tables: dict[str, list[Row]] = {name: [] for name in KEYS}
    streams: dict[bytes, list[tuple[Row, Event]]] = defaultdict(list)
    for row in feed:
        tables["raw_events"].append({**row, "stream_cid_partition": row["stream_cid"][-1] % 16})
        streams[row["stream_cid"]].append((row, parse_event(row["car"])))
    for stream in streams.values():
        for name, row in _rows_of_stream(stream, _model_of(stream, streams)):
            tables[name].append(row)
    return {name: sorted(rows, key=lambda row: row[KEYS[name]]) for name, rows in tables.items()}


def table_rows(directory: Location, name: str) -> list[Row]:
    """The rows of a Delta table in the order of its key, as another reader finds them."""
    place = directory / name
    table = DeltaTable(str(place), storage_options=storage_options(place))
    answer = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return sorted_rows(name, pa.table(answer).to_pylist())


def sorted_rows(name: str, rows: Iterable[Row]) -> list[Row]:
    return sorted(
        ({key: plain(value) for key, value in row.items()} for row in rows), key=_by(name)
    )


def plain(value: Any) -> Any:
    """Maps as dicts and lists as lists, whoever read them."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return dict(value)
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def assert_tables(directory: Location, feed: Iterable[Row], names: Iterable[str] = KEYS) -> None:
    """The tables are what the feed gives, each row once."""
    expected = tables_of(feed)
    for name in names:
        assert table_rows(directory, name) == expected[name], name


def assert_each_row_once(directory: Location) -> None:
    """Now, whoever is writing: no row is twice in the tables that are there, and of those with a
    row an event none is missing before the last."""
    for name, key in KEYS.items():
        if is_delta(directory / name):
            keys = [row[key] for row in table_rows(directory, name)]
            assert len(set(keys)) == len(keys), name
            if key != "stream_cid":
                assert keys == list(range(1, len(keys) + 1)), name


def _by(name: str) -> Any:
    return lambda row: row[KEYS[name]]


def _model_of(
    stream: list[tuple[Row, Event]], streams: dict[bytes, list[tuple[Row, Event]]]
) -> Any:
    header = stream[0][1].header
    if header.model is None:
        return None
    model = streams.get(bytes(header.model.cid))
    if header.model == METAMODEL or model is None:
        return None
    its_header = model[0][1].header
    if its_header is None or its_header.model != METAMODEL:
        return None
    states = StreamStates((event for _, event in model), faults=_faults(model))
    return {
        cid: states.at(cid).data.content or {}
        for cid in (event.cid for _, event in model)
        if cid == model[0][1].cid or cid not in states.rejected
    }


def _at_tip(stream: list[tuple[Row, Event]], states: StreamStates) -> Row:
    shapes = _shapes(stream)
    try:
        select_tip(shapes)  # without a tip, there is no state, as the node answers
        tip = accepted_tip(shapes, states.rejected)
    except StreamShapeError:
        return dict.fromkeys(("event_cid", "event_type", "event_height", "data"))
    [kind] = [event.kind.value for _, event in stream if event.cid == tip.event]
    return {
        "event_cid": bytes(tip.event),
        "event_type": kind,
        "event_height": tip.height,
        "data": states.at(tip.event).data.to_json(),
    }


def _shapes(stream: list[tuple[Row, Event]]) -> list[EventShape[CID]]:
    ranks: dict[CID, bytes] = {}
    shapes = []
    for row, event in stream:
        valid = row["fault"] is None
        expires = _expires(event) if valid else None
        if event.proof is None:
            ranks[event.cid] = bytes(event.cid)[-32:]
        else:
            anchor = event.proof.chain_id.encode() + event.proof.tx_hash.digest
            ranks[event.cid] = sha256(anchor + ranks[event.prevs[0]]).digest()
        rank = ranks[event.cid]
        shapes.append(
            EventShape(event.cid, event.kind.value, event.prevs, row["time"], valid, expires, rank)
        )
    return shapes


def _faults(stream: list[tuple[Row, Event]]) -> dict[CID, str]:
    return {event.cid: row["fault"] for row, event in stream if row["fault"] is not None}


def _expires(event: Event) -> int | None:
    """The only time in the capabilities of the samples."""
    if event.capability is None:
        return None
    text = dag_cbor.decode(event.capability)["p"].get("exp")
    return next((int(number) for number, date in SECONDS.items() if date == text), None)


def _rows_of_stream(stream: list[tuple[Row, Event]], model: Any) -> Iterator[tuple[str, Row]]:
    init = stream[0][1]
    header = init.header
    kind = 0 if header.model is None else 2 if header.model == METAMODEL else 3
    common = {
        "stream_cid": bytes(init.cid),
        "stream_type": kind,
        "controller": header.controller,
        "dimensions": {
            "model": b"" if header.model is None else header.model.to_bytes(),
            "controller": header.controller.encode(),
            "context": header.context or b"",
            "unique": header.unique or b"",
        },
        "stream_cid_partition": init.cid[-1] % 16,
    }
    all_states = StreamStates([event for _, event in stream], model, faults=_faults(stream))
    states = {state.event_cid: state for state in all_states.all()}
    for row, event in stream:
        of_event = {
            **common,
            "conclusion_event_order": row["position"],
            "event_cid": bytes(event.cid),
            "event_type": event.kind.value,
            "before": row["time"],
            "chain_id": row["chain_id"],
        }
        yield (
            "conclusion_events",
            {
                **of_event,
                "data": _payload(event),
                "previous": list(map(bytes, event.prevs)),
                "expires": None if row["fault"] else _expires(event),
                "fault": row["fault"],
            },
        )
        state = states[event.cid]
        yield (
            "event_states",
            {
                **of_event,
                "event_height": state.height,
                "data": state.data.to_json(),
                "validation_errors": list(state.validation_errors),
            },
        )
    of_stream = {
        **common,
        "stream_id": str(StreamId(kind, init.cid)),
        "position": max(row["position"] for row, _ in stream),
    }
    yield "stream_tips", {**of_stream, **_tip(stream)}
    yield "stream_states", {**of_stream, **_at_tip(stream, all_states)}


def _tip(stream: list[tuple[Row, Event]]) -> Row:
    kinds = {event.cid: event.kind.value for _, event in stream}
    counts = {
        "events": len(stream),
        "pending_time_events": sum(
            event.kind.value == "time" and row["time"] is None for row, event in stream
        ),
    }
    try:
        tip = select_tip(_shapes(stream))
    except StreamShapeError:
        lists: Row = {name: [] for name in ("data_tip", "anchored_at", "tips", "reasons")}
        none = dict.fromkeys(("event_cid", "event_type", "event_height"))
        pruned = sorted(bytes(event.cid) for _, event in stream)
        return {**counts, **lists, **none, "pruned": pruned, "diverged": False}
    return {
        **counts,
        "event_cid": bytes(tip.event),
        "event_type": kinds[tip.event],
        "event_height": tip.height,
        "data_tip": list(map(bytes, tip.data_tip)),
        "anchored_at": list(map(bytes, tip.anchored_at)),
        "tips": list(map(bytes, tip.candidates)),
        "pruned": list(map(bytes, tip.pruned)),
        "diverged": tip.diverged,
        "reasons": [
            {"rule": r.rule.value, "winner": bytes(r.winner), "rivals": list(map(bytes, r.rivals))}
            for r in tip.reasons
        ],
    }


def _payload(event: Event) -> bytes | None:
    if event.kind.value == "time":
        return None
    header = event.payload.get("header", {})
    metadata = {"shouldIndex": True} if event.kind.value == "init" else {}
    metadata |= {name: header[name] for name in ("shouldIndex",) if name in header}
    metadata |= {name: str(header[name]) for name in ("modelVersion",) if name in header}
    value = {"metadata": metadata, "content": event.data}
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_dag_json)
    return text.encode()


def _dag_json(value: Any) -> Any:
    if isinstance(value, CID):
        return {"/": str(value)}
    return {"/": {"bytes": base64.b64encode(value).decode().rstrip("=")}}
