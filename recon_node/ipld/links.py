"""The links of a block, whatever its codec: which other blocks it names.

Blocks that others made are followed as they are. So this reads more than the codecs of this package
admit: in DAG-CBOR, text that is not UTF-8, numbers and lengths that are not in their shortest form,
keys in any order, and any depth. Links by CIDv0 become the CIDv1 of the same block.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from recon_node.ipld import dag_cbor, dag_pb
from recon_node.ipld.cid import CID, DAG_CBOR, DAG_JOSE, DAG_PB, IDENTITY, RAW, cid_of_block
from recon_node.ipld.errors import CidError, DagCborError, IpldError, LinksError

CBOR: Final = 0x51
JSON: Final = 0x0200
DAG_JSON: Final = 0x0129

_BYTES, _TEXT, _LIST, _MAP, _TAG, _OTHER = 2, 3, 4, 5, 6, 7
"""Major types of CBOR."""
_WITHIN_HEAD: Final = 24
"""A number below this is in the first byte of an item."""
_LENGTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
"""Bytes of the numbers that follow it."""
_LINK_TAG: Final = 42


def links(cid: CID, block: bytes) -> list[CID]:
    """Return the links of a block, in their order in it.

    In the place of an identity CID, it returns the links of the block that is inside it.

    Raises:
        LinksError: the block is not of the codec that its CID names, or the codec is unknown.
    """
    read = _READERS.get(cid.codec)
    if read is None:
        raise LinksError(f"the links of {cid} cannot be read: the codec {cid.codec:#x} is unknown")
    cids: list[CID] = []
    try:
        for raw in read(block):
            link = cid_of_block(raw)
            cids += links(link, link.digest) if link.hash_code == IDENTITY else [link]
    except LinksError:
        raise
    except (IpldError, ValueError, RecursionError) as error:
        raise LinksError(f"the links of {cid} cannot be read: {error}") from None
    return cids


def _of_dag_pb(block: bytes) -> Iterator[bytes]:
    return (link.cid for link in dag_pb.decode(block).links)


def _of_dag_cbor(block: bytes) -> Iterator[bytes]:
    at, items, is_link = 0, 1, False
    while items:
        items -= 1
        major, number, at = _head(block, at)
        if major in (_BYTES, _TEXT):
            value = block[at : at + number]
            at += number
            if at > len(block):
                raise DagCborError(f"not DAG-CBOR: {at - len(block)} bytes are missing at the end")
            if is_link:
                if major != _BYTES or not value.startswith(b"\0"):
                    raise DagCborError(f"not DAG-CBOR: no CID in the link before byte {at}")
                yield value[1:]
        elif is_link:
            raise DagCborError(f"not DAG-CBOR: no CID in the link before byte {at}")
        elif major in (_LIST, _MAP):
            items += number * (major - _LIST + 1)
        elif major == _TAG:
            items += 1
        is_link = major == _TAG and number == _LINK_TAG
    if at < len(block):
        raise DagCborError(f"not DAG-CBOR: {len(block) - at} bytes are left over at byte {at}")


def _head(block: bytes, at: int) -> tuple[int, int, int]:
    """The major type and the number of the item at `at`, and the offset after them."""
    if at >= len(block):
        raise DagCborError("not DAG-CBOR: the bytes end within a list or map")
    major, short = divmod(block[at], 32)
    if short < _WITHIN_HEAD:
        return major, short, at + 1
    size = _LENGTHS.get(short)
    if size is None:
        raise DagCborError(f"not DAG-CBOR: an item without a length at byte {at}")
    end = at + 1 + size
    return major, int.from_bytes(block[at + 1 : end], "big"), end


def _of_dag_jose(block: bytes) -> Iterator[bytes]:
    """The payload of a signed envelope is a CID as bytes, and counts as a link."""
    value = dag_cbor.decode(block)
    payload = value.get("payload") if isinstance(value, dict) else None
    if isinstance(payload, bytes) and not isinstance(payload, CID):
        with suppress(CidError):
            yield cid_of_block(payload)
    yield from _of_dag_cbor(block)


def _of_dag_json(block: bytes) -> Iterator[bytes]:
    left: list[Any] = [json.loads(block)]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            text = value.get("/")
            if len(value) == 1 and isinstance(text, str):
                yield CID.parse(text)
            else:
                left += reversed(value.values())


_READERS: Final[dict[int, Callable[[bytes], Iterator[bytes]]]] = {
    **dict.fromkeys((RAW, CBOR, JSON), lambda block: iter(())),
    DAG_PB: _of_dag_pb,
    DAG_CBOR: _of_dag_cbor,
    DAG_JOSE: _of_dag_jose,
    DAG_JSON: _of_dag_json,
}
