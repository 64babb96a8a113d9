"""Shards: a DAG cut into CAR files of a size that can be carried.

Source: "DAG Replication & Publishing Protocol", section "Shards". A shard is a CARv1 with some of
the blocks of a DAG, addressed by the codec 0x0202. `walk` goes through a DAG depth first, so that
a reader of the shards in order meets every block after one that links to it. The shard that has the
DAG's root names it; the others name the empty identity CID, as the shards of the protocol do.
Shards that others make may name any roots, or none.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import CID, IDENTITY, RAW, car, encode_varint, links

CAR: Final = 0x0202
"""The multicodec of CAR files."""

NO_ROOT: Final = CID(b"\x01\x55\x00\x00")

MAX_SHARDS_PER_APPEND: Final = 1000
"""Links of one append, which is one block: far below the size that peers accept."""


class ShardError(ValueError):
    """A DAG that cannot be cut as asked."""


@dataclass(frozen=True, slots=True)
class CarShard:
    """A part of a DAG: a CAR file, its CID and those of its blocks."""

    cid: CID
    car: bytes
    blocks: tuple[CID, ...]


def split(root: CID, blocks: Iterable[tuple[CID, bytes]], max_bytes: int) -> Iterator[CarShard]:
    """Cut blocks of the DAG below `root` into shards of at most `max_bytes`, lazily.

    The shards have the blocks in their order.

    Raises:
        ShardError: a block does not fit into a shard.
    """
    gathered: dict[CID, bytes] = {}
    roots = (root,)
    size = header = _header_size(roots)
    for cid, block in blocks:
        section = len(cid) + len(block)
        section += len(encode_varint(section))
        if gathered and size + section > max_bytes:
            yield _shard(roots, gathered)
            gathered = {}
        if not gathered:
            roots = (root,) if cid == root else (NO_ROOT,)
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
    return max_bytes - _header_size((cid,)) - len(cid) - len(encode_varint(max_bytes))


def walk(root: CID, read: Callable[[CID], bytes | None]) -> Iterator[tuple[CID, bytes]]:
    """Yield the blocks of a DAG, depth first, each once, without those inside identity CIDs.

    `read` returns the block of a CID, or None to leave it out; it is called once for each block.

    Raises:
        LinksError: the links of a block cannot be read.
    """
    left = [root]
    seen = {root}
    while left:
        cid = left.pop()
        block = None if cid.hash_code == IDENTITY else read(cid)
        if block is None:
            continue
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


def _header_size(roots: tuple[CID, ...]) -> int:
    return len(car.encode(roots, {}))


def _shard(roots: tuple[CID, ...], blocks: dict[CID, bytes]) -> CarShard:
    file = car.encode(roots, blocks)
    return CarShard(CID.of(CAR, file), file, tuple(blocks))
