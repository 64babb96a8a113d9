"""What an init event says about its stream: the header, and the StreamID that follows from it.

The header says who controls the stream, and which sets it belongs to. CIP-124, "Stream Set": the
sort key may be any field of the header; its value is the sort value. `sep` names the field; without
`sep` it is `model`. A header with neither has no sort key: its stream only belongs to the network.

The fields are those that ceramic-one and the Ceramic SDK know: `controllers` (exactly one DID),
`model` (a binary StreamID), `sep`, `unique` and `context` (bytes), `shouldIndex` and `modelVersion`
(which version of its model a document was written for: the CID of an event of the model's stream).
A header without a model is that of a tile document, the kind of stream before models. It may have
`family`, `schema`, `tags` and `forbidControllerChange`, and `unique` as a string. Any other field
is refused unless `sep` names it.

A StreamID names a stream: `varint(0xce) varint(type) CID of the init event` (CIP-59; the types are
those of the CIPs' streamtypes table). Its type follows from the header. As text it is multibase
base36, "k...".
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, Self

from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.auth.envelope import fields_of, of_type
from recon_node.ceramic.errors import InvalidEventError, StreamIdError
from recon_node.ceramic.event_id import DAG_SORT_KEY, DEFAULT_SORT_KEY, NO_SORT_KEY, STREAM_ID_CODEC
from recon_node.ipld import (
    CID,
    IpldError,
    MultibaseError,
    decode_varint,
    encode_varint,
    multibase,
    read_cid,
)

_MAX_SORT_VALUE: Final = 2000
"""Characters of a sort value, which is stored with every stream and hashed for every EventId."""
_MAX_CACHED_SIZE: Final = 128
"""Bytes of a value whose text is remembered (a StreamID has about 40): strangers send these."""

_REQUIRED: Final = frozenset({"controllers"})
_TYPES: Final[dict[str, type]] = {
    "unique": bytes,
    "context": bytes,
    "shouldIndex": bool,
    "modelVersion": CID,
}
_TILE_TYPES: Final[dict[str, type]] = {
    **_TYPES,
    "family": str,
    "schema": str,
    "tags": list,
    "forbidControllerChange": bool,
}
_OPTIONAL: Final = frozenset({"sep", "model", *_TYPES})
_OPTIONAL_IN_TILES: Final = frozenset({"sep", *_TILE_TYPES})


class StreamType(IntEnum):
    """The registered kinds of streams. A StreamId may also carry an unregistered number."""

    TILE = 0
    CAIP10_LINK = 1
    MODEL = 2
    MODEL_INSTANCE = 3
    UNLOADABLE = 4


@dataclass(frozen=True, slots=True)
class StreamId:
    """The name of a stream: its type and the CID of its init event."""

    type: int
    cid: CID

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a StreamID in any multibase, commonly "k..." (base36).

        Raises:
            StreamIdError: not a StreamID.
        """
        try:
            return cls.from_bytes(multibase.decode(text))
        except (IpldError, StreamIdError) as error:
            raise StreamIdError(f"{text[:100]!r} is not a StreamID: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a binary StreamID, as in event headers.

        Raises:
            StreamIdError: not a StreamID, or bytes are left over.
        """
        try:
            codec, offset = decode_varint(data)
            if codec != STREAM_ID_CODEC:
                hint = "it is a CID" if codec == 1 else "is it complete?"  # the version of CIDs
                raise StreamIdError(
                    f"a StreamID starts with the codec 0xce, not {codec:#x} ({hint})"
                )
            stream_type, offset = decode_varint(data, offset)
            cid, offset = read_cid(data, offset)
        except IpldError as error:
            raise StreamIdError(f"broken StreamID: {error}") from None
        if offset != len(data):
            raise StreamIdError(
                f"{len(data) - offset} extra bytes: a CommitID or something else, not a StreamID"
            )
        return cls(stream_type, cid)

    def to_bytes(self) -> bytes:
        """The binary form."""
        return encode_varint(STREAM_ID_CODEC) + encode_varint(self.type) + self.cid

    def __str__(self) -> str:
        return multibase.encode(self.to_bytes(), "base36")


METAMODEL: Final = StreamId.parse("kh4q0ozorrgaq2mezktnrmdwleo1d")
"""What every model's header names as its model: the stream "model-v1", which cannot be loaded."""


def stream_type_of(model: StreamId | None) -> StreamType:
    """Return the type of a stream whose header names that model."""
    if model is None:
        return StreamType.TILE
    return StreamType.MODEL if model == METAMODEL else StreamType.MODEL_INSTANCE


@dataclass(frozen=True, slots=True)
class InitHeader:
    """What an init event says about its stream.

    `sort_value` is the string that EventIds hash: bytes (a StreamID, for one) in base36, a link as
    its CID in base32. It and `sort_key` are empty for a stream without a sort key.
    """

    controller: str
    sort_key: str
    sort_value: str
    model: StreamId | None
    unique: bytes | None = None
    context: bytes | None = None
    should_index: bool | None = None

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Check the decoded header of an init event's payload.

        Raises:
            InvalidEventError: a field is missing, unknown or of a wrong type; not exactly one
                controller; `sep` does not name a field that can be a sort key.
        """
        header = _checked_fields(value)
        controller = _controller(header["controllers"])
        sort_key, sort_value = _sort_key(header, controller)
        unique = header.get("unique")
        return cls(
            controller=controller,
            sort_key=sort_key,
            sort_value=sort_value,
            model=_model(header["model"]) if "model" in header else None,
            unique=unique.encode() if isinstance(unique, str) else unique,
            context=header.get("context"),
            should_index=header.get("shouldIndex"),
        )

    @property
    def stream_type(self) -> StreamType:
        """A model (whose own model is the metamodel), a document of a model, or a tile document."""
        return stream_type_of(self.model)

    @property
    def dimensions(self) -> dict[str, bytes]:
        """What ceramic-one calls so; what the header lacks is empty."""
        return {
            "model": b"" if self.model is None else self.model.to_bytes(),
            "controller": self.controller.encode(),
            "context": self.context or b"",
            "unique": self.unique or b"",
        }


def _checked_fields(value: Any) -> dict[str, Any]:
    optional, types, sep = _OPTIONAL, _TYPES, None
    if type(value) is dict:
        sep = value.get("sep")
        if "model" not in value:
            is_text = type(value.get("unique")) is str
            optional = _OPTIONAL_IN_TILES
            types = _TILE_TYPES | {"unique": str} if is_text else _TILE_TYPES
        if type(sep) is str and sep not in optional and sep != NO_SORT_KEY:
            optional = optional | {sep}
    header = fields_of(value, "the header", _REQUIRED, optional)
    for name, expected in types.items():
        if name in header and (name != sep or name in _TYPES):
            of_type(header[name], expected, f"the header's {name!r}")
    return header


def _controller(value: Any) -> str:
    controllers = of_type(value, list, "the header's 'controllers'")
    if len(controllers) != 1:
        raise InvalidEventError(f"a stream has exactly one controller, not {len(controllers)}")
    controller = of_type(controllers[0], str, "the controller")
    if not is_did(controller):
        raise InvalidEventError(f"the controller {controller[:100]!r} is not a DID")
    return controller


def _model(value: Any) -> StreamId:
    try:
        return _remembered_model(of_type(value, bytes, "the header's 'model'"))
    except StreamIdError as error:
        raise InvalidEventError(f"the header's 'model' is not a StreamID: {error}") from None


def _sort_key(header: dict[str, Any], controller: str) -> tuple[str, str]:
    """The sort key and the sort value."""
    if "sep" in header:
        key = of_type(header["sep"], str, "the header's 'sep'")
    elif "model" in header:
        key = DEFAULT_SORT_KEY
    else:
        return NO_SORT_KEY, ""
    if key not in header or key == NO_SORT_KEY:
        raise InvalidEventError(
            f"the header's 'sep' names the sort key {key[:100]!r}, but the header has no such field"
        )
    return key, controller if key == "controllers" else _sort_value(key, header[key])


def _sort_value(key: str, value: Any) -> str:
    if type(value) is list and len(value) == 1:
        [value] = value
    if key == DAG_SORT_KEY:
        of_type(value, bytes, f"the header's {key!r}")
    if type(value) is bytes:
        return (_remembered_text if len(value) <= _MAX_CACHED_SIZE else _text)(value)
    if type(value) is CID:
        return str(value)
    if type(value) is not str:
        raise InvalidEventError(
            f"the header's {key[:100]!r} cannot be a sort value: it is not a string, bytes or a "
            "link, nor a list of one"
        )
    if len(value) > _MAX_SORT_VALUE:
        raise InvalidEventError(
            f"the sort value has {len(value)} characters; the limit is {_MAX_SORT_VALUE}"
        )
    return value


def _text(value: bytes) -> str:
    try:
        return multibase.encode(value, "base36")
    except MultibaseError as error:
        raise InvalidEventError(f"the sort value cannot be written: {error}") from None


# There are few models, and every document's header names one.
_remembered_model = lru_cache(maxsize=1024)(StreamId.from_bytes)
_remembered_text = lru_cache(maxsize=1024)(_text)
