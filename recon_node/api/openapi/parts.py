"""Parts of an OpenAPI description: parameters, bodies, answers, operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
BODY_ERRORS: Final = (400, 413, 507)
"""What every request with a body may be answered."""


def ref(name: str) -> Json:
    """Refer to a schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def param(where: str, name: str, text: str, schema: Json | None = None, **more: Any) -> Json:
    """Describe a parameter."""
    said = {"name": name, "in": where, "description": text, "schema": schema or {"type": "string"}}
    return said | {"required": where == "path"} | more


def in_path(name: str, text: str) -> Json:
    """Describe a parameter in the path."""
    return param("path", name, text)


def in_query(name: str, text: str, schema: Json | None = None, **more: Any) -> Json:
    """Describe a parameter in the query."""
    return param("query", name, text, schema, **more)


def count(name: str, text: str) -> Json:
    """Describe a number in the query."""
    return in_query(name, text, {"type": "integer", "minimum": 0})


def content(schema: Json, media_type: str = "application/json") -> Json:
    """Describe a body of one media type."""
    return {media_type: {"schema": schema}}


def answers(success: Json, *errors: int) -> Json:
    """Describe the answers of an operation: its success, and its errors by code."""
    by_code = dict(success)
    for code in sorted({*errors, *_ALWAYS}):
        by_code[str(code)] = {
            "description": _ERRORS[code],
            "content": content(ref("ErrorResponse")),
        }
    return by_code


def ok(text: str, schema: Json | None = None, media_type: str = "application/json") -> Json:
    """Describe a success with a body."""
    answer: Json = {"description": text}
    if schema is not None:
        answer["content"] = content(schema, media_type)
    return {"200": answer}


def done(text: str) -> Json:
    """Describe a success without a body."""
    return {"204": {"description": text}}


def get(summary: str, success: Json, *errors: int, params: Any = (), own: bool = False) -> Json:
    """Describe a GET; `own`: ceramic-one does not have it."""
    return operation(summary, success, errors, params, own)


def post(
    summary: str, success: Json, *errors: int, params: Any = (), body: str | None = None
) -> Json:
    """Describe a POST."""
    posted = operation(summary, success, (403, 413, *errors), params, False)
    if body is not None:
        posted["requestBody"] = {"required": True, "content": content(ref(body))}
    return posted


def delete(summary: str, params: Any) -> Json:
    """Describe the DELETE of an interest."""
    success = done("The interest is gone. Events that are here stay.")
    return operation(summary, success, (400, 403, 404, 507), params, True)


def operation(summary: str, success: Json, errors: Any, params: Any, own: bool) -> Json:
    """Describe an operation."""
    described: Json = {"summary": summary, "responses": answers(success, *errors)}
    if params:
        described["parameters"] = list(params)
    if own:
        described[EXTENSION] = True
    return described
