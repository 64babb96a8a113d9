"""Multibase: bytes as text whose first character names the base.

Source: https://github.com/multiformats/multibase. The bases that Ceramic uses are implemented here
with the standard library: base64 for CAR files in the HTTP API, base32 for CIDs, base36 for
StreamIds, base58btc for did:key, base16 because it is common. Texts in other bases are read as
those: base32z, for one, is base32 with another alphabet. The `multiformats` package writes them,
and reads what is left (proquint), 20 to 100 times slower. Decoding is strict, without blanks and
wrong padding: one text for each value, but for the case of letters where the base has one.

In base10, base36 and base58, a text is one long number. It is read by halves, which takes n^1.6
steps for n characters: 2 s for a CAR of 1 MB. In between, other threads get to run every few
milliseconds.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

from recon_node.ipld.errors import INSTALL_ALL, MultibaseError

MAX_SLOW_TEXT: Final = 2048
"""Bytes that are written in a base other than 64 and 32, and characters that the slow package
reads: that takes quadratic time, and StreamIds, keys and CIDs are far shorter."""
MAX_NUMBER: Final = 1_600_000
"""Characters of a text in base36 or base58: an event's CAR has at most a million bytes. In base10,
which takes more characters for them, half as many again."""
_SHORT: Final = 256
"""Characters of a number that are read one after the other."""
_SHORT_PRODUCT: Final = 400_000
"""Bits up to which numbers are multiplied at once, while all other threads wait: 20 ms."""

_MAX_SHOWN: Final = 40
"""Characters of a text that an error quotes."""

BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_INTEGER_ALPHABETS: Final = {"9": "0123456789", "k": BASE36, "z": _BASE58}
_BASE58_DIGITS: Final = bytes.maketrans(_BASE58.encode(), bytes(range(len(_BASE58))))
_PAIRS: Final = {
    code: [one + other for one in alphabet for other in alphabet]
    for code, alphabet in _INTEGER_ALPHABETS.items()
}
"""Two digits are written at a time: dividing a long number is what takes time."""
_CODES: Final = {"base64": "m", "base64url": "u", "base32": "b", "base36": "k", "base58btc": "z"}
BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"
_BASE32_HEX: Final = "0123456789abcdefghijklmnopqrstuv"
_BASE32_Z: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
_TWINS: Final = {
    "c": ("b", 8, str.maketrans(BASE32, BASE32)),
    "v": ("b", 1, str.maketrans(_BASE32_HEX, BASE32)),
    "t": ("b", 8, str.maketrans(_BASE32_HEX, BASE32)),
    "h": ("b", 1, str.maketrans(_BASE32_Z, BASE32)),
    "Z": ("z", 1, str.maketrans(_BASE58[:9] + _BASE58[33:] + _BASE58[9:33], _BASE58)),
    "M": ("m", 4, None),
    "U": ("u", 4, None),
}
"""By code: the base that differs in its digits or padding alone, the characters to which texts are
padded, and the digit of that base for each."""
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DIGITS_AT_ONCE: Final = 64
_SHORT_BASE32: Final = _DIGITS_AT_ONCE * 5 // 8
"""Bytes of short data, as CIDs are."""
_BASE64_TO_32: Final = bytes.maketrans(_BASE64[:32].encode(), BASE32.encode())


def _spreading() -> Iterator[tuple[int, int, int]]:
    """Yield the steps that turn digits of 5 bits into digits of 6: masks, and how far to move.

    In each step, of every group of digits the upper half moves up, by a bit for each of the lower.
    """
    half = _DIGITS_AT_ONCE // 2
    while half:
        group = (1 << 5 * half) - 1
        lower = sum(group << 12 * half * at for at in range(_DIGITS_AT_ONCE // 2 // half))
        yield lower << 5 * half, lower, half
        half //= 2


_SPREADING: Final = tuple(_spreading())
_LAST_IN_BASE64: Final = tuple(map(frozenset, (["", *_BASE64], [], _BASE64[::16], _BASE64[::4])))
"""The last digits that a text may have, by how many follow its last group of four: the bits that
fill up the last byte are zero."""
_IN_ANY_CASE: Final = frozenset("fFbBcCvVtTkK")
"""Codes of bases whose letters mean the same in either case. The code itself names the case."""


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
        if len(data) <= _SHORT_BASE32:
            return _encode_short_base32(data)
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
        max_number: characters that it may have in base36 or base58, of base10 half as many again;
            `MAX_NUMBER` for a CAR.

    Raises:
        MultibaseError: the text is empty or too long, its base unknown, or a character or padding
            wrong.
    """
    if not text:
        raise MultibaseError("empty text is not multibase: its first character names the base")
    if text[0] in _IN_ANY_CASE and text.isascii():
        text = text.lower()
    code, body = text[0], text[1:]
    try:
        if code == "m":
            return _decode_base64(text, body)
        if code == "u":
            return _exactly(text, "base64url", base64.urlsafe_b64decode(_padded(body, 4)))
        if code == "b":
            return _exactly(text, "base32", base64.b32decode(_padded(body, 8), casefold=True))
        if code == "f":
            return _exactly(text, "base16", binascii.a2b_hex(body))
        if code in _TWINS:
            return _decode_twin(text, max_number)
        if code in "07":
            return _decode_bits(text, 1 if code == "0" else 3)
        longest = max_number if code in _INTEGER_ALPHABETS else MAX_SLOW_TEXT
        if len(text) > (longest * 3 // 2 if code == "9" else longest):
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


def _decode_base64(text: str, body: str) -> bytes:
    """Read the digits `body` of a text. To write them again (`_exactly`) takes twice as long."""
    if body[-1:] in _LAST_IN_BASE64[len(body) % 4]:
        with suppress(binascii.Error):
            return binascii.a2b_base64(_padded(body, 4), strict_mode=True)
    raise MultibaseError(f"{_shown(text)} is not valid base64: wrong characters or padding")


def _exactly(text: str, base: str, data: bytes) -> bytes:
    """Return `data` if it encodes to `text`; the library's decoders skip what they don't know."""
    if encode(data, base) != text:
        raise MultibaseError(f"{_shown(text)} is not valid {base}: wrong characters or padding")
    return data


def _decode_twin(text: str, max_number: int) -> bytes:
    """Read a text in a base that differs from a fast one in digits or padding alone."""
    code, group, digits = _TWINS[text[0]]
    body = text[1:].rstrip("=") if group > 1 else text[1:]
    if _padded(body, group) != text[1:]:
        raise MultibaseError(f"{_shown(text)} is not valid multibase: wrong padding")
    if digits is not None:
        _check_digits(text[0] + body, digits)
        body = body.translate(digits)
    if code in _INTEGER_ALPHABETS:
        return decode(code + body, max_number)
    try:
        return decode(code + body)
    except MultibaseError:  # it quotes another text than was given
        raise MultibaseError(
            f"{_shown(text)} is not valid multibase: wrong characters, or unused bits that are set"
        ) from None


def _check_digits(text: str, digits: Iterable[int]) -> None:
    wrong = text[1:].translate(dict.fromkeys(digits))
    if wrong:
        raise MultibaseError(f"{_shown(text)} is not valid multibase: it has {wrong[0]!r}")


def _decode_bits(text: str, size: int) -> bytes:
    """Read base2 or base8, whose digits have `size` bits; bits that fill up the last are zero."""
    body = text[1:]
    _check_digits(text, range(ord("0"), ord("0") + (1 << size)))
    bits = len(body) * size
    number, unused = int(body or "0", 1 << size), bits % 8
    if unused >= size or number & ((1 << unused) - 1):
        raise MultibaseError(f"{_shown(text)} is not valid multibase: its last bits mean nothing")
    return (number >> unused).to_bytes(bits // 8, "big")


def _encode_short_base32(data: bytes) -> str:
    """Write base32 as a translation of base64, which C writes: a CID in a third of the time."""
    number = int.from_bytes(data.ljust(_SHORT_BASE32, b"\0"), "big")
    for upper, lower, bits in _SPREADING:
        number = (number & upper) << bits | number & lower
    digits = binascii.b2a_base64(number.to_bytes(_DIGITS_AT_ONCE * 6 // 8, "big"), newline=False)
    return "b" + digits[: (len(data) * 8 + 4) // 5].translate(_BASE64_TO_32).decode()


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
    if body.strip(alphabet):  # something is not a digit
        _check_digits(code + body, map(ord, alphabet))
    base = len(alphabet)
    number = _number(body.encode(), base, {})
    zeros = len(body) - len(body.lstrip(alphabet[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _number(digits: bytes, base: int, powers: dict[int, int]) -> int:
    """Return a number. `powers` has those of the base, by exponent: `_SHORT` doubled often."""
    if len(digits) <= _SHORT:
        if base <= len(BASE36):  # thirty times as fast
            return int(digits or b"0", base)
        number = 0
        for digit in digits.translate(_BASE58_DIGITS):
            number = number * base + digit
        return number
    powers, size = powers or {_SHORT: base**_SHORT}, _SHORT
    while 2 * size < len(digits):
        if 2 * size not in powers:
            powers[2 * size] = _product(powers[size], powers[size])
        size *= 2
    high = _number(digits[:-size], base, powers)
    return _product(high, powers[size]) + _number(digits[-size:], base, powers)


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


def _need_library(reason: str) -> None:
    if find_spec("multiformats") is None:
        raise MultibaseError(f"{reason} without the package multiformats: {INSTALL_ALL}")


def _encode_other(data: bytes, base: str) -> str:
    _need_library(f"cannot write {base}")
    from multiformats import multibase  # takes 60 ms to import

    try:
        return multibase.encode(data, base)
    except (KeyError, ValueError) as error:
        raise MultibaseError(f"cannot write {base}: {_reason(error)}") from None


def _decode_other(text: str) -> bytes:
    _need_library(f"{_shown(text)} is not in a base that can be read")
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
