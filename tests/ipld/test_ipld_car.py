"""CARv1: what is written is read back, and nothing else is."""

import hashlib
from contextlib import suppress
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    RAW,
    Car,
    CarError,
    VarintError,
    car,
    dag_cbor,
    encode_varint,
)

BLOCK = dag_cbor.encode({"hello": "world"})
ROOT = CID.of(DAG_CBOR, BLOCK)
HEADER = {"roots": [ROOT], "version": 1}
LAX_HEADER = dag_cbor.encode(HEADER).replace(b"\xa2", b"\xb8\x02", 1)
IDENTITY_CID = CID(b"\x01\x55\x00\x03abc")

block_sets = st.dictionaries(
    st.builds(lambda codec, data: (codec, data), st.sampled_from([RAW, DAG_JOSE]), st.binary()),
    st.none(),
    min_size=1,
    max_size=8,
).map(lambda keys: {CID.of(codec, data): data for codec, data in keys})


def section(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def with_header(header: object) -> bytes:
    return section(dag_cbor.encode(header)) + section(ROOT + BLOCK)


@given(block_sets, st.data())
def test_written_and_read_back(blocks: dict[CID, bytes], draw: st.DataObject) -> None:
    """Roots may be missing, be named twice, or not be in the file."""
    roots = tuple(draw.draw(st.lists(st.sampled_from([*blocks, ROOT]), max_size=3)))
    decoded = car.decode(car.encode(roots, blocks))
    assert decoded == Car(roots, blocks)
    assert list(decoded.blocks) == list(blocks)
    assert all(decoded.block(cid) == block for cid, block in blocks.items())


@given(block_sets)
def test_every_truncation_within_a_section_is_refused(blocks: dict[CID, bytes]) -> None:
    roots = list(blocks)[-1:]
    data = car.encode(roots, blocks)
    whole = {len(car.encode(roots, dict(islice(blocks.items(), n)))) for n in range(len(blocks))}
    for size in set(range(len(data))) - whole:
        with pytest.raises(CarError):
            car.decode(data[:size])


@given(block_sets, st.data())
def test_a_changed_bit_never_passes_for_the_same(blocks, draw):
    """It is refused, or names another block: the hash covers the bytes but not the codec."""
    data = bytearray(car.encode(list(blocks)[:1], blocks))
    header_end = len(section(dag_cbor.encode({"roots": list(blocks)[:1], "version": 1})))
    position = draw.draw(st.integers(header_end, len(data) - 1))
    data[position] ^= 1 << draw.draw(st.integers(0, 7))
    try:
        decoded = car.decode(bytes(data))
    except CarError:
        return
    assert decoded.blocks.keys() != blocks.keys()
    assert [cid.digest for cid in decoded.blocks] == [
        hashlib.sha256(block).digest() for block in decoded.blocks.values()
    ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (with_header({"roots": [ROOT], "version": 2}), "version 2; expected a CARv1"),
        # the fixed pragma that every CARv2 starts with
        (bytes.fromhex("0aa16776657273696f6e02") + bytes(40), "version 2; expected a CARv1"),
        (with_header({"version": 1}), "`roots` and `version` only"),
        (with_header({"roots": [ROOT]}), "has no version"),
        (with_header({"roots": [ROOT], "version": True}), "has no version"),
        (with_header({"roots": [ROOT], "version": 1, "extra": 0}), "`roots` and `version` only"),
        (with_header({"roots": ROOT, "version": 1}), "`roots` and `version` only"),
        (with_header({"roots": [bytes(ROOT)], "version": 1}), "its roots must be CIDs"),
        (with_header([]), "has no version"),
        (section(b"\xff") + section(ROOT + BLOCK), "its header is not strict DAG-CBOR"),
        (section(LAX_HEADER) + section(ROOT + BLOCK), "its header is not strict DAG-CBOR"),
        (with_header(HEADER) + b"\x00", "broken CAR"),
        (with_header(HEADER) + section(b"junk"), "broken CAR"),
        (with_header(HEADER) + b"\x80", "end within"),
        (with_header(HEADER) + section(ROOT + b"other bytes"), "does not match its CID"),
        (with_header(HEADER) + section(ROOT[:20]), "end within the CID"),
        (with_header(HEADER) + section(ROOT[:20]) + bytes(50), "shorter than its CID"),
        (with_header(HEADER) + section(b"\x12\x20" + bytes(32) + b"x"), "does not match its CID"),
        (encode_varint(2**62) + b"x", r"claims \d+ bytes, 1 are left"),
        (with_header(HEADER) + encode_varint(2**62) + b"x", r"claims \d+ bytes, 1 are left"),
        (with_header(HEADER) + section(b"\x01\x71\x22\x08" + bytes(8)), "cannot check a block"),
    ],
)
def test_refusals(data: bytes, complaint: str) -> None:
    with pytest.raises(CarError, match=complaint):
        car.decode(data)


