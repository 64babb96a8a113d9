"""CIDs against the `multiformats` package."""

import pickle

import multiformats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    IDENTITY,
    MAX_DIGEST,
    RAW,
    SHA2_256,
    CidError,
    cid_of_block,
    encode_varint,
    read_cid,
)

CODECS = {"dag-cbor": DAG_CBOR, "dag-jose": DAG_JOSE, "raw": RAW, "dag-pb": 0x70}
HASHES = {"sha2-256": SHA2_256, "sha2-512": 0x13, "sha3-256": 0x16, "identity": IDENTITY}

oracle_cids = st.builds(
    lambda codec, name, block: (
        multiformats.CID("base32", 1, codec, multiformats.multihash.digest(block, name)),
        codec,
        name,
        block,
    ),
    st.sampled_from(sorted(CODECS)),
    st.sampled_from(sorted(HASHES)),
    st.binary(max_size=100),
)


def make(codec: int, hash_code: int, digest: bytes) -> bytes:
    return b"\x01" + b"".join(map(encode_varint, (codec, hash_code, len(digest)))) + digest


@given(oracle_cids)
def test_agrees_with_the_oracle(made: tuple[multiformats.CID, str, str, bytes]) -> None:
    oracle, codec, name, block = made
    cid = CID(bytes(oracle))
    assert str(cid) == str(oracle)
    assert cid.codec == CODECS[codec]
    assert cid.hash_code == HASHES[name]
    assert cid.digest == oracle.raw_digest
    assert cid.matches(block)
    assert not cid.matches(block + b"!")
    if name == "sha2-256":
        assert CID.of(cid.codec, block) == cid
    for base in ("base32", "base36", "base58btc", "base64url", "base16"):
        assert CID.parse(oracle.encode(base)) == cid


@given(oracle_cids, st.binary(max_size=5), st.binary(max_size=5))
def test_delimits_itself(made, before, after):
    raw = bytes(made[0])
    assert read_cid(before + raw + after, len(before)) == (CID(raw), len(before) + len(raw))
    if after:
        with pytest.raises(CidError, match="extra bytes"):
            CID(raw + after)


@given(oracle_cids)
def test_every_truncation_is_refused(made: tuple[multiformats.CID, str, str, bytes]) -> None:
    raw = bytes(made[0])
    for size in range(len(raw)):
        with pytest.raises(CidError):
            CID(raw[:size])
        with pytest.raises(CidError):
            read_cid(raw[:size])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_cid_or_refused(data: bytes) -> None:
    try:
        cid, end = read_cid(data)
    except CidError:
        with pytest.raises(CidError):
            CID(data)
    else:
        assert cid == data[:end]
        assert CID(bytes(cid)) == cid


@given(st.text(max_size=60))
def test_any_text_is_a_cid_or_refused(text: str) -> None:
    try:
        cid = CID.parse(text)
    except CidError:
        return
    assert CID.parse(str(cid)) == cid


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "end within"),
        (bytes.fromhex("1220") + bytes(31), "1 are missing"),
        (b"\x02" + make(DAG_CBOR, SHA2_256, bytes(32))[1:], "version is 2"),
        (b"\x00" + make(DAG_CBOR, SHA2_256, bytes(32))[1:], "version is 0"),
        (make(RAW, IDENTITY, bytes(MAX_DIGEST + 1)), "the limit is 64"),
        (b"\x01\x71\x00" + encode_varint(2**62), "the limit is 64"),
        (b"\x01\x71\x12\xa0\x00" + bytes(32), "shortest form"),
        (b"\x01\xf1\x00\x12\x20" + bytes(32), "shortest form"),
    ],
)
def test_refusals(raw: bytes, complaint: str) -> None:
    with pytest.raises(CidError, match=complaint):
        CID(raw)
    with pytest.raises(CidError, match=complaint):
        read_cid(b"\xff" + raw, 1)


@pytest.mark.parametrize(
    ("codec", "hash_code"), [(2**63, SHA2_256), (2**64 - 1, 2**64 - 1), (RAW, 2**63)]
)
def test_numbers_of_64_bits_are_those_of_events_but_not_of_dags(codec: int, hash_code: int) -> None:
    """As the `cid` crate reads them, and as go-varint does not."""
    head = b"\x01" + b"".join(map(varint_64, (codec, hash_code)))
    cid = CID(head + b"\x20" + bytes(32))
    assert (cid.codec, cid.hash_code, cid.digest) == (codec, hash_code, bytes(32))
    assert CID.parse(str(cid)) == cid
    for read in (read_cid, cid_of_block):
        with pytest.raises(CidError, match="longer than 9 bytes"):
            read(bytes(cid))


def varint_64(number: int) -> bytes:
    low, high = number % 2**56, number >> 56
    if not high:
        return encode_varint(number)
    return bytes(low >> 7 * at & 0x7F | 0x80 for at in range(8)) + encode_varint(high)


@pytest.mark.parametrize("last", [0x00, 0x02, 0x7F, 0x81])
def test_a_number_of_more_than_64_bits_is_not_a_codec(last: int) -> None:
    with pytest.raises(CidError, match=r"64 bits|shortest form|longer than 10 bytes"):
        CID(b"\x01" + b"\xff" * 9 + bytes([last]) + b"\x01\x12\x20" + bytes(32))


def test_a_cid_v0_is_a_cid_of_its_own() -> None:
    """The example of https://github.com/multiformats/cid, "Decoding Algorithm"."""
    text = "QmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n"
    cid = CID.parse(text)
    oracle = multiformats.CID.decode(text)
    assert (str(cid), bytes(cid), cid.is_v0) == (text, bytes(oracle), True)
    assert (cid.codec, cid.hash_code, cid.digest) == (DAG_PB, SHA2_256, oracle.raw_digest)
    assert cid.matches(b"")
    assert not cid.matches(b"x")
    assert cid_of_block(cid) == CID.of(DAG_PB, b"") != cid
    assert read_cid(b"\xff" + cid + b"more", 1) == (cid, 35)


@pytest.mark.parametrize("text", ["zQmdfTbBqBPQ7VNxZEYEj14VmRuZBkqFbiwReogJgS1zR1n", "Qm", "QmI"])
def test_other_text_of_a_cid_v0_is_refused(text: str) -> None:
    with pytest.raises(CidError):
        CID.parse(text)


def test_is_its_bytes() -> None:
    cid = CID.of(DAG_CBOR, b"block")
    assert cid == bytes(cid)
    assert {bytes(cid): "found"}[cid] == "found"
    copy = pickle.loads(pickle.dumps(cid))
    assert (type(copy), copy) == (CID, cid)
