"""Looking into a DAG: directories, files, and what cannot be shown."""

from pathlib import Path

import pytest

from recon_node.dag.dag_service import MAX_BYTES, MAX_ENTRIES, MAX_TEXT, Browser, DagEntry
from recon_node.dag.dag_source import open_source
from recon_node.dag.errors import DagError
from recon_node.dag.file_tree import directory
from recon_node.dag.unixfs import UnixFsEntry
from recon_node.ipld import CID, DAG_CBOR, RAW, dag_cbor, dag_pb
from recon_node.ipld.dag_pb import PbLink, PbNode

Blocks = dict[CID, bytes]


def test_a_directory_is_listed_and_its_files_begin_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    long = "ä€𝄞" * 200_000  # in several leaves, cut within a character
    (root / "deep" / "er" / "long.txt").write_text(long)
    (root / "bytes").write_bytes(b"\xff\x00" * 10)
    (root / "none").write_bytes(b"")
    (root / "link").symlink_to("deep/er")
    source = open_source(root)

    def look(*path: str) -> DagEntry:
        return Browser(source.read).look(source.root, path)

    top = look()
    assert top.kind == "directory"
    assert [entry.name for entry in top.entries] == ["bytes", "deep", "link", "none"]
    file = look("deep", "er", "long.txt")
    assert (file.kind, file.size, file.is_cut) == ("file", len(long.encode()), True)
    assert long.startswith(file.text)
    assert MAX_TEXT - 4 < len(file.text.encode()) <= MAX_TEXT
    others = {name: look(name) for name in ("bytes", "none", "link")}
    assert [name for name, other in others.items() if other.is_cut] == []
    texts = {name: other.text for name, other in others.items()}
    assert texts == {"bytes": None, "none": "", "link": "deep/er"}
    for path, reason in (
        (("deep", "no"), "no entry 'no' in /deep"),
        (("none", "x"), "not a directory"),
    ):
        with pytest.raises(DagError, match=reason):
            look(*path)


@pytest.mark.parametrize("count", [1, MAX_ENTRIES, MAX_ENTRIES + 1, 2 * MAX_ENTRIES + 500])
def test_of_a_large_directory_the_first_entries_are_listed_and_all_are_found(count: int) -> None:
    blocks: Blocks = {}
    leaf = UnixFsEntry(CID.of(RAW, b"x"), 1, 1)
    blocks[leaf.cid] = b"x"
    names = [f"{number:0200d}" for number in range(count)]
    root = directory([(name, leaf) for name in names], blocks.__setitem__).cid
    view = Browser(blocks.__getitem__).look(root, ())
    assert {entry.name for entry in view.entries} <= set(names)
    assert len(view.entries) == min(count, MAX_ENTRIES)
    assert view.is_cut == (count > MAX_ENTRIES)
    for name in (names[0], names[-1]):
        assert Browser(blocks.__getitem__).look(root, (name,)).text == "x"


def test_a_name_that_is_not_utf_8_is_shown_as_text() -> None:
    blocks: Blocks = {}
    leaf = UnixFsEntry(CID.of(RAW, b"x"), 1, 1)
    name = b"\xff\xfe.txt".decode(errors="surrogateescape")
    root = directory([(name, leaf)], blocks.__setitem__).cid
    entry = Browser(blocks.__getitem__).look(root, ())
    assert [shown.name for shown in entry.entries] == ["\ufffd\ufffd.txt"]


def test_other_data_is_shown_as_it_is() -> None:
    value = {"a": [1, CID.of(RAW, b"x")]}
    block = dag_cbor.encode(value)
    cid = CID.of(DAG_CBOR, block)
    view = Browser({cid: block}.__getitem__).look(cid, ())
    assert (view.kind, view.value, view.size) == ("data", value, len(block))


def test_what_one_answer_reads_is_bounded() -> None:
    """A file whose leaves are empty, and a shard that leads to itself by other shards."""
    blocks: Blocks = {}
    empty = dag_pb.encode(PbNode((), b"\x08\x02"))
    blocks[CID.of(0x70, empty)] = empty
    many = dag_pb.encode(PbNode((PbLink(CID.of(0x70, empty)),) * 10_000, b"\x08\x02"))
    root = CID.of(0x70, many)
    blocks[root] = many
    reads: list[CID] = []

    def read(cid: CID) -> bytes:
        reads.append(cid)
        return blocks[cid]

    with pytest.raises(DagError, match=f"more than {MAX_BYTES:,} bytes"):
        Browser(read).look(root, ())
    assert len(reads) <= MAX_BYTES // 4096 + 1
