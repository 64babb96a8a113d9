"""The API's description in OpenAPI 3.1's format, derived from the endpoints and their models.

Where ceramic-one has the same, the names are its own (rust-ceramic, `api/ceramic.yaml`); what only
this node has is marked `x-recon-node: true`. A schema has the name of its model, without "Body".
The tests check every answer that they get against this document.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from recon_node import __version__
from recon_node.api.endpoint import EXTENSION, NDJSON, Answer, Endpoint
from recon_node.api.errors import KUBO_PATH
from recon_node.api.models import ErrorResponseBody, KuboErrorBody
from recon_node.attribute_docs import attribute_docs

Json = dict[str, Any]

_ERRORS: Final = {
    400: "The request is refused; the message says why. Nothing has changed.",
    401: "The node's token is missing or wrong.",
    403: "A web page of an origin that may not change this node, or an event that its write policy "
    "refuses.",
    404: "This does not exist here.",
    409: "Another one is under way already.",
    410: "The positions belong to a log that no longer exists.",
    413: "The body is too long.",
    429: "Too many requests from this client; Retry-After says how many seconds to wait.",
    500: "A bug of the node, or a failure of its event log; the node's log has the details.",
    503: "Too many requests at once, no progress, an event is damaged in the log, or the write "
    "policy gave no answer: try again.",
    507: "The disk is full: nothing is written; what is stored can be read.",
}
_ALWAYS: Final = (401, 429, 500, 503)
_GROUPS: Final = ("events", "streams", "feed", "interests", "dag", "snapshots", "experimental")
"""First parts of paths below /ceramic that are the tags of operations. Those of kubo's API have
"kubo", and others "node"."""


def describe(endpoints: Sequence[Endpoint]) -> Json:
    """Return the OpenAPI document of these endpoints."""
    kinds: list[Any] = [
        ErrorResponseBody,
        KuboErrorBody,
        *filter(None, (each.body for each in endpoints)),
    ]
    kinds += [answer.body for each in endpoints for answer in each.answers if answer.body]
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "serialization", TypeAdapter(kind)) for kind in dict.fromkeys(kinds)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    bodies = {kind: _tidy(schema) for (kind, _), schema in schemas.items()}
    paths: dict[str, Json] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, bodies)
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
            "schemas": _tidy(definitions["$defs"]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas(GenerateJsonSchema):
    """pydantic's JSON Schema, with null as a type, and without defaults of nothing.

    What fields mean is in the docstrings below them.
    """

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix("Body")

    def model_schema(self, schema: Any) -> Json:
        kind = schema["cls"]
        aliases = {name: field.serialization_alias for name, field in kind.model_fields.items()}
        return _with_docs(super().model_schema(schema), kind, aliases)

    def dataclass_schema(self, schema: Any) -> Json:
        return _with_docs(super().dataclass_schema(schema), schema["cls"], {})

    def nullable_schema(self, schema: Any) -> Json:
        inner = self.generate_inner(schema["schema"])
        if "type" in inner:
            return {**inner, "type": [inner["type"], "null"]}
        return {"oneOf": [{"type": "null"}, inner]}

    def default_schema(self, schema: Any) -> Json:
        if schema.get("default"):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])


def _with_docs(schema: Json, kind: type, aliases: Mapping[str, str | None]) -> Json:
    """Add to each property what the docstring below its field says."""
    properties = schema.get("properties", {})
    for name, text in attribute_docs(kind).items():
        shown = properties.get(aliases.get(name) or name)
        if shown is not None:
            shown.setdefault("description", text)
    return schema


def _tidy(schema: Any) -> Any:
    """Leave out titles, which pydantic makes of names, and join the lines of descriptions."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(schema.get("title"), str):
        del tidied["title"]
    if isinstance(schema.get("description"), str):
        tidied["description"] = " ".join(schema["description"].split())
    return tidied


def _operation(each: Endpoint, bodies: Mapping[Any, Json]) -> Json:
    parameters = _parameters(each)
    described: Json = {
        "tags": [_group(each.path)],
        "summary": inspect.cleandoc(each.handle.__doc__ or "").partition("\n")[0].rstrip("."),
    }
    if each.own:
        described[EXTENSION] = True
    if each.need == "write":
        described["description"] = "Needs the token, where the node has one."
    if each.need != "open":
        described["security"] = [{}, {"token": []}]
    if parameters:
        described["parameters"] = parameters
    if each.body is not None:
        content: Json = {"application/json": {"schema": bodies[each.body]}}
        if each.lines is not None:
            schema = {"type": "string", "description": each.lines}
            content[NDJSON] = {"schema": schema, EXTENSION: True}
        described["requestBody"] = {"required": True, "content": content}
    if each.binary is not None:
        schema = {"type": "string", "format": "binary", "description": each.binary}
        content = {"application/octet-stream": {"schema": schema}}
        described["requestBody"] = {"required": True, "content": content}
    errors = {*_ALWAYS, *each.errors}
    errors |= {400} if parameters or each.body or each.binary else set()
    errors |= {"GET": set(), "POST": {403, 413}, "DELETE": {403}}[each.method]
    error = KuboErrorBody if each.path.startswith(KUBO_PATH) else ErrorResponseBody
    described["responses"] = _answers(each.answers, bodies) | {
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


def _parameters(each: Endpoint) -> list[Json]:
    """The parameters: those of the path in its order, then those of the query, inherited ones
    last."""
    schema = each.parameters.model_json_schema(mode="serialization", schema_generator=_Schemas)
    schema = _tidy(schema)
    in_path = re.findall(r"{(\w+)}", each.path)
    declared = inspect.get_annotations(each.parameters)
    fields = sorted(each.parameters.model_fields.items(), key=lambda item: item[0] not in declared)
    names = [field.serialization_alias or name for name, field in fields]
    described = []
    for name in dict.fromkeys([*in_path, *names]):
        kind = schema["properties"][name]
        parameter = {
            "name": name,
            "in": "path" if name in in_path else "query",
            "description": kind.pop("description"),
            "required": name in schema.get("required", ()),
        }
        if EXTENSION in kind:
            parameter[EXTENSION] = kind.pop(EXTENSION)
        if isinstance(kind.get("type"), list):  # it may be absent, but not null
            kind["type"] = kind["type"][0]
        described.append({**parameter, "schema": kind})
    return described


def _options(path: str, other: Json) -> Json:
    """Every path answers OPTIONS, as ceramic-one's do: for browsers, and to tell its methods."""
    options: Json = {
        "tags": [_group(path)],
        "summary": "cors",
        "responses": {"200": {"description": "The header Allow has the methods."}},
    }
    in_path = [each for each in other.get("parameters", ()) if each["in"] == "path"]
    return options | ({"parameters": in_path} if in_path else {})


def _group(path: str) -> str:
    if path.startswith(KUBO_PATH):
        return "kubo"
    name = path.split("/")[2] if path.startswith("/ceramic/") else ""
    return name if name in _GROUPS else "node"
