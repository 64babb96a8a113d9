"""Writing messages of `/ceramic/recon/1.2.0` as bytes. messages.py has their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from recon_node.ipld import varint
from recon_node.recon.coded.messages import (
    AGREED,
    FINGERPRINT,
    MORE_BYTES,
    ONE_BYTE,
    SAYS,
    Estimate,
    Flag,
    Gaps,
    Has,
    Message,
    has_ids,
)
from recon_node.recon.keys.ranges import common_prefix
from recon_node.recon.keys.sketch import Ids


def encode_message(message: Message) -> bytes:
    """Encode a message as the bytes of one frame."""
    coded, parts = _encode_coded(message)
    flags, at = 0, len(parts)
    before = b""
    if message.key_range is not None:
        flags |= Flag.RANGE
        before, upper = message.key_range
        parts += [_front_code(b"", before), _front_code(before, upper)]
    if message.closing is not None:
        flags |= Flag.CLOSING
        parts.append(message.closing)
    if message.left_out is not None:
        flags |= Flag.LEFT_OUT
        parts += [varint.encode(message.left_out.number), message.left_out.digest]
    if message.verdict is not None:
        flags |= message.verdict.value
    if message.goes_on:
        flags |= Flag.GOES_ON
    parts.insert(at, bytes((flags,)))
    _write_gaps(parts, before, message.gaps)
    return bytes((coded,)) + b"".join(parts)


def _encode_coded(message: Message) -> tuple[int, list[bytes]]:
    """Return the flags of the first byte, and what they are about."""
    flags, parts = 0, list[bytes]()
    if message.count is not None:
        flags |= Has.COUNT
        parts.append(varint.encode(message.count))
    if message.estimate is not None:
        flags |= Has.ESTIMATE
        parts.append(_encode_estimate(message.estimate))
    if message.symbols is not None:
        flags |= Has.SYMBOLS
        sums, checks, counts = message.symbols
        parts.append(varint.encode(len(sums)))
        parts += [sums.astype("<u8").tobytes(), checks.astype("<u4").tobytes(), counts.tobytes()]
    if has_ids(message.listed):
        flags |= Has.IDS
        parts.append(varint.encode(len(message.listed)))
        for ids, wanted in message.listed:
            parts += [_encode_ids(ids), _encode_ids(wanted)]
    if message.salt is not None:
        flags |= Has.SALT
        parts.append(message.salt)
    return flags, parts


def _encode_estimate(estimate: Estimate) -> bytes:
    table, bounds, hints = estimate
    shared = shared_by(bounds)
    head = bounds[0][:shared] if bounds else b""
    rests = [varint.encode(len(bound) - shared) + bound[shared:] for bound in bounds]
    number = varint.encode(len(bounds)) + varint.encode(shared)
    return b"".join([table, number, head, *rests, *hints])


def shared_by(bounds: Sequence[bytes]) -> int:
    """Return how many bytes all of some bounds begin with, which ascend."""
    return common_prefix(bounds[0], bounds[-1]) if bounds else 0


def _encode_ids(ids: Ids) -> bytes:
    return varint.encode(len(ids)) + ids.astype("<u8").tobytes()


def _write_gaps(parts: list[bytes], before: bytes, gaps: Gaps) -> None:
    """Append the bytes of some gaps, the first of which starts at the bound ``before``.

    This and reading them (reader.py) take most of the time of a message: the usual cases of
    ``_front_code`` and of its counterpart are written out in the loops.
    """
    for upper, say, body in gaps.columns():
        shared = common_prefix(before, upper)
        head, size = shared * SAYS + say, len(upper) - shared
        if head < MORE_BYTES and size < MORE_BYTES:
            parts += (ONE_BYTE[head], ONE_BYTE[size], upper[shared:])
        else:
            parts.append(_front_code(before, upper, say, SAYS))
        if say is FINGERPRINT or say is AGREED:
            parts.append(body)  # type: ignore[arg-type]
        else:
            _write_keys(parts, before, body)  # type: ignore[arg-type]
        before = upper


def _write_keys(parts: list[bytes], before: bytes, keys: tuple[bytes, ...]) -> None:
    """Append the number of some keys, and the keys. Most are as long as the key before."""
    parts.append(varint.encode(len(keys)))
    size_before = number_before = 0
    for key in keys:
        size, number = len(key), _from_bytes(key)
        if size == size_before:
            shared = size - (((number ^ number_before).bit_length() + 7) >> 3)
        else:
            shared = common_prefix(before, key)
        if size < MORE_BYTES:
            parts += (ONE_BYTE[shared], ONE_BYTE[size - shared], key[shared:])
        else:
            parts.append(_front_code(before, key))
        before, size_before, number_before = key, size, number


def _front_code(before: bytes, string: bytes, below: int = 0, radix: int = 1) -> bytes:
    """Write the length shared with the string before (radix * length + below), and the rest."""
    shared = common_prefix(before, string)
    head, size = shared * radix + below, len(string) - shared
    return varint.encode(head) + varint.encode(size) + string[shared:]


_from_bytes: Final = int.from_bytes
