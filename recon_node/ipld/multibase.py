"""Multibase: bytes as text whose first character names the base.

Source: https://github.com/multiformats/multibase. The bases that Ceramic uses are implemented here
with the standard library: base64 for CAR files in the HTTP API, base32 for CIDs, base36 for
StreamIds, base58btc for did:key, base16 because it is common. All others go through the
`multiformats` package, 20 to 100 times slower. Decoding is strict: one text for each value, no
blanks, no wrong padding.

In base36 and base58, a text is one long number. It is read by halves, which takes n^1.6 steps for n
characters: 2 s for a CAR of 1 MB. In between, other threads get to run every few milliseconds.
"""

import base64
import binascii
from typing import Final

from recon_node.ipld.errors import MultibaseError

MAX_SLOW_TEXT: Final = 2048
"""Bytes that are written in a base other than 64 and 32, and characters that the slow package
reads: that takes quadratic time, and StreamIds, keys and CIDs are far shorter."""
MAX_NUMBER: Final = 1_600_000
"""Characters of a text in base36 or base58: an event's CAR has at most a million bytes."""
_SHORT: Final = 256
"""Characters of a number that are read one after the other."""
_SHORT_PRODUCT: Final = 400_000
"""Bits up to which numbers are multiplied at once, while all other threads wait: 20 ms."""

_MAX_SHOWN: Final = 40
"""Characters of a text that an error quotes."""

_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_INTEGER_ALPHABETS: Final = {"k": _BASE36, "z": _BASE58}
_DIGITS: Final = {
    code: {character: value for value, character in enumerate(alphabet)}
    for code, alphabet in _INTEGER_ALPHABETS.items()
}
_PAIRS: Final = {
    code: [one + other for one in alphabet for other in alphabet]
    for code, alphabet in _INTEGER_ALPHABETS.items()
}
"""Two digits are written at a time: dividing a long number is what takes time."""
_CODES: Final = {"base64": "m", "base64url": "u", "base32": "b", "base36": "k", "base58btc": "z"}


def encode(data: bytes, base: str = "base64") -> str:
    """Write `data` as multibase text in the base of that name (as in the multibase table).

    Raises:
        MultibaseError: the base is unknown, or the data is too long for a slow one.
    """
    if base == "base64":
        return "m" + binascii.b2a_base64(data, newline=False).decode().rstrip("=")
    if base == "base64url":
        return "u" + base64.urlsafe_b64encode(data).decode().rstrip("=")
    if base == "base32":
        return "b" + base64.b32encode(data).decode().rstrip("=").lower()
    if base == "base16":
        return "f" + data.hex()
    if len(data) > MAX_SLOW_TEXT:
        raise MultibaseError(f"{len(data)} bytes are too many for {base}: use base64")
    if base in ("base36", "base58btc"):
        return _encode_integer(data, _CODES[base])
    return _encode_other(data, base)


def decode(text: str, max_number: int = MAX_SLOW_TEXT) -> bytes:
    """Read multibase text of any known base.

    Args:
        text: the text.
        max_number: characters that it may have in base36 or base58; `MAX_NUMBER` for a CAR.

    Raises:
        MultibaseError: the text is empty or too long, its base unknown, or a character or padding
            wrong.
    """
    if not text:
        raise MultibaseError("empty text is not multibase: its first character names the base")
    code, body = text[0], text[1:]
    try:
        if code == "m":
            return _exactly(text, "base64", binascii.a2b_base64(_padded(body, 4)))
        if code == "u":
            return _exactly(text, "base64url", base64.urlsafe_b64decode(_padded(body, 4)))
        if code == "b":
            return _exactly(text, "base32", base64.b32decode(_padded(body, 8), casefold=True))
        if code == "f":
            return _exactly(text, "base16", binascii.a2b_hex(body))
        if len(text) > (max_number if code in _INTEGER_ALPHABETS else MAX_SLOW_TEXT):
            raise MultibaseError(
                f"{len(text)} characters are too many for the base {code!r}: use base64"
            )
        if code in _INTEGER_ALPHABETS:
            return _decode_integer(body, code)
    except MultibaseError:
        raise
    except ValueError as error:  # binascii.Error and UnicodeError are kinds of it
        raise MultibaseError(f"{_shown(text)} is not valid multibase: {error}") from None
    return _decode_other(text)


def _padded(body: str, group: int) -> str:
    return body + "=" * (-len(body) % group)


def _exactly(text: str, base: str, data: bytes) -> bytes:
    """Return `data` if it encodes to `text`; the library's decoders skip what they don't know."""
    if encode(data, base) != text:
        raise MultibaseError(f"{_shown(text)} is not valid {base}: wrong characters or padding")
    return data


def _encode_integer(data: bytes, code: str) -> str:
    zero, pairs = _INTEGER_ALPHABETS[code][0], _PAIRS[code]
    significant = data.lstrip(b"\0")
    number = int.from_bytes(significant, "big")
    digits = []
    while number:
        number, pair = divmod(number, len(pairs))
        digits.append(pairs[pair])
    text = "".join(reversed(digits)).lstrip(zero)
    return code + zero * (len(data) - len(significant)) + text


def _decode_integer(body: str, code: str) -> bytes:
    alphabet = _INTEGER_ALPHABETS[code]
    wrong = body.translate(dict.fromkeys(map(ord, alphabet)))
    if wrong:
        raise MultibaseError(
            f"{_shown(code + body)}: {wrong[0]!r} is not a digit of base {len(alphabet)}"
        )
    number = _number(body, _DIGITS[code], {_SHORT: len(alphabet) ** _SHORT})
    zeros = len(body) - len(body.lstrip(_INTEGER_ALPHABETS[code][0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _number(text: str, digits: dict[str, int], powers: dict[int, int]) -> int:
    """Read a number. `powers` has those of the base, by their exponent: `_SHORT` doubled often."""
    if len(text) <= _SHORT:
        number = 0
        for character in text:
            number = number * len(digits) + digits[character]
        return number
    size = _SHORT
    while 2 * size < len(text):
        if 2 * size not in powers:
            powers[2 * size] = _product(powers[size], powers[size])
        size *= 2
    high = _number(text[:-size], digits, powers)
    return _product(high, powers[size]) + _number(text[-size:], digits, powers)


def _product(one: int, other: int) -> int:
    """Multiply by Karatsuba's rule, as Python does, but not in one step."""
    half = max(one.bit_length(), other.bit_length()) // 2
    if min(one.bit_length(), other.bit_length()) <= max(half, _SHORT_PRODUCT):
        return one * other
    low = (1 << half) - 1
    a, b, c, d = one >> half, one & low, other >> half, other & low
    outer, inner = _product(a, c), _product(b, d)
    middle = _product(a + b, c + d) - outer - inner
    return (outer << 2 * half) + (middle << half) + inner


def _encode_other(data: bytes, base: str) -> str:
    from multiformats import multibase  # takes 60 ms to import

    try:
        return multibase.encode(data, base)
    except (KeyError, ValueError) as error:
        raise MultibaseError(f"cannot write {base}: {_reason(error)}") from None


def _decode_other(text: str) -> bytes:
    from multiformats import multibase

    try:
        base = multibase.from_str(text)
    except (KeyError, ValueError):
        raise MultibaseError(
            f"{_shown(text)} is not valid multibase: {text[0]!r} does not name a base"
        ) from None
    try:
        return base.decode(text)
    except (KeyError, ValueError):  # its message shows the library's objects
        raise MultibaseError(
            f"{_shown(text)} is not valid multibase: {text[0]!r} stands for "
            f"{base.name}, but the rest is not {base.name}"
        ) from None


def _reason(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")
