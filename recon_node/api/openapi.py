"""The API's description in OpenAPI 3.1's format, served at /openapi.json.

Paths, parameters and schemas that ceramic-one has, too, carry its names (rust-ceramic,
`api/ceramic.yaml`); what only this node has is marked `x-recon-node: true`. The tests hold every
route of the application and every answer that they get to this document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from recon_node import __version__
from recon_node.api.middleware.access import Access
from recon_node.api.openapi_schemas import SCHEMAS

Json = dict[str, Any]

EXTENSION: Final = "x-recon-node"
CAR: Final = "application/vnd.ipld.car"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"

_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is refused; the message says why. Nothing has changed.",
    401: "The node's token is missing or wrong.",
    403: "A web page of an origin that may not change this node.",
    404: "There is no such thing here.",
    410: "Positions of a log that is gone.",
    413: "The body is too long.",
    429: "Too many requests of this client; Retry-After says how many seconds to wait.",
    500: "A bug of the node, or a failure of its event log; the node's log has the details.",
    503: "Too many requests at once, no progress, or an event is damaged in the log: try again.",
    507: "The disk is full: nothing is written, what is there can be read.",
}
_ALWAYS: Final = (401, 429, 500, 503)
_BODY: Final = (400, 413, 507)


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _param(where: str, name: str, text: str, schema: Json | None = None, **more: Any) -> Json:
    param = {"name": name, "in": where, "description": text, "schema": schema or {"type": "string"}}
    return param | {"required": where == "path"} | more


def _path(name: str, text: str) -> Json:
    return _param("path", name, text)


def _query(name: str, text: str, schema: Json | None = None, **more: Any) -> Json:
    return _param("query", name, text, schema, **more)


def _count(name: str, text: str) -> Json:
    return _query(name, text, {"type": "integer", "minimum": 0})


def _content(schema: Json, media_type: str = "application/json") -> Json:
    return {media_type: {"schema": schema}}


def _answers(success: Json, *errors: int) -> Json:
    answers = dict(success)
    for code in sorted({*errors, *_ALWAYS}):
        answers[str(code)] = {
            "description": _ERRORS[code],
            "content": _content(_ref("ErrorResponse")),
        }
    return answers


def _ok(text: str, schema: Json | None = None, media_type: str = "application/json") -> Json:
    answer: Json = {"description": text}
    if schema is not None:
        answer["content"] = _content(schema, media_type)
    return {"200": answer}


def _done(text: str) -> Json:
    return {"204": {"description": text}}


def _get(summary: str, success: Json, *errors: int, params: Any = (), own: bool = False) -> Json:
    return _operation(summary, success, errors, params, own)


def _post(
    summary: str, success: Json, *errors: int, params: Any = (), body: str | None = None
) -> Json:
    operation = _operation(summary, success, (403, 413, *errors), params, False)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(_ref(body))}
    return operation


def _delete(summary: str, params: Any) -> Json:
    done = _done("The interest is gone. Events that are here stay.")
    return _operation(summary, done, (400, 403, 404, 507), params, True)


def _operation(summary: str, success: Json, errors: Any, params: Any, own: bool) -> Json:
    operation: Json = {"summary": summary, "responses": _answers(success, *errors)}
    if params:
        operation["parameters"] = list(params)
    if own:
        operation[EXTENSION] = True
    return operation


_WAIT = _query(
    "wait",
    "With nothing to tell, wait so many seconds for something; 30 at most.",
    {"type": "number", "minimum": 0},
    **{EXTENSION: True},
)
_INTEREST = (
    _query("controller", "A DID: its streams only."),
    _query("streamId", "A stream, as multibase text: its events only. Needs `controller`."),
)
_FILTERS = (
    _query("sortKey", "Rows of streams with this sort key only, such as `model`."),
    _query("sortValue", "With this sort value: text; a StreamID as its base36 form, `k...`."),
    _query("controller", "With this controller, a DID."),
    _query("streamId", "Of this stream, as multibase text."),
)
_EVENT_VERDICTS: Final[Json] = {
    "200": {
        "description": "Of many events (+): a verdict on each line, in order; all are on disk.",
        "content": _content({"type": "array", "items": _ref("EventVerdict")}),
        EXTENSION: True,
    }
}


def _with_many_events(operation: Json) -> Json:
    """Take events as NDJSON, too: an extension, beside ceramic-one's form."""
    text = "EventData a line, at most 10,000; each is refused alone. Prevs come first."
    schema = {"type": "string", "description": text}
    operation["requestBody"]["content"][NDJSON] = {"schema": schema, EXTENSION: True}
    return operation


