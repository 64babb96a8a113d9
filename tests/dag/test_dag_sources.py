"""CAR files and directories as DAGs, and back to disk: nothing is lost, nothing leads astray."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from dag_samples import Dag, contents, dags, make_dag, make_files
from hypothesis import given
from hypothesis import strategies as st

from recon_node.dag.dag_source import CarFile, FileTree, open_source
from recon_node.dag.errors import DagError
from recon_node.dag.protocol.shards import NO_ROOT, block_room, split, walk
from recon_node.dag.unixfs import CHUNK_SIZE, NodeType, UnixFs
from recon_node.dag.unpack import unpack_dag
from recon_node.ipld import CID, RAW, car, dag_cbor, encode_varint


@given(dags(), st.randoms(use_true_random=False))
def test_a_car_is_read_whatever_the_order_of_its_blocks(dag, rng):
    root, blocks = dag
    order = list(blocks)
    rng.shuffle(order)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "dag.car"
        path.write_bytes(car.encode([root], {cid: blocks[cid] for cid in order}))
        source = CarFile(path)
        assert source.root == root
        assert dict(walk(root, source.read)) == dict(walk(root, blocks.__getitem__))
        source.close()


def test_a_car_of_many_roots_needs_one_named(tmp_path: Path, rng: random.Random) -> None:
    first, blocks = make_dag(2, 10, rng)
    second, others = make_dag(2, 10, rng)
    path = tmp_path / "two.car"
    path.write_bytes(car.encode([first, second], {**blocks, **others}))
    with pytest.raises(DagError, match=f"names 2 roots; say which with --root: {first}, {second}"):
        CarFile(path)
    assert CarFile(path, second).root == second


CARS = Path(__file__).parent.parent / "data" / "ipld"


def pushed(source: CarFile | FileTree) -> dict[CID, bytes]:
    return dict(source.blocks())


@pytest.mark.parametrize("name", ["sample-unixfs-v2", "dup_roots", "dir_nonutf8"])
def test_cars_of_others_are_read(name: str) -> None:
    source = open_source(CARS / f"{name}.car")
    blocks = pushed(source)
    assert source.root in blocks
    assert all(cid.matches(block) for cid, block in blocks.items())
    assert source.left_out() is None


def test_a_damaged_car_is_never_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "latest.CAR").symlink_to(CARS / "corrupt-v2-header.car")
    for path in (CARS / "badheaderlength.car", tmp_path / "latest.CAR"):
        with pytest.raises(DagError, match="is not a CAR that can be read: "):
            open_source(path)


def test_a_car_without_roots_needs_its_root_named() -> None:
    with pytest.raises(DagError, match="names no root; say which block is the root"):
        open_source(CARS / "roots_empty.car")
    root = CID.parse("bafyreihl3jbqwutq7wz3etmeiw2zli3pziz3izkme2roqdcwmn4f4yugaa")
    assert len(pushed(open_source(CARS / "roots_empty.car", root))) == 2


def test_blocks_that_are_not_below_the_root_are_counted_and_named(tmp_path, rng):
    root, blocks = make_dag(2, 10, rng)
    other, others = make_dag(20, 10, rng)
    (tmp_path / "two").write_bytes(car.encode([root], {**others, **blocks}))
    source = open_source(tmp_path / "two")
    assert pushed(source) == blocks
    left_out = source.left_out()
    assert (left_out.count, len(left_out.first), left_out.first[0]) == (21, 10, str(other))
    assert "blocks of the file are not below the root and were not pushed" in left_out.what

    everything = open_source(tmp_path / "two", all_blocks=True)
    assert list(pushed(everything)) == [*blocks, *others]
    assert everything.left_out() is None


def test_a_part_of_a_dag_can_be_pushed_with_all_its_blocks(tmp_path, rng):
    root, blocks = make_dag(3, 10, rng)
    part = dict(list(blocks.items())[2:])
    (tmp_path / "part.car").write_bytes(car.encode([], part))
    with pytest.raises(DagError, match=f"lacks the block {root}"):
        pushed(open_source(tmp_path / "part.car", root))
    source = open_source(tmp_path / "part.car", root, all_blocks=True)
    [shard] = split(root, source.blocks(), 10_000)
    assert car.decode(shard.car).roots == (NO_ROOT,)
    assert set(shard.blocks) == set(part)


def test_a_root_inside_its_cid_with_other_blocks_is_an_error(tmp_path: Path) -> None:
    facts = json.loads((CARS.parent / "replica.json").read_text())["basic_shard"]
    path = tmp_path / "hello.car"
    path.write_bytes(bytes.fromhex(facts["car_hex"]))
    with pytest.raises(DagError, match=r"bafkqaaa, .* none of its 1 block would be pushed; say"):
        open_source(path)
    [shard] = split(NO_ROOT, open_source(path, all_blocks=True).blocks(), 10_000)
    assert str(shard.cid) == facts["cid"]
    [block] = car.decode(shard.car).blocks
    assert list(pushed(open_source(path, block))) == [block]

    linking = dag_cbor.encode([block])
    root = CID(b"\x01\x71\x00" + encode_varint(len(linking)) + linking)
    path.write_bytes(car.encode([root], {}))
    with pytest.raises(DagError, match="such a root cannot have links here"):
        open_source(path)


def test_options_of_cars_are_refused_for_other_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DagError, match="is not a CAR"):
        open_source(tmp_path / "file", FILE)
    with pytest.raises(DagError, match="is not a CAR"):
        open_source(tmp_path / "file", all_blocks=True)


def test_blocks_that_are_not_there_or_not_right_are_reported(tmp_path, rng):
    root, blocks = make_dag(2, 50, rng)
    lacking, changed = list(blocks)[1:]
    path = tmp_path / "part.car"
    path.write_bytes(car.encode([root], {root: blocks[root], changed: rng.randbytes(50)}))
    source = open_source(path)
    assert source.read(root) == blocks[root]
    with pytest.raises(DagError, match=f"part.car lacks the block {lacking}"):
        source.read(lacking)
    with pytest.raises(DagError, match=f"are not the block {changed}"):
        source.read(changed)


@pytest.mark.parametrize("cut", [1, 70])
def test_a_car_that_was_cut_short_is_refused(tmp_path: Path, rng: random.Random, cut: int) -> None:
    root, blocks = make_dag(1, 50, rng)
    path = tmp_path / "short.car"
    path.write_bytes(car.encode([root], blocks)[:-cut])
    with pytest.raises(DagError, match=r"short.car is not a CAR that can be read"):
        CarFile(path)


# kubo's own test data: test/sharness/t0116-gateway-cache/README.md, made by `ipfs add -Qrw
# --cid-version 1 root2` (kubo 0.21); the empty ones are in every IPFS node.
KUBO = {
    ".": "bafybeib3ffl2teiqdncv3mkz4r23b5ctrwkzrrhctdbne6iboayxuxk5ui",
    "root2": "bafybeih2w7hjocxjg6g2ku25hvmd53zj7og4txpby3vsusfefw5rrg5sii",
    "root2/root3": "bafybeiawdvhmjcz65x5egzx4iukxc72hg4woks6v6fvgyupiyt3oczk5ja",
    "root2/root3/root4": "bafybeifq2rzpqnqrsdupncmkmhs3ckxxjhuvdcbvydkgvch3ms24k5lo7q",
    "root2/root3/root4/index.html": "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am",
}


def test_directories_have_the_cids_that_kubo_gives_them(tmp_path: Path) -> None:
    wrapped = tmp_path / "wrapped"
    (wrapped / "root2/root3/root4").mkdir(parents=True)
    (wrapped / "root2/root3/root4/index.html").write_text("hello\n")
    assert {name: str(open_source(wrapped / name).root) for name in KUBO} == KUBO
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").touch()
    assert [str(FileTree(tmp_path / name).root) for name in ("empty", "nothing")] == [
        "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
    ]


SIZES = (0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE)


def test_a_directory_comes_back_as_it_was(tmp_path: Path, rng: random.Random) -> None:
    files = make_files(tmp_path / "files", rng, *SIZES)
    (files / "twin").write_bytes((files / "file 2.bin").read_bytes())
    (files / "an empty one").mkdir()
    (files / ".hidden ünï").write_text("x")
    source = FileTree(files)
    assert unpack_dag(source.root, source.read, tmp_path / "back").files == len(SIZES) + 2
    assert contents(tmp_path / "back") == contents(files)
    assert FileTree(tmp_path / "back").root == source.root


def test_a_single_file_comes_back_as_it_was(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "file").write_bytes(rng.randbytes(CHUNK_SIZE + 5))
    source = open_source(tmp_path / "file")
    assert unpack_dag(source.root, source.read, tmp_path / "back").files == 1
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("size", [1024, 100_000])
def test_small_shards_hold_a_large_file(tmp_path: Path, rng: random.Random, size: int) -> None:
    files = make_files(tmp_path / "files", rng, 60_000, 0, CHUNK_SIZE + 1)
    source = open_source(files, max_block=block_room(size))
    shards = list(split(source.root, source.blocks(), size))
    assert max(len(shard.car) for shard in shards) <= size
    blocks: dict[CID, bytes] = {}
    for shard in shards:
        blocks |= car.decode(shard.car).blocks
    unpack_dag(source.root, blocks.__getitem__, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(files)
    assert source.root != open_source(files).root


def test_a_file_that_is_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    source = FileTree(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"after!")
    with pytest.raises(DagError, match="the file has been changed"):
        source.read(source.root)


FILE = CID.of(RAW, b"content")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc/passwd", "a\0b", "..\\x"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    dag = Dag()
    root = dag.node(UnixFs(NodeType.DIRECTORY), [("a", FILE), (name, FILE)])
    with pytest.raises(DagError, match="it could lead elsewhere"):
        unpack_dag(root, dag.__getitem__, tmp_path / "back")
    assert not list(tmp_path.iterdir())


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    dag = Dag()
    root = dag.node(UnixFs(NodeType.DIRECTORY), [("a", FILE), ("a", FILE)])
    with pytest.raises(DagError, match="a directory has two entries named 'a'"):
        unpack_dag(root, dag.__getitem__, tmp_path / "back")


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DagError, match="already exists; not overwriting"):
        unpack_dag(FILE, {FILE: b"content"}.__getitem__, tmp_path / "there")
    assert (tmp_path / "there").is_symlink()


def test_a_directory_in_parts_is_read(tmp_path: Path) -> None:
    """As HAMT: entries have their place in hexadecimal before their names; so have the parts."""
    hamt, dag = UnixFs(NodeType.HAMT, hash_type=0x22, fanout=256), Dag()
    file = dag.raw(b"content")
    part = dag.node(hamt, [("3Fb", file), ("40c", file)])
    root = dag.node(hamt, [("00a", file), ("A7", part)])
    assert unpack_dag(root, dag.__getitem__, tmp_path / "back").files == 3
    assert contents(tmp_path / "back") == dict.fromkeys("abc", b"content")


def test_a_file_whose_content_is_shorter_than_it_says_is_refused(tmp_path: Path) -> None:
    dag = Dag()
    root = dag.node(
        UnixFs(NodeType.FILE, file_size=8, block_sizes=(8,)), [("", dag.raw(b"content"))]
    )
    with pytest.raises(DagError, match="should have 8 bytes of content, and has 7"):
        unpack_dag(root, dag.__getitem__, tmp_path / "back")
    assert not list(tmp_path.iterdir())