def test_a_cid_v0_names_the_block_of_its_cid_v1() -> None:
    node = CID.of(DAG_PB, b"")
    data = car.encode([ROOT], {ROOT: BLOCK}) + section(node[2:])
    assert car.decode(data) == Car((ROOT,), {ROOT: BLOCK, node: b""}, is_exact=False)


def test_a_block_is_restored_only_to_what_its_cid_says() -> None:
    data = car.encode([ROOT], {ROOT: BLOCK[:-1] + b"!"})
    restored = car.decode(data, lambda block: BLOCK)
    assert (restored.blocks, restored.is_exact) == ({ROOT: BLOCK}, False)
    for wrong in (None, BLOCK + b"!"):
        with pytest.raises(CarError, match="does not match its CID"):
            car.decode(data, lambda block, wrong=wrong: wrong)  # type: ignore[misc]


def test_an_identity_cid_brings_its_block_along() -> None:
    bare = car.decode(car.encode([IDENTITY_CID], {}))
    assert bare.block(IDENTITY_CID) == b"abc"
    written = car.decode(car.encode([IDENTITY_CID], {IDENTITY_CID: b"abc"}))
    assert written.block(IDENTITY_CID) == b"abc"
    with pytest.raises(CarError, match="does not match"):
        car.decode(car.encode([IDENTITY_CID], {IDENTITY_CID: b"abd"}))
    assert bare.block(ROOT) is None


sections_of_car = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=6)


@given(sections_of_car, st.sampled_from([DAG_CBOR, DAG_JOSE, RAW, 0x70]))
def test_without_repeats_it_is_written_as_it_was_read(bodies: list[bytes], codec: int) -> None:
    sections = [CID.of(codec, body) + body for body in bodies]
    header = dag_cbor.encode({"roots": [CID.of(codec, bodies[0])], "version": 1})
    data = section(header) + b"".join(section(part) for part in sections)
    decoded = car.decode(data)
    assert decoded.is_exact == (len(set(bodies)) == len(bodies))
    assert decoded.blocks == {CID.of(codec, body): body for body in bodies}
    assert (car.encode(decoded.roots, decoded.blocks) == data) == decoded.is_exact


@pytest.mark.parametrize("codec", [DAG_CBOR, RAW])
def test_headers_have_one_form(codec: int) -> None:
    """Every header that differs in a byte, and every one that is cut; that of nearly all CARs is
    read in a shorter way."""
    header = section(dag_cbor.encode({"roots": [CID.of(codec, BLOCK)], "version": 1}))
    assert car.read_header(header) == ((CID.of(codec, BLOCK),), len(header))
    changed = [
        header[:at] + bytes([value]) + header[at + 1 :]
        for at in range(len(header))
        for value in {0, 1, 0x12, 0x20, 0x55, 0x71, 0x80, 0x85, 0xFF, *range(0x18, 0x28)}
    ]
    for data in (*changed, *(header[:size] for size in range(len(header)))):
        with suppress(CarError, VarintError):
            roots, end = car.read_header(data)
            assert car.encode(roots, {}) == data[:end]


@pytest.mark.parametrize(
    "roots", [[ROOT], [], [ROOT, IDENTITY_CID], [CID(b"\x12\x20" + bytes(32))]]
)
def test_a_header_may_have_its_version_first(roots: list[CID]) -> None:
    """So writes who follows the schema in the specification; @ipld/car 5, kubo 0.43 and ceramic-one
    read it. What is stored of it has the one form."""
    canonical = dag_cbor.encode({"roots": roots, "version": 1})
    header = b"\xa2\x67version\x01\x65roots" + dag_cbor.encode(roots)
    data = section(ROOT + BLOCK)
    expected = car.decode(section(canonical) + data)
    decoded = car.decode(section(header) + data)
    assert (decoded.roots, decoded.blocks) == (expected.roots, expected.blocks)
    assert not decoded.is_exact
    assert expected.is_exact == (not any(root.is_v0 for root in roots))
    with pytest.raises(CarError, match="its header is not strict DAG-CBOR"):
        car.decode(section(header + b"\x00") + data)


def test_a_header_has_no_megabytes() -> None:
    """It is decoded before anything is checked, and a million empty lists take half a second."""
    lists = b"\x9a" + (100_000).to_bytes(4, "big") + b"\x80" * 100_000
    header = b"\xa2\x65roots" + lists + b"\x67version\x01"
    with pytest.raises(CarError, match="its header has"):
        car.decode(encode_varint(len(header)) + header)
