"""Reading what a client sent: query parameters and JSON bodies, each with a clear refusal."""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.requests import Request

from recon_node.api.errors import bad_request

MAX_INT64 = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")


def parse_int64(text: str) -> int | None:
    """A decimal integer of 64 bits, or None. Stricter than `int`: no blanks, no underscores."""
    if not _INTEGER.fullmatch(text) or len(text) > 20:
        return None
    value = int(text)
    return value if -MAX_INT64 - 1 <= value <= MAX_INT64 else None


def int_param(request: Request, name: str, default: int, *, least: int = 0) -> int:
    """An integer query parameter; raises `ApiError` 400 when it is none or below `least`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    value = parse_int64(text)
    if value is None:
        raise bad_request(f"{name} should be an integer, not {text!r}")
    if value < least:
        raise bad_request(f"{name} should be {least} or more, not {value}")
    return value


def seconds_param(request: Request, name: str, most: float) -> float:
    """A duration in seconds, 0 when absent, at most `most` (a longer one is shortened)."""
    text = request.query_params.get(name)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # also refuses NaN
        raise bad_request(f"{name} should be a number of seconds, not {text!r}")
    return min(value, most)


async def json_object(request: Request) -> dict[str, Any]:
    """The request's body as a JSON object; raises `ApiError` 400 when it is none."""
    body = await request.body()
    if not body:
        raise bad_request("the body is empty: send a JSON object")
    return as_json_object(body, "the body")


def as_json_object(text: bytes, name: str) -> dict[str, Any]:
    """Read a JSON object, called `name` in the message of the `ApiError` 400 when it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request(f"{name} should be a JSON object")
    return value


def text_field(value: dict[str, Any], name: str) -> str:
    """A required text field of a JSON object; raises `ApiError` 400."""
    if name not in value:
        raise bad_request(f"'{name}' is missing")
    text = value[name]
    if not isinstance(text, str):
        raise bad_request(f"'{name}' should be text")
    if not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
        raise bad_request(f"'{name}' holds half a surrogate pair, which is not text")
    return text


def optional_text_field(value: dict[str, Any], name: str) -> str | None:
    """A text field of a JSON object that may be absent or null; raises `ApiError` 400."""
    return None if value.get(name) is None else text_field(value, name)
