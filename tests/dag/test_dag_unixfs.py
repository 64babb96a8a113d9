"""UnixFS: nodes as others write them, and trees as go-unixfs lays them out."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.dag import unixfs
from recon_node.dag.errors import UnixFsError
from recon_node.dag.unixfs import (
    CHUNK_SIZE,
    MAX_LINKS,
    Attributes,
    FileLayout,
    NodeType,
    UnixFs,
    UnixFsEntry,
    balanced,
)
from recon_node.ipld import CID, DAG_PB, RAW, dag_pb
from recon_node.ipld.dag_pb import PbLink, PbNode


def leaf(number: int) -> UnixFsEntry:
    data = number.to_bytes(4)
    return UnixFsEntry(CID.of(RAW, data), len(data), len(data))


def go_balanced(leaves: Sequence[UnixFsEntry]) -> CID:
    """The layout as boxo's ipld/unixfs/importer/balanced does it: top down, node by node."""
    left = iter(leaves)
    total = len(leaves)
    taken = 0

    def take() -> UnixFsEntry:
        nonlocal taken
        taken += 1
        return next(left)

    def close(children: list[UnixFsEntry]) -> UnixFsEntry:
        sizes = tuple(child.content for child in children)
        data = unixfs.encode(UnixFs(NodeType.FILE, file_size=sum(sizes), block_sizes=sizes))
        block = dag_pb.encode(
            PbNode(tuple(PbLink(child.cid, "", child.total) for child in children), data)
        )
        cid = CID.of(DAG_PB, block)
        return UnixFsEntry(cid, sum(sizes), len(block) + sum(child.total for child in children))

    def fill(children: list[UnixFsEntry], depth: int) -> UnixFsEntry:
        while len(children) < MAX_LINKS and taken < total:
            children.append(take() if depth == 1 else fill([], depth - 1))
        return close(children)

    root = take()
    depth = 1
    while taken < total:
        root = fill([root], depth)
        depth += 1
    return root.cid


@pytest.mark.parametrize(
    "count", [1, 2, MAX_LINKS, MAX_LINKS + 1, 2 * MAX_LINKS, MAX_LINKS**2 + 3 * MAX_LINKS + 5]
)
def test_trees_are_laid_out_as_go_does(count: int) -> None:
    leaves = [leaf(number) for number in range(count)]
    nodes: dict[CID, bytes] = {}
    tree = balanced(leaves, nodes.__setitem__)
    assert tree.cid == go_balanced(leaves)
    assert tree.content == 4 * count
    assert tree.total == 4 * count + sum(map(len, nodes.values()))
    assert [leaf.cid for leaf in leaves] == list(_leaves(tree.cid, nodes))


@given(st.integers(256, 300_000))
def test_a_layout_fits_into_its_blocks(size: int) -> None:
    layout = FileLayout.within(size)
    assert layout.chunk <= size < max(2 * layout.chunk, size + 1 if size >= CHUNK_SIZE else 0)
    largest = [UnixFsEntry(leaf(0).cid, 2**54, 2**54)] * layout.links
    nodes: dict[CID, bytes] = {}
    balanced(largest, nodes.__setitem__, layout.links)
    [node] = nodes.values()
    assert len(node) <= size
    assert layout.links >= 2
    assert (layout == FileLayout()) is (size >= CHUNK_SIZE)


def _leaves(cid: CID, nodes: dict[CID, bytes]) -> Iterator[CID]:
    if cid.codec == RAW:
        yield cid
        return
    for link in dag_pb.decode(nodes[cid]).links:
        yield from _leaves(link.cid, nodes)


@given(
    st.builds(
        UnixFs,
        st.sampled_from(NodeType),
        st.binary(max_size=50),
        st.none() | st.integers(0, 2**40),
        st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
        st.none() | st.just(0x22),
        st.none() | st.integers(0, 1024),
        st.builds(
            Attributes,
            st.none() | st.integers(0, 0o7777),
            st.none() | st.integers(-(2**63) * 10**9, 2**63 * 10**9 - 1),
        ),
    )
)
def test_data_is_read_as_it_was_written(value: UnixFs) -> None:
    assert unixfs.decode(unixfs.encode(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(UnixFsError):
        assert isinstance(unixfs.decode(data).type, NodeType)


@pytest.mark.parametrize(
    ("time", "mtime"),
    [
        ("0805", 5 * 10**9),
        ("0805150a000000", 5 * 10**9 + 10),
        ("08ffffffffffffffffff01", -(10**9)),
        ("", None),
        ("150a000000", None),
        ("080515ffffffff", None),  # more than a second
        ("08051500000000", None),
        ("0805ff", None),
    ],
)
def test_a_directory_in_parts_names_its_fanout_and_its_time(time: str, mtime: int | None) -> None:
    """Type 5, a bitmap of one byte, hashType murmur3 (0x22), fanout 256, mode 0o644, mtime."""
    data = bytes.fromhex("08051201012822308002" + "38a403" + f"42{len(time) // 2:02x}" + time)
    attributes = Attributes(0o644, mtime)
    assert unixfs.decode(data) == UnixFs(
        NodeType.HAMT, b"\x01", hash_type=0x22, fanout=256, attributes=attributes
    )


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the type is missing"),
        (b"\x08\x09", "9 is not a valid NodeType"),
        (b"\x08\x02\x12\x05ab", "the bytes end within a field"),
        (b"\x08\x02\x0d\x00\x00\x00\x00", "^not UnixFS: a field of the wire type 5"),
        (b"\x08", "not UnixFS"),
    ],
)
def test_invalid_unixfs_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(UnixFsError, match=complaint):
        unixfs.decode(data)
