"""Holds an answer of the API to the OpenAPI document: its status, its type and its body."""

import re
from functools import cache
from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator

from recon_node.api.app import openapi_document

DOCUMENT = openapi_document()


@cache
def validator_of(schema_name: str) -> Draft202012Validator:
    """The validator of a schema of the document's components."""
    reference = {"$ref": f"#/components/schemas/{schema_name}"}
    return Draft202012Validator({**reference, "components": DOCUMENT["components"]})


def operation_of(method: str, path: str) -> dict[str, Any] | None:
    """What the document says of a request; None where it says nothing.

    As OpenAPI has it, a path without parameters comes before templates that match it, too.
    """
    if path in DOCUMENT["paths"]:
        stated: dict[str, Any] | None = DOCUMENT["paths"][path].get(method.lower())
        return stated
    for template, operations in DOCUMENT["paths"].items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            operation: dict[str, Any] | None = operations.get(method.lower())
            return operation
    return None


async def check_answer(answer: httpx.Response) -> None:
    """An event hook of httpx's client; raises AssertionError."""
    request = answer.request
    operation = operation_of(request.method, request.url.path)
    if operation is None:
        assert answer.status_code in (200, 401, 404, 405), (request.method, request.url.path)
        if answer.is_error:
            await answer.aread()
            is_kubo = request.url.path.startswith("/api/v0/")
            validator_of("KuboError" if is_kubo else "ErrorResponse").validate(answer.json())
        return
    described = operation["responses"].get(str(answer.status_code))
    assert described, (
        f"{answer.status_code} of {request.method} {request.url.path} is not described"
    )
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    content = described.get("content")
    if content is None:
        assert request.method == "OPTIONS" or "content-type" not in answer.headers
        return
    assert media_type in content
    if media_type == "application/json":
        await answer.aread()
        schema = content[media_type]["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        whole = {**schema, "components": DOCUMENT["components"]}
        validator = validator_of(name) if name else Draft202012Validator(whole)
        validator.validate(answer.json())
        if name:
            properties = DOCUMENT["components"]["schemas"][name]["properties"]
            assert set(answer.json()) <= set(properties), "it has fields that are not described"