_EPOCH = _query("epoch", "The log that the positions belong to: 410 when it is another.")

_PATHS: Final[dict[str, dict[str, Json]]] = {
    "/ceramic/events": {
        "post": _with_many_events(
            _post(
                "Add an event, or many",
                _done("The event is here and on disk.") | _EVENT_VERDICTS,
                *_BODY,
                body="EventData",
            )
        )
    },
    "/ceramic/events/{event_id}": {
        "get": _get(
            "Read an event",
            _ok("The event.", _ref("Event")),
            *(400, 404),
            params=[_path("event_id", "The event's CID; or its EventId, in any multibase.")],
        )
    },
    "/ceramic/streams/{stream_id}": {
        "get": _get(
            "Read the state of a stream at its tip",
            _ok("The state.", _ref("StreamState")),
            *(400, 404),
            params=[_path("stream_id", "A StreamID, as multibase text.")],
        )
    },
    "/ceramic/streams/{stream_id}/events": {
        "get": _get(
            "List the events of a stream, delivered or not",
            _ok("The events.", _ref("StreamEvents")),
            *(400, 404),
            params=[_path("stream_id", "A StreamID, as multibase text; or its init event's CID.")],
            own=True,
        )
    },
    "/ceramic/feed/events": {
        "get": _get(
            "Read the feed: events in the order of their delivery",
            _ok("The next events.", _ref("EventFeed")),
            *(400, 410),
            params=[
                _query("resumeAt", "A resume token: events after it. Without it, from the start."),
                _count("limit", "Most events, 100 without it; at most 10,000."),
                _query(
                    "includeData",
                    "Whether each event's CAR comes along.",
                    {"type": "string", "enum": ["none", "full"]},
                ),
                _WAIT,
            ],
        )
    },
    "/ceramic/feed/resumeToken": {
        "get": _get(
            "Ask for the end of the feed", _ok("The token of the feed's end.", _ref("ResumeToken"))
        )
    },
    "/ceramic/feed/head": {
        "get": _get(
            "Ask where the feed stands",
            _ok("The feed's ends.", _ref("FeedHead")),
            *(400,),
            params=[_count("after", "What `wait` waits for: a head beyond this."), _WAIT],
            own=True,
        )
    },
    "/ceramic/feed/arrow": {
        "get": _get(
            "Read a range of the feed as an Arrow IPC stream",
            _ok("The rows.", {"type": "string", "format": "binary"}, ARROW),
            *(400, 410),
            params=[
                _count("after", "Positions after this one; 0 without it."),
                _count("upto", "Up to this one; the feed's head without it."),
                _EPOCH,
                *_FILTERS,
            ],
            own=True,
        )
    },
    "/ceramic/dag/{cid}.car": {
        "get": _get(
            "Read a DAG as a CARv1, its blocks depth first",
            _ok("The DAG.", {"type": "string", "format": "binary"}, CAR),
            *(400, 404),
            params=[_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}": {
        "get": _get(
            "Ask what of a DAG is here",
            _ok("What is here, and what is missing.", _ref("DagState")),
            *(400,),
            params=[_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/dag/publish/{did}": {
        "get": _get(
            "Ask what an identifier leads to",
            _ok("The DAG that was published last.", _ref("DagPublication")),
            *(400,),
            params=[_path("did", "The identifier: a did:key of an Ed25519 key.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}/contained/{replica}": {
        "get": _get(
            "Ask whether the DAG that a replica describes contains a block",
            _ok("Whether it does.", _ref("DagContains")),
            *(400,),
            params=[_path("cid", "The block."), _path("replica", "The replica.")],
            own=True,
        )
    },
    "/ceramic/dag/{cid}/replicas": {
        "get": _get(
            "Read the log of a DAG: its appends and joins",
            _ok("Those that are here.", _ref("DagReplicas")),
            *(400,),
            params=[_path("cid", "The root.")],
            own=True,
        )
    },
    "/ceramic/interests": {
        "post": _post(
            "Register an interest", _done("The interest is kept."), *_BODY, body="Interest"
        ),
        "delete": _delete(
            "Remove an interest, or (`streamId` alone) all in one stream",
            params=[
                _query("sep", "A field of the events' headers, such as `model`."),
                _query(
                    "sepValue",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
    },
    "/ceramic/interests/{sort_key}/{sort_value}": {
        "post": _post(
            "Register an interest",
            _done("The interest is kept."),
            *_BODY,
            params=[
                _path("sort_key", "A field of the events' headers, such as `model`."),
                _path(
                    "sort_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
        "delete": _delete(
            "Remove an interest",
            params=[
                _path("sort_key", "A field of the events' headers, such as `model`."),
                _path(
                    "sort_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
            ],
        ),
    },
    "/ceramic/experimental/interests": {
        "get": _get(
            "List the interests",
            _ok("This node's interests.", _ref("InterestsGet")),
            *(400,),
            params=[_query("peerId", "Only those of this peer; this node knows its own.")],
        )
    },
    "/ceramic/experimental/events/{sep}/{sep_value}": {
        "get": _get(
            "Read the events of an interest that are here",
            _ok("Events in the order of their keys.", _ref("EventsGet")),
            *(400,),
            params=[
                _path("sep", "A field of the events' headers, such as `model`."),
                _path(
                    "sep_value",
                    "Its value: multibase text for `model`, `unique`, `context` and `dag`.",
                ),
                *_INTEREST,
                _count("offset", "How many events to pass over: the `resumeOffset` of a page."),
                _count("limit", "Most events; 10,000 without it, and at most."),
            ],
        )
    },
    "/ceramic/version": {
        "get": _get("Ask for the node's version", _ok("The version.", _ref("Version"))),
        "post": _post("Ask for the node's version", _ok("The version.", _ref("Version"))),
    },
    "/ceramic/liveness": {"get": _get("Ask whether the node is alive", _ok("It is."))},
    "/ceramic/config/network": {
        "get": _get("Ask for the node's network", _ok("The network.", _ref("NetworkInfo")))
    },
    "/ceramic/peers": {
        "get": _get("List the connected peers", _ok("The peers.", _ref("Peers"))),
        "post": _post(
            "Connect to a peer",
            _done("Connected at the first address that answered."),
            *(400,),
            params=[
                _query(
                    "addresses",
                    "Multiaddrs of one peer, each with /p2p/ and its peer id.",
                    {"type": "array", "items": {"type": "string"}},
                    required=True,
                )
            ],
        ),
    },
    "/ceramic/recon": {
        "get": _get(
            "Ask what the node holds, whom it knows and how its latest syncs went",
            _ok("The state.", _ref("ReconState")),
            own=True,
        )
    },
    "/metrics": {
        "get": _get(
            "Read the metrics, in Prometheus' format",
            _ok("The metrics.", {"type": "string"}, "text/plain"),
            own=True,
        )
    },
    "/openapi.json": {
        "get": _get("Read this document", _ok("OpenAPI.", {"type": "object"}), own=True)
    },
    "/docs": {
        "get": _get(
            "Read this document as a page", _ok("HTML.", {"type": "string"}, "text/html"), own=True
        )
    },
    "/": {
        "get": _get(
            "See the node's status as a page",
            _ok("HTML.", {"type": "string"}, "text/html"),
            own=True,
        )
    },
}


def _with_options(path: str, operations: dict[str, Json]) -> dict[str, Json]:
    """Every path answers OPTIONS, as ceramic-one's do: for browsers, and to tell its methods."""
    names = re.findall(r"{(\w+)}", path)
    options: Json = {
        "summary": "cors",
        "responses": {"200": {"description": "The header Allow has the methods."}},
    }
    if names:
        options["parameters"] = [_path(name, "As for the other methods.") for name in names]
    return {**operations, "options": options}


def _secured(path: str, operations: dict[str, Json]) -> dict[str, Json]:
    """Which operations need the token, of a node that has one."""
    writes, everything = Access(token="x"), Access(token="x", token_for="all")
    for method, operation in operations.items():
        if writes.asks_token(method.upper(), path):
            operation["security"] = [{}, {"token": []}]
            operation["description"] = "Needs the token, where the node has one."
        elif everything.asks_token(method.upper(), path):
            operation["security"] = [{}, {"token": []}]
    return operations


DOCUMENT: Final[Json] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Recon node API",
        "version": __version__,
        "description": "A Ceramic node: the API of ceramic-one, and what this node adds (+).",
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    },
    "servers": [{"url": "/"}],
    "paths": {
        path: _with_options(path, _secured(path, operations)) for path, operations in _PATHS.items()
    },
    "components": {
        "schemas": SCHEMAS,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    },
}
