"""What all models of requests and answers share: how they are read, refused and written.

The same structs are read from requests and returned by handlers, and both are described by them
(`recon_node.api.openapi`).
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import trio
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from recon_node.api.errors import ApiError, bad_request
from recon_node.ipld import CID, IpldError, multibase

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SECONDS = re.compile(r"\+?[0-9]{1,19}(\.[0-9]{0,19})?(e-[0-9]{1,2})?")
_PEER_ID_HASHES = (b"\x00", b"\x12")
"""The multihash codes of keys: identity, for short ones, and sha2-256."""
_MAX_TEXTS: Final = 64
"""Texts of a list in a body, at most."""


class Body(Struct, frozen=True):
    """The shape of a body. The docstrings of the class and its fields describe it to clients.

    A field that is `UNSET` is left out.
    """

    @classmethod
    def of_object(cls, value: object) -> Self:
        """Make the model of an object that has its fields as attributes."""
        return msgspec.convert(value, cls, from_attributes=True, dec_hook=_converted)

    @classmethod
    def of_objects(cls, values: Iterable[object]) -> list[Self]:
        """Make the models of several such objects."""
        kind = list[cls]  # type: ignore[valid-type]  # of a variable
        return msgspec.convert(list(values), kind, from_attributes=True, dec_hook=_converted)

    @classmethod
    def read(cls, text: bytes, name: str = "the body", *, is_strict: bool = False) -> Self:
        """Read a JSON object, called `name` in error messages.

        Raises:
            ApiError: 400, it is not a JSON object, or not one of this shape; or, if `is_strict`, it
                has a field that is not declared.
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
        if is_strict:
            _check_names(value, {field.shown for field in _fields_of(cls)}, name)
        return cls.checked(value)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """The model of these values; raises `ApiError` 400 for the first that does not fit."""
        fields: dict[str, Any] = {}
        for field in _fields_of(cls):
            value = values.get(field.shown, UNSET)
            if value is UNSET and field.is_required:
                raise bad_request(f"'{field.shown}' is missing")
            try:
                if value is None and field.may_be_null:
                    fields[field.name] = None
                elif value is not UNSET:
                    fields[field.name] = field.read(value)
            except UnfitError as error:
                wording = str(error).format(name=field.shown, input=value)
                raise bad_request(wording) from None
        return cls(**fields)


_NO_QUERY: Final = QueryParams()
"""Of most requests. Parsing none takes as long as a tenth of their handling."""


class Parameters(Body, frozen=True):
    """The parameters in the path and query of a request; a subclass declares them."""

    @classmethod
    def read_from(cls, request: Request, *, is_strict: bool = False) -> Self:
        """Read them from a request; of a repeated parameter, only a list takes all values.

        Raises:
            ApiError: 400, a parameter is missing or has an invalid value, or, if `is_strict`, the
                query has one that is not declared, or repeats one that is not a list.
        """
        query = request.query_params if request.scope["query_string"] else _NO_QUERY
        if is_strict and query:
            is_list = {field.shown: field.is_list for field in _fields_of(cls)}
            _check_names(query, is_list.keys() - request.path_params, "the query")
            for name in query:
                if len(query.getlist(name)) > 1 and not is_list[name]:
                    raise bad_request(f"'{name}' is repeated: it can have one value only")
        values: dict[str, Any] = {**query, **request.path_params}
        for field in _fields_of(cls):
            if field.is_list:
                values[field.shown] = query.getlist(field.shown)
        return cls.checked(values)


def _check_names(names: Iterable[str], allowed: set[str], where: str) -> None:
    """Refuse a name that a request does not have: it is misspelt, and without it, the request is
    another one."""
    for name in names:
        if name not in allowed:
            known = f"only {', '.join(sorted(allowed))}" if allowed else "nor any other name"
            raise bad_request(f"{where} cannot have {name[:100]!r}, {known}")


NO_PARAMETERS: Final = Parameters()
B = TypeVar("B", bound=Body)
MAX_SMALL_BODY: Final = 64 * 1024
"""Maximum bytes of a body of a few fields."""


def read_small(body: bytes, model: type[B], *, is_strict: bool = False) -> B:
    """Read a body of a few fields, in the event loop.

    Raises:
        ApiError: 413, it has more than `MAX_SMALL_BODY` bytes; 400, as `Body.read`.
    """
    if len(body) > MAX_SMALL_BODY:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has {len(body):,} bytes; at most {MAX_SMALL_BODY:,} are read here",
        )
    return model.read(body, is_strict=is_strict)


class ErrorResponseBody(Body, frozen=True):
    """What was wrong."""

    message: str
    """What was wrong and what to do, in plain English."""


class KuboErrorBody(Body, frozen=True, rename="pascal"):
    """What was wrong, as kubo says it."""

    message: str
    """What was wrong and what to do, for people."""
    code: int
    """Always 0."""
    type: Literal["error"]
    """Always the same."""


class AnchorServiceErrorBody(Body, frozen=True):
    """What was wrong, as Ceramic's anchor service says it."""

    message: str
    """What was wrong and what to do, in plain English."""
    error: str
    """The same."""


