"""The header of an init event: who controls the stream, and which model it belongs to.

The fields are those that ceramic-one and the Ceramic SDK know: `controllers` (exactly one DID),
`model` (a binary StreamID), `sep` (which field is the sort key; "model" when absent), `unique`,
`context` (bytes), `shouldIndex` and `modelVersion` (which version of its model a document was
written for: the CID of an event of the model's stream).

Events of DAGs have a sort key of their own, which only this node knows: where `sep` is "dag", and
there alone, the header has a field `dag` (bytes), see `recon_node.dag.events`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

from recon_node.ceramic import shape
from recon_node.ceramic.did import is_did
from recon_node.ceramic.errors import InvalidEventError, StreamIdError
from recon_node.ceramic.stream_id import METAMODEL, StreamId, StreamType
from recon_node.ipld import CID, MultibaseError, multibase

DEFAULT_SORT_KEY: Final = "model"
DAG_SORT_KEY: Final = "dag"

# A StreamID has about 40 bytes. What is remembered of strangers stays bounded.
_MAX_REMEMBERED: Final = 128

_REQUIRED: Final = frozenset({"controllers", "model"})
_TYPES: Final[dict[str, type]] = {
    "unique": bytes,
    "context": bytes,
    "shouldIndex": bool,
    "modelVersion": CID,
    DAG_SORT_KEY: bytes,
}
_OPTIONAL: Final = frozenset({"sep", *_TYPES}) - {DAG_SORT_KEY}


@dataclass(frozen=True, slots=True)
class InitHeader:
    """What an init event says about its stream.

    `sep_key` and `sep_value` are CIP-124's sort key and sort value, the latter as the string that
    EventIDs hash: a StreamID is written in base36, as are other bytes.
    """

    controller: str
    sep_key: str
    sep_value: str
    model: StreamId
    unique: bytes | None = None
    context: bytes | None = None
    should_index: bool | None = None
    model_version: CID | None = None

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Check the decoded header of an init event's payload.

        Raises:
            InvalidEventError: a field is missing, unknown or of a wrong type; not exactly one
                controller; `sep` names no field of the header.
        """
        is_dag = type(value) is dict and value.get("sep") == DAG_SORT_KEY
        optional = _OPTIONAL | {DAG_SORT_KEY} if is_dag else _OPTIONAL
        header = shape.fields(value, "the header", _REQUIRED, optional)
        for name, expected in _TYPES.items():
            if name in header:
                shape.of_type(header[name], expected, f"the header's {name!r}")
        controller = _controller(header["controllers"])
        sep_key = DEFAULT_SORT_KEY
        if "sep" in header:
            sep_key = shape.of_type(header["sep"], str, "the header's 'sep'")
        return cls(
            controller=controller,
            sep_key=sep_key,
            sep_value=_sort_value(header, sep_key, controller),
            model=_model(header["model"]),
            unique=header.get("unique"),
            context=header.get("context"),
            should_index=header.get("shouldIndex"),
            model_version=header.get("modelVersion"),
        )

    @property
    def stream_type(self) -> StreamType:
        """A model (its own model is the metamodel) or a document of a model."""
        return StreamType.MODEL if self.model == METAMODEL else StreamType.MODEL_INSTANCE


def _controller(value: Any) -> str:
    controllers = shape.of_type(value, list, "the header's 'controllers'")
    if len(controllers) != 1:
        raise InvalidEventError(f"a stream has exactly one controller, not {len(controllers)}")
    controller = shape.of_type(controllers[0], str, "the controller")
    if not is_did(controller):
        raise InvalidEventError(f"the controller {controller[:100]!r} is not a DID")
    return controller


def _model(value: Any) -> StreamId:
    try:
        return _remembered_model(shape.of_type(value, bytes, "the header's 'model'"))
    except StreamIdError as error:
        raise InvalidEventError(f"the header's 'model' is no StreamID: {error}") from None


def _sort_value(header: dict[str, Any], sep_key: str, controller: str) -> str:
    value = controller if sep_key == "controllers" else header.get(sep_key)
    if type(value) is bytes:
        return (_remembered_text if len(value) <= _MAX_REMEMBERED else _text)(value)
    if isinstance(value, str):
        return value
    raise InvalidEventError(
        f"the header's 'sep' names the sort key {sep_key[:100]!r}, but the header has no such "
        "field that could be a sort value"
    )


def _text(value: bytes) -> str:
    try:
        return multibase.encode(value, "base36")
    except MultibaseError as error:
        raise InvalidEventError(f"the sort value cannot be written: {error}") from None


# There are few models, and each of them stands in the header of every document.
_remembered_model = lru_cache(maxsize=1024)(StreamId.from_bytes)
_remembered_text = lru_cache(maxsize=1024)(_text)
