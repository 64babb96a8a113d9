"""DAG-JSON as it is written (https://ipld.io/specs/codecs/dag-json/spec/).

A link is `{"/": CID}`, and bytes are `{"/": {"bytes": base64}}`. `encode` writes one text for a
value: keys are sorted, there are no blanks, and floats are written as JavaScript does, always
recognisable as such.
"""

import base64
import json
from decimal import Decimal
from typing import Any, Final

from recon_node.ipld.cid import CID

_LONGEST_NUMBER: Final = 21
"""Digits before the point, at most, in a number without an exponent."""
_MOST_ZEROS: Final = -6
"""Zeros behind the point, negated, that such a number never has before its first digit."""


def encode(value: Any) -> bytes:
    """Write a value of DAG-CBOR, nested as deeply as that allows, as DAG-JSON."""
    return _text(value).encode()


def as_json(value: Any) -> Any:
    """Return a value of DAG-CBOR as plain JSON; links and bytes as DAG-JSON has them."""
    return json.loads(json.dumps(value, default=default))


def default(value: Any) -> Any:
    """Return a link or bytes as DAG-JSON has them; for `json.dumps(default=...)`.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, CID):
        return {"/": str(value)}
    if isinstance(value, bytes):
        return {"/": {"bytes": _base64(value)}}
    raise TypeError(f"{type(value).__name__} is not a DAG-CBOR value")


def number_text(number: float) -> str:
    """Write a number as JavaScript does (ECMA-262, Number::toString): 0.00005, 1e-7, 1e+21."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int), "DAG-CBOR has neither infinity nor NaN"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent  # the number is 0.text times 10 to this
    if text == "0":
        return text
    if 0 < point <= _LONGEST_NUMBER:
        text = text.ljust(point, "0")
        text = f"{text[:point]}.{text[point:]}".removesuffix(".")
    elif _MOST_ZEROS < point <= 0:
        text = f"0.{'0' * -point}{text}"
    else:
        text = f"{text[0]}.{text[1:]}".removesuffix(".") + f"e{point - 1:+}"
    return f"-{text}" if sign else text


def _text(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{_quoted(key)}:{_text(value[key])}" for key in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, CID):
        return f'{{"/":"{value}"}}'
    if isinstance(value, bytes):
        return f'{{"/":{{"bytes":"{_base64(value)}"}}}}'
    return _float_text(value) if isinstance(value, float) else _quoted(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=")


def _float_text(value: float) -> str:
    """A float that is read back as one; zero keeps its sign."""
    text = number_text(value) if value else repr(value)
    return text if "." in text or "e" in text else f"{text}.0"


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
