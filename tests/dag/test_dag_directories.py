"""Directories: the CIDs of kubo, with thousands of entries, symlinks, modes and times."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from support import vectors

from recon_node.dag.dag_source import open_source
from recon_node.dag.errors import DagError, UnixFsError
from recon_node.dag.file_tree import FileTree, Preserve, directory, name_hash
from recon_node.dag.unixfs import NodeType, UnixFs, UnixFsEntry, put_node
from recon_node.dag.unpack import unpack_dag
from recon_node.ipld import CID, RAW, dag_pb

DATA = vectors.DATA / "ipld"
FACTS = vectors.load("ipld/directories")


def entries(facts: dict[str, Any]) -> list[tuple[str, UnixFsEntry]]:
    contents = [b"x%d" % number for number in range(7)]
    trees = [UnixFsEntry(CID.of(RAW, content), 2, 2) for content in contents]
    return [(f"{at:0{facts['digits']}d}", trees[at % 7]) for at in range(facts["count"])]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for facts in FACTS["tree"]:
        path = root / facts["path"]
        if "symlink" in facts:
            path.symlink_to(facts["symlink"])
        elif "size" in facts:
            path.write_bytes(bytes(number % 251 for number in range(facts["size"])))
        else:
            path.mkdir()
    for facts in reversed(FACTS["tree"]):
        path = root / facts["path"]
        if "mode" in facts:
            path.chmod(int(facts["mode"], 8))
        os.utime(path, ns=(0, facts["mtime"]), follow_symlinks=False)
    return root


@pytest.mark.parametrize("facts", FACTS["large"], ids=lambda facts: str(facts["count"]))
def test_large_directories_have_the_cids_that_kubo_gives_them(facts: dict[str, Any]) -> None:
    nodes: dict[CID, bytes] = {}
    assert str(directory(entries(facts), nodes.__setitem__).cid) == facts["cid"]
    assert max(map(len, nodes.values())) <= 300_000


def test_a_directory_in_shards_is_read_back_with_all_its_entries(tmp_path: Path) -> None:
    facts = FACTS["large"][1]
    nodes: dict[CID, bytes] = {CID.of(RAW, b"x%d" % n): b"x%d" % n for n in range(7)}
    root = directory(entries(facts), nodes.__setitem__)
    unpack_dag(root.cid, nodes.__getitem__, tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == sorted(
        name for name, _ in entries(facts)
    )
    assert str(FileTree(tmp_path / "back").root) == facts["cid"]


def test_a_directory_in_shards_keeps_mode_and_time(tmp_path: Path) -> None:
    facts = FACTS["large_preserved"]
    (tmp_path / "large").mkdir()
    for name, _ in entries(facts):
        (tmp_path / "large" / name).write_bytes(b"x%d" % (int(name) % 7))
    for path in (*(tmp_path / "large").iterdir(), tmp_path / "large"):
        path.chmod(int(facts["mode"], 8))
        os.utime(path, ns=(0, facts["mtime"]))
    assert str(FileTree(tmp_path / "large", preserve=Preserve(True, True)).root) == facts["cid"]


@pytest.mark.parametrize("kept", FACTS["tree_cids"])
def test_trees_with_symlinks_have_the_cids_that_kubo_gives_them(tree: Path, kept: str) -> None:
    preserve = Preserve("mode" in kept.split(), "mtime" in kept.split())
    assert str(FileTree(tree, preserve=preserve).root) == FACTS["tree_cids"][kept]


def test_what_is_kept_comes_back(tree: Path, tmp_path: Path) -> None:
    source = FileTree(tree, preserve=Preserve(True, True))
    unpacked = unpack_dag(source.root, source.read, tmp_path / "back")
    assert (unpacked.files, unpacked.symlinks, unpacked.left_out()) == (7, 4, None)
    for facts in FACTS["tree"]:
        path = tmp_path / "back" / facts["path"]
        status = path.lstat()
        assert status.st_mtime_ns == facts["mtime"]
        if "symlink" in facts:
            assert str(path.readlink()) == facts["symlink"]
        else:
            assert stat.S_IMODE(status.st_mode) == int(facts["mode"], 8) & 0o777
        if "size" in facts:
            assert path.read_bytes() == (tree / facts["path"]).read_bytes()
    plain = FileTree(tmp_path / "back")
    assert str(plain.root) == FACTS["tree_cids"][""]


def test_what_other_programs_kept_is_restored(tmp_path: Path) -> None:
    source = open_source(DATA / "unixfs-dir-with-mode-mtime.car")
    back = tmp_path / "back"
    assert unpack_dag(source.root, source.read, back).left_out() is None
    stats = {path.relative_to(back): path.lstat() for path in back.rglob("*")}
    assert {
        str(path): (f"{status.st_mode:o}", status.st_mtime) for path, status in stats.items()
    } == {path: tuple(facts) for path, facts in FACTS["boxo"]["files"].items()}


def test_symlinks_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    nodes: dict[CID, bytes] = {}
    put = nodes.__setitem__
    links = [b"nul\0", b"", b"fine"]
    trees = [put_node((), UnixFs(NodeType.SYMLINK, target), put) for target in links]
    root = directory(zip("abc", trees, strict=True), put)
    unpacked = unpack_dag(root.cid, nodes.__getitem__, tmp_path / "back")
    left_out = unpacked.left_out()
    assert (unpacked.symlinks, left_out.count, set(left_out.first)) == (1, 2, {"a", "b"})


def test_a_draft_without_permissions_is_removed(tmp_path: Path) -> None:
    """Left by a process that was killed after it had set the permissions."""
    (tmp_path / ".back.unpacking/inner").mkdir(parents=True)
    (tmp_path / ".back.unpacking/inner/file").touch()
    (tmp_path / ".back.unpacking/inner/link").symlink_to("n" * 300)
    (tmp_path / ".back.unpacking/inner").chmod(0)
    (tmp_path / ".back.unpacking").chmod(0)
    unpack_dag(CID.of(RAW, b""), lambda cid: b"", tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


def test_sockets_and_fifos_are_left_out_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a").touch()
    plain = FileTree(tmp_path / "files")
    assert plain.left_out() is None
    os.mkfifo(tmp_path / "files/pipe")
    (tmp_path / "files/deep").mkdir()
    os.mkfifo(os.fsencode(tmp_path / "files/deep") + b"/\xff")
    source = FileTree(tmp_path / "files")
    left_out = source.left_out()
    assert left_out.count == 2
    assert "were not pushed" in left_out.what
    assert set(left_out.first) == {
        str(tmp_path / "files/pipe"),
        str(tmp_path / "files/deep") + "/\\xff",
    }
    with pytest.raises(DagError, match="pipe is neither a file nor a directory"):
        open_source(tmp_path / "files/pipe")


def test_a_symlink_that_is_pushed_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello\n")
    (tmp_path / "link").symlink_to("file")
    assert open_source(tmp_path / "link").root == open_source(tmp_path / "file").root


def test_nothing_is_written_through_a_symlink(tmp_path: Path) -> None:
    """A directory with a symlink and an entry of the same name is refused."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").symlink_to(tmp_path / "outside")
    (tmp_path / "tree/b").mkdir()
    (tmp_path / "tree/b/evil").touch()
    source = FileTree(tmp_path / "tree")
    node = dag_pb.decode(source.read(source.root))
    renamed = dag_pb.PbNode(
        tuple(dag_pb.PbLink(link.cid, "a", link.size) for link in node.links), node.data
    )
    block = dag_pb.encode(renamed)
    root = CID.of(0x70, block)
    with pytest.raises(DagError, match="two entries named 'a'"):
        unpack_dag(root, lambda cid: block if cid == root else source.read(cid), tmp_path / "x")
    assert not list((tmp_path / "outside").iterdir())


# https://github.com/spaolacci/murmur3, murmur3_test.go: the 64-bit hashes with the seed 0.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0x0000000000000000),
        ("hello", 0xCBD8A7B341BD9B02),
        ("hello, world", 0x342FAC623A5EBC8E),
        ("19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        ("The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_hashes_of_names(text: str, expected: int) -> None:
    assert name_hash(text) == expected.to_bytes(8, "big")


def test_names_with_the_same_hash_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recon_node.dag.file_tree.name_hash", lambda name: bytes(8))
    with pytest.raises(UnixFsError, match="several names with the hash of"):
        directory(entries(FACTS["large"][0]), lambda cid, block: None)
