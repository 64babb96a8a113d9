"""Values of the tables as text and as JSON."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from recon_node.base.terminal import shown
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ipld import CID, CidError
from recon_node.streams.json_values import BudgetError, JsonPatchError, measure

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LEVELS = 257  # of JSON: earlier versions had content of 256 levels, in its state
_MAX_EXPONENT = 400
"""Of a decimal; floats go up to 308. Databases refuse larger ones."""


def as_dicts(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows by the names of their columns; maps are dicts, also if they are empty."""
    dicts: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="lossy")
    return dicts


def show(value: Any) -> Any:
    """Convert a value to one that JSON can represent.

    CIDs, StreamIDs, DIDs and JSON are decoded, and other bytes become hex. Decimals stay exact, for
    `to_json`. NaN and the infinities become text, as in Spark.
    """
    if isinstance(value, bytes):
        return _show_bytes(value)
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) for item in value):  # a map in Arrow
            return {_key(show(name)): show(item) for name, item in value}
        return [show(item) for item in value]
    if isinstance(value, dict):
        return {_key(show(name)): show(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return value
    return str(value)


def to_json(value: Any) -> str:
    """Write a value of `show` as JSON on one line, with every digit of a decimal."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(to_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {to_json(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def to_text(value: Any) -> str:
    """Write a value of `show` for a terminal: a list or an object with one entry per line.

    Control characters are escaped, because the content is untrusted.
    """
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return shown(value, lines=True)
    if isinstance(value, list):
        return "\n".join(map(_entry, value))
    if isinstance(value, dict):
        return "\n".join(f"{shown(str(name))}: {_entry(item)}" for name, item in value.items())
    return to_json(value)


def load_json(text: str) -> Any:
    """Parse JSON so that `to_json` writes its numbers unchanged; too deep or large, it is text."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        measure(value, len(text) * 3, _MAX_LEVELS)
    except (RecursionError, JsonPatchError, ArithmeticError):  # exponents beyond 18 digits
        return text
    return value


def _entry(value: Any) -> str:
    return to_json(value) if isinstance(value, list | dict) else to_text(value)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else to_json(name)


def _show_bytes(value: bytes) -> Any:
    try:
        return str(CID(value))
    except CidError:
        pass
    try:
        return str(StreamId.from_bytes(value))
    except StreamIdError:
        pass
    try:
        if value.startswith(b"{"):
            return _strangers_json(value)
        if value.startswith(b"did:"):
            return value.decode()
    except (ValueError, ArithmeticError, RecursionError, BudgetError):
        pass
    return "0x" + value.hex()


def _strangers_json(data: bytes) -> Any:
    """Parse JSON that every other program can read, too: strangers choose the bytes of headers.

    Raises:
        ValueError, ArithmeticError, RecursionError, BudgetError: it is not.
    """
    value = json.loads(data, parse_float=_decimal, parse_constant=_decimal)
    measure(value, len(data) * 3, _MAX_LEVELS)
    json.dumps(value, default=str, ensure_ascii=False).encode()  # no half of a surrogate pair
    return value


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite() or abs(value.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"{text[:20]} is not a number of 64 bits")
    return value
