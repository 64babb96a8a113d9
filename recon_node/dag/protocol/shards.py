"""Shards: a DAG cut into CAR files of a size that can be carried.

Source: "DAG Replication & Publishing Protocol", section "Shards". A shard is a CARv1 with some of
the blocks of a DAG, addressed by the codec 0x0202. `split` walks a DAG depth first, so that a
reader of the shards in order meets every block after one that links to it. The shard that has the
DAG's root names it; the others name the empty identity CID (as the empty shard of the protocol
does), because a CAR must name a root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from recon_node.dag.protocol.operations import Append
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    IDENTITY,
    RAW,
    CidError,
    DagCborError,
    DagPbError,
    car,
    dag_cbor,
    dag_pb,
    varint,
)

CAR: Final = 0x0202
"""The multicodec of CAR files."""

NO_ROOT: Final = CID(b"\x01\x55\x00\x00")

MAX_SHARDS_PER_APPEND: Final = 1000
"""Links of one append, which is one block: far below the size that peers accept."""


class ShardError(ValueError):
    """A DAG that cannot be cut as asked, or a block whose links cannot be read."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a DAG: a CAR file, its CID and those of its blocks."""

    cid: CID
    car: bytes
    blocks: tuple[CID, ...]


def split(root: CID, read: Callable[[CID], bytes], max_bytes: int) -> Iterator[Shard]:
    """Cut the DAG below `root` into shards of at most `max_bytes`, lazily.

    `read` returns the block of a CID; it is called once for each block.

    Raises:
        ShardError: a block does not fit into a shard, or its links cannot be read.
    """
    gathered: dict[CID, bytes] = {}
    roots = (root,)
    size = header = _header_size(roots)
    for cid, block in walk(root, read):
        section = len(cid) + len(block)
        section += len(varint.encode(section))
        if gathered and size + section > max_bytes:
            yield _shard(roots, gathered)
            gathered, roots = {}, (NO_ROOT,)
            size = header = _header_size(roots)
        if header + section > max_bytes:
            raise ShardError(
                f"the block {cid} does not fit into a shard of {max_bytes} bytes: at least "
                f"{header + section} are needed"
            )
        gathered[cid] = block
        size += section
    yield _shard(roots, gathered)


def block_room(max_bytes: int) -> int:
    """Return how large a block can be that fits into a shard of that size."""
    cid = CID.of(RAW, b"")
    return max_bytes - _header_size((cid,)) - len(cid) - len(varint.encode(max_bytes))


def walk(root: CID, read: Callable[[CID], bytes]) -> Iterator[tuple[CID, bytes]]:
    """Yield the blocks of a DAG, depth first, each once, without those inside identity CIDs.

    Raises:
        ShardError: the links of a block cannot be read.
    """
    left = [root]
    seen = {root}
    while left:
        cid = left.pop()
        if cid.hash_code == IDENTITY:
            continue
        block = read(cid)
        yield cid, block
        for link in reversed(links(cid, block)):
            if link not in seen:
                seen.add(link)
                left.append(link)


def appends(shards: Iterable[CID], prior: CID | None = None) -> list[Replica]:
    """Return replicas that add these shards to the state of `prior`, each on top of the last."""
    replicas: list[Replica] = []
    ordered = sorted(set(shards), key=str)
    for start in range(0, len(ordered), MAX_SHARDS_PER_APPEND):
        change = Append.of(ordered[start : start + MAX_SHARDS_PER_APPEND])
        replicas.append(Replica(prior, change))
        prior = replicas[-1].cid
    return replicas


def links(cid: CID, block: bytes) -> list[CID]:
    """Return the links of a block, in their order in it.

    Raises:
        ShardError: the block is not of the codec that its CID names, or the codec is unknown.
    """
    try:
        if cid.codec == RAW:
            return []
        if cid.codec == DAG_CBOR:
            return list(_links_of_value(dag_cbor.decode(block)))
        if cid.codec == DAG_JOSE:
            return _links_of_envelope(dag_cbor.decode(block))
        if cid.codec == DAG_PB:
            return [link.cid for link in dag_pb.decode(block).links]
    except (DagCborError, DagPbError) as error:
        raise ShardError(f"the links of {cid} cannot be read: {error}") from None
    raise ShardError(f"the links of {cid} cannot be read: the codec {cid.codec:#x} is unknown")


def _links_of_envelope(value: object) -> list[CID]:
    """The links of a signed envelope: DAG-JOSE has the payload's CID as bytes."""
    found = list(_links_of_value(value))
    payload = value.get("payload") if isinstance(value, dict) else None
    with suppress(CidError):
        if isinstance(payload, bytes) and not isinstance(payload, CID):
            found.insert(0, CID(payload))
    return found


def _links_of_value(value: object) -> Iterator[CID]:
    """The links in a decoded value. Not recursive, since the value may be deeply nested."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, CID):
            yield each
        elif isinstance(each, dict):
            left.extend(reversed(each.values()))
        elif isinstance(each, list):
            left.extend(reversed(each))


def _header_size(roots: tuple[CID, ...]) -> int:
    return len(car.encode(roots, {}))


def _shard(roots: tuple[CID, ...], blocks: dict[CID, bytes]) -> Shard:
    file = car.encode(roots, blocks)
    return Shard(CID.of(CAR, file), file, tuple(blocks))
