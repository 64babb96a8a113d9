"""Unsigned varints: little-endian base 128, seven bits a byte, the high bit means "more".

Source: https://github.com/multiformats/unsigned-varint. A number has exactly one encoding, the
shortest, of at most nine bytes (63 bits).
"""

from typing import Final

from recon_node.ipld.errors import VarintError

MAX_BYTES: Final = 9
"""Bytes of a varint."""
MAX_VALUE: Final = 2**63 - 1
MAX_BYTES_64: Final = 10
"""Bytes of a number of 64 bits, which some read."""
_BITS_64: Final = 64

# In each byte, 0x80 says that more bytes follow and 0x7F are the seven bits of the number. They are
# written out because a lookup of a name would be a good part of the cost.


def encode(value: int) -> bytes:
    """Encode `value` in its shortest form.

    Raises:
        VarintError: `value` is negative or does not fit in 63 bits.
    """
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 < value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if not 0 <= value <= MAX_VALUE:
        raise VarintError(f"{value} is not an unsigned varint: it must be from 0 to 2^63 - 1")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(
    data: bytes | bytearray | memoryview, offset: int = 0, max_bytes: int = MAX_BYTES
) -> tuple[int, int]:
    """Read the varint at `offset`; return its value and the offset after it.

    It has at most `max_bytes`: `MAX_BYTES`, or `MAX_BYTES_64` for any number of 64 bits.

    Raises:
        VarintError: the bytes end within it, it is too long, or not in its shortest form.
    """
    # Nearly all have one byte or two, and there are several in every block of a CAR.
    if 0 <= offset < len(data) - 1:
        first = data[offset]
        if first < 0x80:
            return first, offset + 1
        second = data[offset + 1]
        if 0 < second < 0x80:
            return first & 0x7F | second << 7, offset + 2
    return _decode_any(data, offset, max_bytes)


def _decode_any(
    data: bytes | bytearray | memoryview, offset: int, max_bytes: int = MAX_BYTES
) -> tuple[int, int]:
    if offset < 0:
        raise VarintError(f"a varint cannot start at the negative offset {offset}")
    value = 0
    window = data[offset : offset + max_bytes]
    for index, byte in enumerate(window):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index:
                raise VarintError(f"the varint at byte {offset} is not in its shortest form")
            if value >> _BITS_64:
                raise VarintError(f"the varint at byte {offset} does not fit in 64 bits")
            return value, offset + index + 1
    if len(window) < max_bytes:
        raise VarintError(f"the bytes end within the varint at byte {offset}")
    raise VarintError(f"the varint at byte {offset} is longer than {max_bytes} bytes")
