"""The API's description in OpenAPI 3.1's format, derived from the endpoints and their models.

Where ceramic-one has the same, the names are its own (rust-ceramic, `api/ceramic.yaml`); what only
this node has is marked `x-recon-node: true`. A schema has the name of its model, without "Body".
The tests check every answer that they get against this document.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct, UnsetType

from recon_node import __version__
from recon_node.api.endpoint import EXTENSION, NDJSON, Answer, Endpoint
from recon_node.api.errors import ANCHOR_PATH, KUBO_PATH
from recon_node.api.models import (
    AnchorServiceErrorBody,
    Binary,
    ErrorResponseBody,
    KuboErrorBody,
    Parsed,
)
from recon_node.base.setting_types import attribute_docs

Json = dict[str, Any]

_ERRORS: Final = {
    400: "The request is refused; the message says why. Nothing has changed.",
    401: "The node's token is missing or wrong.",
    403: "A web page of an origin that may not change this node, or an event that its write policy "
    "refuses.",
    404: "This does not exist here.",
    409: "Another one is under way already.",
    410: "The positions belong to a log that no longer exists, or the events were forgotten.",
    413: "The body is too long.",
    415: "The body is compressed (Content-Encoding): send it as it is.",
    429: "Too many requests from this client; Retry-After says how many seconds to wait.",
    500: "A bug of the node, or a failure of its event log; the node's log has the details.",
    503: "Too many requests at once, no progress, an event is damaged in the log, or the write "
    "policy gave no answer: try again.",
    507: "The disk is full: nothing is written; what is stored can be read.",
}
_ALWAYS: Final = (401, 410, 429, 500, 503)
_GROUPS: Final = ("events", "streams", "feed", "interests", "dag", "snapshots", "experimental")
"""First parts of paths below /ceramic that are the tags of operations. Those of kubo's API have
"kubo", and others "node"."""


def describe(endpoints: Sequence[Endpoint]) -> Json:
    """Return the OpenAPI document of these endpoints."""
    kinds: list[Any] = [
        ErrorResponseBody,
        KuboErrorBody,
        AnchorServiceErrorBody,
        *filter(None, (endpoint.body for endpoint in endpoints)),
    ]
    kinds += [answer.body for endpoint in endpoints for answer in endpoint.answers if answer.body]
    bodies, components = _schemas(dict.fromkeys(kinds))
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, bodies)
    for path, operations in paths.items():
        operations["options"] = _options(path, next(iter(operations.values())))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Recon node API",
            "version": __version__,
            "description": "A Ceramic node: the API of ceramic-one, and what this node adds (+).",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(kinds: Iterable[Any]) -> tuple[dict[Any, Json], Json]:
    """Return the schemas of some types, and those of the models that they refer to, by name."""
    kinds = list(kinds)
    schemas, models = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_other, ref_template="#/components/schemas/{name}"
    )
    for model in {body.__name__: body for kind in kinds for body in _models_in(kind)}.values():
        properties = models[model.__name__]["properties"]
        for name, text in attribute_docs(model).items():
            shown = properties.get(_shown(model, name))
            if shown is not None:
                shown.setdefault("description", text)
    named = {_name(name): _tidy(schema) for name, schema in models.items()}
    return dict(zip(kinds, map(_tidy, schemas), strict=True)), named


def _schema_of_other(kind: Any) -> Json:
    """The schema of a type that JSON does not have."""
    if kind is Raw:
        return {}
    return {"type": "string", "format": "binary"} if kind is Binary else {"type": "string"}


def _models_in(kind: Any) -> Iterator[type]:
    """The structs and dataclasses in a type."""
    for part in get_args(kind):
        yield from _models_in(part)
    if isinstance(kind, type) and (issubclass(kind, Struct) or is_dataclass(kind)):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _models_in(hint)


def _shown(model: type, name: str) -> str:
    """The name of a field in JSON."""
    if not issubclass(model, Struct):
        return name
    return next(f.encode_name for f in msgspec.structs.fields(model) if f.name == name)


def _name(model: str) -> str:
    return model.removesuffix("Body")


def _tidy(schema: Any) -> Any:
    """Leave out titles and defaults of nothing, join the lines of descriptions, name models."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(schema.get("title"), str):
        del tidied["title"]
    if isinstance(schema.get("description"), str):
        tidied["description"] = " ".join(schema["description"].split())
    if isinstance(schema.get("$ref"), str):
        tidied["$ref"] = _name(schema["$ref"])
    return tidied


