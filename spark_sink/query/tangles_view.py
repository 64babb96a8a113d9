"""The view `tangles`: threads of many authors, woven from the documents in `event_states`.

One row for each message of each tangle, and for each document that names a tangle without belonging
to it. Messages of a tangle are in the order that all nodes agree on. What a tangle is says
`recon_node.tangles.documents`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
import pyarrow as pa
from duckdb import DuckDBPyConnection

from recon_node.ceramic import StreamId, StreamType
from recon_node.ipld import CID
from recon_node.tangles.documents import DocumentMessage, as_message, tangle_of_documents
from recon_node.tangles.tangle import TangleError
from spark_sink.schema import TANGLES, schema_of

SOURCE: Final = "event_states"
"""The table that it is made of."""

SCHEMA: Final = schema_of(
    "root name stream_id author timestamp:double? previous:texts place:int64? is_tip:bool "
    "excluded_because? content",
    double=pa.float64(),
    texts=pa.list_(pa.string()),
)
_INITS: Final = f"""
    SELECT stream_cid, stream_type, controller, dimensions, data, validation_errors FROM {SOURCE}
    WHERE event_type = 'init' AND contains(decode(data), '"tangles"')
"""


def register_tangles(connection: DuckDBPyConnection) -> None:
    """Make the view available, from the table `event_states` of the same connection."""
    rows = connection.execute(_INITS).to_arrow_table().to_pylist()
    connection.register(TANGLES, tangles_of(rows))


def tangles_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return the rows of all tangles among init events.

    Args:
        rows: the columns of `event_states` for init events of documents, in any order.
    """
    candidates: dict[tuple[str, str], dict[str, DocumentMessage]] = defaultdict(dict)
    for message in filter(None, map(_message, rows)):
        for name, links in message.tangles.items():
            root = str(message.id) if links.root is None else links.root
            candidates[root, name][str(message.id)] = message
    answer = [
        row
        for (root, name), messages in sorted(candidates.items())
        for row in _rows(root, name, messages)
    ]
    return pa.Table.from_pylist(answer, schema=SCHEMA)


def _message(row: dict[str, Any]) -> DocumentMessage | None:
    id_ = StreamId(StreamType(row["stream_type"]), CID(row["stream_cid"]))
    model = dict(row["dimensions"] or ()).get("model")
    message = as_message(
        id_,
        row["controller"],
        None if model is None else StreamId.from_bytes(model),
        orjson.loads(row["data"]).get("content"),
    )
    errors = tuple(row["validation_errors"] or ())
    return None if message is None else replace(message, errors=errors)


def _rows(root: str, name: str, messages: dict[str, DocumentMessage]) -> Iterator[dict[str, Any]]:
    try:
        tangle = tangle_of_documents(messages.values(), name, StreamId.parse(root))
    except TangleError as error:
        for message in messages.values():
            yield _row(root, name, message, excluded_because=str(error))
        return
    tips = set(tangle.tips)
    for place, id_ in enumerate(tangle.order):
        yield _row(root, name, messages[id_], place=place, is_tip=id_ in tips)
    for id_, exclusion in tangle.excluded.items():
        reason = "; ".join(messages[id_].errors) or str(exclusion)
        yield _row(root, name, messages[id_], excluded_because=reason)


def _row(root: str, name: str, message: DocumentMessage, **columns: Any) -> dict[str, Any]:
    return {
        "root": root,
        "name": name,
        "stream_id": str(message.id),
        "author": message.author,
        "timestamp": message.timestamp,
        "previous": message.tangles[name].previous or (),
        "place": None,
        "is_tip": False,
        "excluded_because": None,
        "content": orjson.dumps(message.content).decode(),
        **columns,
    }
