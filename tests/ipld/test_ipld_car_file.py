"""CAR files of both versions: the same blocks as other implementations read, or a refusal."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ipld import CID, RAW, CarError, IpldError, car, cid_of_block
from recon_node.ipld.car import BEGINNING_SIZE, looks_like_car, read_layout, sections

DATA = vectors.DATA / "ipld"
CARS = vectors.load("ipld/cars")["cars"]
INTACT = [name for name, facts in CARS.items() if "refused" not in facts]
DAMAGED = {
    "badheaderlength.car": "its header claims 216830324832 bytes; the limit is 1048576",
    "badsectionlength.car": "the block at byte 18 claims 216830324832 bytes, 46 are left",
    "corrupt-v2-header.car": "at byte 11, places its CARv1 at byte 18446744073709550254",
    "sample-corrupt-pragma.car": "the header at byte 0 claims 18 bytes, 15 are left",
    "sample-rootless-v42.car": "a CAR of version 42",
}
BLOCKS = {CID.of(RAW, body): body for body in (b"one", b"two", b"")}
[ROOT, *_] = BLOCKS
V1 = car.encode([ROOT], BLOCKS)


def read(path: Path) -> tuple[tuple[CID, ...], list[tuple[CID, bytes]]]:
    with path.open("rb") as file:
        layout = read_layout(file)
        places = list(sections(file, layout))
    data = path.read_bytes()
    return layout.roots, [(cid, data[at : at + size]) for cid, at, size in places]


def version_2(inner: bytes, *, offset: int = 51, size: int | None = None) -> bytes:
    numbers = (offset, len(inner) if size is None else size, 7)
    header = bytes(16) + b"".join(number.to_bytes(8, "little") for number in numbers)
    return bytes.fromhex("0aa16776657273696f6e02") + header + inner


@pytest.mark.parametrize("name", INTACT)
def test_roots_and_blocks_are_those_that_others_read(name: str) -> None:
    roots, blocks = read(DATA / name)
    facts = CARS[name]
    assert list(roots) == [cid_of_block(CID.parse(root)) for root in facts["roots"]]
    assert [str(cid) for cid, _ in blocks] == facts["blocks"]
    assert all(cid.matches(block) for cid, block in blocks)


@pytest.mark.parametrize("name", DAMAGED)
def test_what_others_refuse_is_refused_with_the_place_in_the_file(name: str) -> None:
    assert DAMAGED.keys() == CARS.keys() - set(INTACT)
    with pytest.raises(CarError, match=DAMAGED[name]):
        read(DATA / name)


@pytest.mark.parametrize("name", [*INTACT, "sample-rootless-v42.car", "sample-corrupt-pragma.car"])
def test_cars_are_distinguished_from_other_files_by_their_first_bytes(name: str) -> None:
    assert looks_like_car((DATA / name).read_bytes()[:BEGINNING_SIZE])


@pytest.mark.parametrize("text", [b"", b"the roots of version 1", b'{"version": 1, "roots": []}'])
def test_text_about_roots_is_not_a_car(text: bytes) -> None:
    assert not looks_like_car(text)


def test_the_index_and_the_padding_of_version_2_are_ignored(tmp_path: Path) -> None:
    body = version_2(bytes(4096) + V1 + b"an index", offset=51 + 4096, size=len(V1))
    (tmp_path / "two").write_bytes(body)
    assert read(tmp_path / "two") == ((ROOT,), list(BLOCKS.items()))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (version_2(V1)[:40], "ends within its header, at byte 40"),
        (version_2(V1, offset=50), "places its CARv1 at byte 50"),
        (version_2(V1, size=0), "with 0 bytes"),
        (version_2(V1, size=len(V1) + 1), f"with {len(V1) + 1} bytes; the file has"),
        (version_2(V1, size=len(V1) - 1), f"the block at byte {51 + len(V1) - 37} claims 36 bytes"),
        (version_2(V1[:20]), "the header at byte 51 claims"),
        (version_2(version_2(V1)), "a CAR of version 2; expected a CARv1"),
        (V1 + b"\0", f"the bytes end within the varint at byte {len(V1) + 1}"),
        (V1 + b"\x03\x01\x55\x12", f"no CID at byte {len(V1) + 1}"),
        (V1 + b"\xff" * 9, f"the varint at byte {len(V1)} is longer"),
    ],
)
def test_damage_is_named_with_its_place_in_the_file(tmp_path, data, complaint):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(CarError, match=complaint):
        read(tmp_path / "bad")


@given(st.sampled_from([V1, version_2(V1)]), st.data())
def test_a_changed_byte_is_never_a_crash(data: bytes, draw: st.DataObject) -> None:
    changed = bytearray(data)
    changed[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "car").write_bytes(changed)
        try:
            roots, blocks = read(Path(directory) / "car")
        except IpldError:
            return
    assert all(isinstance(root, CID) for root in (*roots, *dict(blocks)))


def test_a_cid_v0_in_header_and_section_is_the_cid_v1_of_the_block(tmp_path: Path) -> None:
    v0 = CID.parse("QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn")  # the empty directory
    (tmp_path / "v0").write_bytes(car.encode([v0], {v0: b"\x0a\x02\x08\x01"}))
    v1 = CID.parse("bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354")
    assert read(tmp_path / "v0") == ((v1,), [(v1, b"\x0a\x02\x08\x01")])
