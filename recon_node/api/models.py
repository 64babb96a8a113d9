"""What all models of requests and answers share: how they are read, refused and written.

The same models validate requests, build answers, and describe both (`recon_node.api.openapi`).
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Annotated, Any, Final, Literal, Self, get_origin

import trio
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError, to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from recon_node.api.errors import ApiError, bad_request

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_WORDING: Final = {
    "missing": "'{name}' is missing",
    "string_type": "'{name}' should be text",
    "surrogate": "'{name}' holds half a surrogate pair, which is not text",
    "literal_error": "Invalid value: {input}. must be one of {expected}",
    "integer": "{name} should be an integer of at most 64 bits, not {input!r}",
    "seconds": "{name} should be a number of seconds, not {input!r}",
    "flag": "{name} should be true or false, not {input!r}",
    "duration": "{name} should be a duration such as 1.5s, 300ms or 1m30s, not {input!r}",
    "greater_than_equal": "{name} should be {ge} or more, not {input}",
    "empty": "{name} cannot be empty: leave it out, to take them all",
}
"""The messages for pydantic's error types, and for those of the validators here and in routes/."""


class Body(BaseModel):
    """The shape of a body. The docstrings of the class and its fields describe it to clients."""

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        defer_build=True,  # so that the node starts sooner
        from_attributes=True,
        frozen=True,
        validate_by_name=True,
    )

    @classmethod
    def read(cls, text: bytes, name: str = "the body") -> Self:
        """Read a JSON object, called `name` in error messages.

        Raises:
            ApiError: 400, it is not a JSON object, or not one of this shape.
        """
        if not text:
            raise bad_request(f"{name} is empty: send a JSON object")
        try:
            value = json.loads(text)
        except RecursionError:
            raise bad_request(f"{name} cannot be read: its JSON is nested too deeply") from None
        except ValueError as error:
            raise bad_request(f"{name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise bad_request(f"{name} should be a JSON object")
        return cls.checked(value)

    @classmethod
    def checked(cls, value: dict[str, Any]) -> Self:
        """The model of these values; raises `ApiError` 400 for the first that does not fit."""
        try:
            return cls.model_validate(value, by_alias=True, by_name=False)
        except ValidationError as error:
            raise _refusal(error) from None


class ErrorResponseBody(Body):
    """What was wrong."""

    message: str
    """What was wrong and what to do, in plain English."""


class KuboErrorBody(Body, alias_generator=to_pascal):
    """What was wrong, as kubo says it."""

    message: str
    """What was wrong and what to do, for people."""
    code: int
    """Always 0."""
    type: Literal["error"]
    """Always the same."""


class Parameters(Body):
    """The parameters in the path and query of a request; a subclass declares them."""

    @classmethod
    def read_from(cls, request: Request) -> Self:
        """Read them from a request; of a repeated parameter, only a list takes all values.

        Raises:
            ApiError: 400, a parameter is missing or has an invalid value.
        """
        if cls is Parameters:
            return cls()
        values: dict[str, Any] = {**request.query_params, **request.path_params}
        for name in _lists(cls):
            values[name] = request.query_params.getlist(name)
        return cls.checked(values)


@cache
def _lists(model: type[BaseModel]) -> tuple[str, ...]:
    fields = model.model_fields.items()
    return tuple(name for name, field in fields if get_origin(field.annotation) is list)


class StreamedAnswer(StreamingResponse):
    """An answer whose pieces come from an async generator, which is closed at the end."""

    async def stream_response(self, send: Send) -> None:
        """Send the pieces."""
        try:
            await super().stream_response(send)
        finally:
            with trio.CancelScope(shield=True):
                await self.body_iterator.aclose()  # type: ignore[attr-defined]


def reply(body: object) -> Response:
    """Answer with a model, less the fields that were not set, or with other JSON content.

    Thousands of events are passed as plain dicts, which take half the time of models.
    """
    if isinstance(body, BaseModel):
        content = body.model_dump_json(by_alias=True, exclude_unset=True).encode()
    else:
        content = to_json(body)
    return Response(content, media_type="application/json")


def parse_int64(text: str) -> int | None:
    """A decimal integer of 64 bits, or None. Stricter than `int`: no blanks, no underscores."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and -(2**63) <= value < 2**63 else None


def _without_surrogates(text: str) -> str:
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise PydanticCustomError("surrogate", "half a surrogate pair")
    return text


def _whole(text: str) -> int:
    value = parse_int64(text)
    if value is None:
        raise PydanticCustomError("integer", "not an integer")
    return value


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise PydanticCustomError("flag", "neither true nor false")
    return text == "true"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # also refuses NaN
        raise PydanticCustomError("seconds", "not a number of seconds")
    return value


JsonText = Annotated[str, AfterValidator(_without_surrogates)]
"""Text in a JSON body; there, unlike in UTF-8, an escape can be half a surrogate pair."""
AsText = WithJsonSchema({"type": "string"})
Text = Annotated[str, BeforeValidator(str)]
"""A CID, or another value with a text form."""
Binary = Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})]
Whole = Annotated[int, Field(ge=0)]
WholeParameter = Annotated[Whole, BeforeValidator(_whole)]
"""A whole number in a query."""
FlagParameter = Annotated[bool, BeforeValidator(_flag)]
"""`true` or `false` in a query."""
SecondsParameter = Annotated[float, Field(ge=0), BeforeValidator(_seconds)]
"""A duration in a query."""


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    details = {"name": first["loc"][-1], "input": first["input"], "reason": first["msg"]}
    details |= first.get("ctx", {})
    wording = _WORDING.get(first["type"], "{name}: {reason}")
    return bad_request(wording.format(**details))
