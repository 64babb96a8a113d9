"""Strict readers for what strangers write: the fields of blocks, and JSON.

Unknown fields are refused everywhere: a node that drops what it does not know cannot serve the
event again byte for byte, and its signer meant something by them.

What `json.loads` makes of a text depends on more than the text: on the depth of the call stack, and
on the environment. If one process accepted an event that another cannot read, nodes would not agree
on the set. So JSON is bounded here, far below those limits (RFC 8259; as in I-JSON, RFC 7493, names
are unique within an object).
"""

import json
import re
from collections.abc import Set
from typing import Any, Final, NoReturn, TypeVar

from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, cid_head

T = TypeVar("T")

MAX_BRACKETS: Final = 100
"""Opening brackets in a JSON text, including those in strings: real texts have one or two."""

MIN_INTEGER: Final = -(2**63)
"""The least integer in a payload, as for ceramic-one, which buffers its values. Links, lists of
anchors and other blocks do not matter: nothing there is kept as a number."""
_LOW_INTEGER: Final = re.compile(rb"\x3b[\x80-\xff]")
"""How such an integer begins in DAG-CBOR."""
_LONG_NEGATIVE: Final = b"\x3b"
"""Its first byte, which most blocks do not have: to look for it takes a tenth of the time."""

_MAX_LISTED: Final = 10
"""Field names that an error lists."""
_MAX_NAME: Final = 100
"""Characters of each of them."""
_NONE: Final[Set[str]] = frozenset()
_BLOCK_HEAD: Final = cid_head(DAG_CBOR)
_EVENT_HEADS: Final = (_BLOCK_HEAD, cid_head(DAG_JOSE))
# Clients look for this sentence, which is ceramic-one's.
_NO_ROUND_TRIP: Final = (
    "Event bytes do not round-trip. This most likely means the event contains unexpected fields."
)
_TYPE_NAMES: Final = {
    CID: "a link",
    bytes: "bytes",
    str: "a string",
    dict: "a map",
    list: "a list",
    bool: "a boolean",
    int: "an integer",
}


def fields(
    value: Any, what: str, required: Set[str] = _NONE, optional: Set[str] = _NONE
) -> dict[str, Any]:
    """Return `value`, a map with all required fields and no others than these.

    `what` names the value in errors: "the header".

    Raises:
        InvalidEventError: not a map, or a field is missing or unknown.
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
    """Return `value`, which must be exactly of that type: a link is not bytes here.

    Raises:
        InvalidEventError: it is of another type.
    """
    if type(value) is not expected:
        raise InvalidEventError(f"{what} is {_kind(value)}, not {_TYPE_NAMES[expected]}")
    return value


def event_cid(value: Any, what: str) -> CID:
    """Return `value`, which must be the CID of an event: sha2-256 of DAG-CBOR or DAG-JOSE.

    Raises:
        InvalidEventError: it is anything else.
    """
    cid = of_type(value, CID, what)
    if not cid.startswith(_EVENT_HEADS):
        raise InvalidEventError(
            f"{what} is {cid}, which cannot be an event: those are DAG-CBOR (0x71) or DAG-JOSE "
            f"(0x85) with sha2-256, not codec {cid.codec:#x} with hash {cid.hash_code:#x}"
        )
    return cid


def block_cid(cid: CID, what: str) -> CID:
    """Return `cid`, which must be of a DAG-CBOR block, hashed with sha2-256.

    Raises:
        InvalidEventError: another codec or hash.
    """
    if not cid.startswith(_BLOCK_HEAD):
        raise InvalidEventError(f"{what} {cid} must be DAG-CBOR (0x71) with sha2-256")
    return cid


def check_payload(block: bytes, value: Any) -> None:
    """Check the integers of a payload, which is decoded already.

    Raises:
        InvalidEventError: one is less than `MIN_INTEGER`.
    """
    if _LONG_NEGATIVE not in block or _LOW_INTEGER.search(block) is None:  # nearly always
        return
    left = [value]
    while left:
        item = left.pop()
        if type(item) is int and item < MIN_INTEGER:
            raise InvalidEventError(f"the payload has the integer {item}; the least is -2^63")
        if type(item) is dict:
            left += item.values()
        elif type(item) is list:
            left += item


def json_value(data: bytes) -> Any:
    """Decode a JSON text in UTF-8; all numbers become `float`.

    Raises:
        ValueError: not JSON, a repeated field in an object, or more than `MAX_BRACKETS`.
    """
    if data.count(b"{") + data.count(b"[") > MAX_BRACKETS:
        raise ValueError(f"it has more than {MAX_BRACKETS} objects and arrays")
    return json.loads(
        data.decode(),
        object_pairs_hook=_without_duplicates,
        parse_int=float,  # of any length
        parse_constant=_refuse_constant,
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("it has a field twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    return "missing" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


def _listed(names: Set[str]) -> str:
    return ", ".join(repr(name[:_MAX_NAME]) for name in sorted(names)[:_MAX_LISTED])