class UnfitError(Exception):
    """A value that a parameter cannot have. The message may have {name} and {input}."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """How the text of a parameter becomes its value: `Annotated[CID, Parsed(read_cid)]`."""

    read: Callable[[str], Any]
    """Raises `UnfitError` or `ApiError`."""
    shown: Any = str
    """The type in the OpenAPI document."""


def parsed_by(read: Callable[[str], Any], start: str = "") -> Parsed:
    """Read a parameter by a function whose `ValueError`s are answered 400, with `start` before."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise bad_request(f"{start}{error}") from None

    return Parsed(checked)


class Binary:
    """A body of bytes, in descriptions."""


class StreamedAnswer(StreamingResponse):
    """An answer whose pieces come from an async generator, which is closed at the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces; of the answer to HEAD, none is made."""
        pieces = self.body_iterator
        try:
            if scope["method"] == "HEAD":
                self.body_iterator = _nothing()
            await super().__call__(scope, receive, send)
        finally:
            with trio.CancelScope(shield=True):
                await pieces.aclose()  # type: ignore[attr-defined]


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


class Multibase(str):
    """Bytes as multibase text."""


def reply(body: object, status: int = 200) -> Response:
    """Answer with a model, or with other JSON content. CIDs become text."""
    return Response(_ENCODER.encode(body), status, media_type="application/json")


def _as_text(value: object) -> str:
    if isinstance(value, CID | Multibase):
        return str(value)
    raise TypeError(f"{type(value)} is not for JSON")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_as_text)


def _converted(kind: type, value: Any) -> Any:
    return Multibase(multibase.encode(value)) if kind is Multibase else value


def text_of(value: object) -> str | None:
    """Return a value as text; None stays None."""
    return None if value is None else str(value)


def as_raw(value: Any) -> Raw:
    """Return JSON of any content as it is; its integers may have more than 64 bits."""
    return Raw(to_json(value))


def parse_int64(text: str) -> int | None:
    """A decimal integer of 64 bits, or None. Stricter than `int`: no blanks, no underscores."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and -(2**63) <= value < 2**63 else None


def peer_id_bytes(text: str) -> bytes:
    """The multihash that a peer id is; raises `ApiError` 400 if it is not one."""
    try:
        raw = multibase.decode("z" + text)
    except IpldError as error:
        raise bad_request(f"{text[:100]!r} is not a peer id: {error}") from None
    if raw[:1] not in _PEER_ID_HASHES or raw[1:2] != bytes([len(raw) - 2 & 0xFF]):
        raise bad_request(f"{text[:100]!r} is not a peer id: not the multihash of a key")
    return raw


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field of a model is read."""

    name: str
    shown: str
    read: Callable[[Any], Any]
    is_required: bool
    is_list: bool
    may_be_null: bool


@cache
def _fields_of(model: type[Body]) -> tuple[_Field, ...]:
    hints = get_type_hints(model, include_extras=True)
    fields = ((field, hints[field.name]) for field in msgspec.structs.fields(model))
    return tuple(
        _Field(
            field.name,
            field.encode_name,
            _reader_of(kind),
            field.required,
            get_origin(kind) is list,
            NoneType in get_args(kind),
        )
        for field, kind in fields
    )


def _reader_of(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        parsed = (argument.read for argument in arguments[1:] if isinstance(argument, Parsed))
        return next(parsed, None) or _reader_of(arguments[0])
    if origin in (Union, UnionType):
        return _reader_of(
            next(argument for argument in arguments if argument not in (NoneType, UnsetType))
        )
    if origin is Literal:
        return partial(_one_of, arguments)
    return _texts if origin is list else _text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnfitError("'{name}' should be text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UnfitError("'{name}' holds half a surrogate pair, which is not text")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > _MAX_TEXTS:
        raise UnfitError(f"'{{name}}' should be a list of at most {_MAX_TEXTS} texts")
    return [_text(item) for item in value]


def _one_of(allowed: tuple[str, ...], value: Any) -> str:
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise UnfitError(f"Invalid value: {{input}}. must be one of {', '.join(others)} or {last}")
    return str(value)


def _whole(text: str) -> int:
    value = parse_int64(text)
    if value is None:
        raise UnfitError("{name} should be an integer of at most 64 bits, not {input!r}")
    if value < 0:
        raise UnfitError("{name} should be 0 or more, not {input}")
    return value


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise UnfitError("{name} should be true or false, not {input!r}")
    return text == "true"


def _seconds(text: str) -> float:
    if not _SECONDS.fullmatch(text):  # `float` takes more: inf, 1_0, digits of any alphabet
        raise UnfitError("{name} should be a number of seconds, not {input!r}")
    return float(text)


Whole = Annotated[int, Meta(ge=0)]
WholeParameter = Annotated[int, Parsed(_whole, Whole)]
"""A whole number in a query."""
FlagParameter = Annotated[bool, Parsed(_flag, bool)]
"""`true` or `false` in a query."""
SecondsParameter = Annotated[float, Parsed(_seconds, Annotated[float, Meta(ge=0)])]
"""A duration in a query."""
