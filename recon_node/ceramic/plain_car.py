"""Quick checks of an event's CAR, for those who have very many of them.

Written without avoidable objects and calls. They say yes to nearly all CARs for which `parse_event`
would; the rest is parsed, which takes ten times as long.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car

_DIGEST: Final = slice(-32, None)
"""The sha2-256 digest of a CID; before it stand the CID's version, codec and hash code."""
_CODES: Final = slice(None, -32)
_MAX_ONE_BYTE_VARINT: Final = 127
_MAX_TWO_BYTE_VARINT: Final = 16383
_MAX_THREE_BYTE_VARINT: Final = 2097151


def _header_parts(codec: int) -> tuple[bytes, bytes, int]:
    """The header of an event's CAR before and after the root, and the length of the root."""
    root = CID.of(codec, b"")
    header = car.encode([root], {})
    at = header.index(root)
    return header[:at], header[at + len(root) :], len(root)


_HEADERS: Final = {
    length: (before, after, len(before) + length + len(after))
    for before, after, length in map(_header_parts, (DAG_JOSE, DAG_CBOR))
}
"""By the length of the root's CID: the header before and after it, and the header's size."""
_CID_HEADS: Final = frozenset(CID.of(codec, b"")[_CODES] for codec in (DAG_CBOR, DAG_JOSE))


def is_plainly_sound(stored: bytes, cid: bytes) -> bool:
    """Return True for nearly all sound CARs; on False, `car_fault` has to parse the CAR.

    Every byte is checked: the header is the one that follows from the CID, each block matches its
    CID, and some block names each CID but the root. Written without avoidable objects and calls,
    because it runs for every event that is read.
    """
    try:
        before, after, at = _HEADERS[len(cid)]
        if stored[:at] != before + cid + after:
            return False
        end, has_root = len(stored), False
        while at < end:
            size, start = stored[at], at + 1
            if size > _MAX_ONE_BYTE_VARINT:
                size, start = size & 127 | stored[start] << 7, start + 1
                if size > _MAX_TWO_BYTE_VARINT:
                    size = size & _MAX_TWO_BYTE_VARINT | stored[start] << 14
                    start += 1
                    if not _MAX_TWO_BYTE_VARINT < size <= _MAX_THREE_BYTE_VARINT:
                        return False
            block = start + (36 if stored[start + 1] == DAG_CBOR else 37)  # DAG-JOSE: two bytes
            name, at = stored[start:block], start + size
            if sha256(stored[block:at]).digest() != name[_DIGEST] or name[_CODES] not in _CID_HEADS:
                return False
            if name == cid:
                has_root = True
            elif stored.count(name) < 2:
                return False
    except LookupError:
        return False
    return has_root and at == end