def _operation(endpoint: Endpoint, bodies: Mapping[Any, Json]) -> Json:
    parameters = _parameters(endpoint)
    summary = inspect.cleandoc(endpoint.handle.__doc__ or "").partition("\n")[0]
    described: Json = {"tags": [_group(endpoint.path)], "summary": summary.rstrip(".")}
    if endpoint.own:
        described[EXTENSION] = True
    more = " ".join(inspect.cleandoc(endpoint.handle.__doc__ or "").split()[len(summary.split()) :])
    token = "Needs the token, where the node has one." if endpoint.need == "write" else ""
    if more or token:
        described["description"] = f"{more} {token}".strip()
    if endpoint.need != "open":
        described["security"] = [{}, {"token": []}]
    if parameters:
        described["parameters"] = parameters
    if endpoint.body is not None:
        content: Json = {"application/json": {"schema": bodies[endpoint.body]}}
        if endpoint.lines is not None:
            schema = {"type": "string", "description": endpoint.lines}
            content[NDJSON] = {"schema": schema, EXTENSION: True}
        described["requestBody"] = {"required": True, "content": content}
    if endpoint.binary is not None:
        schema = {"type": "string", "format": "binary", "description": endpoint.binary}
        content = {"application/octet-stream": {"schema": schema}}
        described["requestBody"] = {"required": True, "content": content}
    errors = {*_ALWAYS, *endpoint.errors}
    errors |= {400} if parameters or endpoint.body or endpoint.binary else set()
    errors |= {"GET": set(), "POST": {403, 413, 415}, "DELETE": {403}}[endpoint.method]
    error = _error_of(endpoint.path)
    described["responses"] = _answers(endpoint.answers, bodies) | {
        str(status): {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": bodies[error]}},
        }
        for status in sorted(errors)
    }
    return described


def _answers(answers: Sequence[Answer], bodies: Mapping[Any, Json]) -> Json:
    """The successes by status; one of several media types may come in any of them."""
    described: Json = {}
    for answer in answers:
        status = str(answer.status)
        one = _answer(answer, bodies)
        if status in described:
            one["content"] |= described[status]["content"]
        described[status] = one
    return described


def _answer(answer: Answer, bodies: Mapping[Any, Json]) -> Json:
    described: Json = {"description": answer.description}
    if answer.body is not None:
        described["content"] = {answer.media_type: {"schema": bodies[answer.body]}}
    if answer.own:
        described[EXTENSION] = True
    return described


def _parameters(endpoint: Endpoint) -> list[Json]:
    """The parameters: those of the path in its order, then those of the query, inherited ones
    last."""
    in_path = re.findall(r"{(\w+)}", endpoint.path)
    hints = get_type_hints(endpoint.parameters, include_extras=True)
    docs = attribute_docs(endpoint.parameters)
    declared = inspect.get_annotations(endpoint.parameters)
    fields = {field.encode_name: field for field in msgspec.structs.fields(endpoint.parameters)}
    names = sorted(fields, key=lambda name: fields[name].name not in declared)
    described = []
    for name in dict.fromkeys([*in_path, *names]):
        field = fields[name]
        schema, is_own = _schema_of_parameter(hints[field.name])
        if field.default and isinstance(field.default, int | float | str):
            schema["default"] = field.default
        described.append(
            {
                "name": name,
                "in": "path" if name in in_path else "query",
                "description": " ".join(docs[field.name].split()),
                "required": field.required,
                **({EXTENSION: True} if is_own else {}),
                "schema": schema,
            }
        )
    return described


def _schema_of_parameter(kind: Any) -> tuple[Json, bool]:
    """The schema of a parameter, and whether only this node knows it."""
    is_own = False
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        is_own = EXTENSION in marks
        kind = next((mark.shown for mark in marks if isinstance(mark, Parsed)), kind)
    options = [option for option in get_args(kind) if option not in (NoneType, UnsetType)]
    if len(options) < len(get_args(kind)):  # it may be absent, but not null
        return _schema_of_parameter(options[0])
    return dict(_tidy(msgspec.json.schema(kind, schema_hook=_schema_of_other))), is_own


def _options(path: str, other: Json) -> Json:
    """Every path answers OPTIONS, as ceramic-one's do: for browsers, and to list its methods."""
    options: Json = {
        "tags": [_group(path)],
        "summary": "cors",
        "responses": {"200": {"description": "The header Allow has the methods."}},
    }
    in_path = [parameter for parameter in other.get("parameters", ()) if parameter["in"] == "path"]
    return options | ({"parameters": in_path} if in_path else {})


def _error_of(path: str) -> type[Struct]:
    """The shape of a path's errors; `recon_node.api.errors` writes them."""
    if path.startswith(ANCHOR_PATH):
        return AnchorServiceErrorBody
    return KuboErrorBody if path.startswith(KUBO_PATH) else ErrorResponseBody


def _group(path: str) -> str:
    if path.startswith(KUBO_PATH):
        return "kubo"
    name = path.split("/")[2] if path.startswith("/ceramic/") else ""
    return name if name in _GROUPS else "node"
