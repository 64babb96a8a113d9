"""Checks that the values read from an event's blocks have the fields and types they must have.

Unknown fields are refused everywhere: a node that drops what it does not know cannot serve the
event again byte for byte, and whoever signed it meant something by them.
"""

from collections.abc import Set
from typing import Any, Final, TypeVar

from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, cid_head

T = TypeVar("T")

_BLOCK_HEAD: Final = cid_head(DAG_CBOR)
_EVENT_HEADS: Final = (_BLOCK_HEAD, cid_head(DAG_JOSE))
# Clients look for this sentence, which is ceramic-one's.
_NO_ROUND_TRIP: Final = (
    "Event bytes do not round-trip. This most likely means the event contains unexpected fields."
)
_TYPE_NAMES = {
    CID: "a link",
    bytes: "bytes",
    str: "a string",
    dict: "a map",
    list: "a list",
    bool: "a boolean",
}


def fields(value: Any, what: str, required: Set[str], optional: Set[str]) -> dict[str, Any]:
    """`value` as a map that has all required fields and none but these.

    Raises:
        InvalidEventError: it is not one. `what` names it for people: "the header".
    """
    if type(value) is not dict:
        raise InvalidEventError(f"{what} is {_kind(value)}, not a map")
    names = value.keys()
    if names == required:
        return value
    if missing := required - names:
        raise InvalidEventError(f"{what} lacks {_listed(missing)}")
    if unknown := names - required - optional:
        raise InvalidEventError(
            f"{what} has unknown fields, which are refused: {_listed(unknown)}. {_NO_ROUND_TRIP}"
        )
    return value


def of_type(value: Any, expected: type[T], what: str) -> T:
    """`value`, which must be exactly of that type (a link is no bytes, a boolean no number).

    Raises:
        InvalidEventError: it is not.
    """
    if type(value) is not expected:
        raise InvalidEventError(f"{what} is {_kind(value)}, not {_TYPE_NAMES[expected]}")
    return value


def event_cid(value: Any, what: str) -> CID:
    """`value` as the CID of an event: sha2-256 of DAG-CBOR or DAG-JOSE.

    Raises:
        InvalidEventError: it is not.
    """
    cid = of_type(value, CID, what)
    if not cid.startswith(_EVENT_HEADS):
        raise InvalidEventError(
            f"{what} is {cid}, which cannot be an event: those are DAG-CBOR (0x71) or DAG-JOSE "
            f"(0x85) with sha2-256, not codec {cid.codec:#x} with hash {cid.hash_code:#x}"
        )
    return cid


def block_cid(cid: CID, what: str) -> CID:
    """`cid`, which must be of a DAG-CBOR block, hashed with sha2-256.

    Raises:
        InvalidEventError: it is not.
    """
    if not cid.startswith(_BLOCK_HEAD):
        raise InvalidEventError(f"{what} {cid} must be DAG-CBOR (0x71) with sha2-256")
    return cid


def _kind(value: Any) -> str:
    return "missing" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


def _listed(names: Set[str]) -> str:
    return ", ".join(repr(name[:100]) for name in sorted(names)[:10])
