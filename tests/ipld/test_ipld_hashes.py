"""Hash functions: the CIDs of kubo, and digests that are shortened."""

import hashlib
import json
from pathlib import Path

import pytest

from recon_node.ipld import CID, CidError
from recon_node.ipld.cid import FUNCTIONS, digest_of

CIDS = json.loads((Path(__file__).parent.parent / "data/ipld/hashes.json").read_text())["cids"]


@pytest.mark.parametrize("name", CIDS)
def test_blocks_are_checked_by_every_function_that_kubo_has(name: str) -> None:
    cid = CID.parse(CIDS[name])
    assert cid.matches(b"hello")
    assert not cid.matches(b"hello!")


@pytest.mark.parametrize("code", FUNCTIONS)
def test_no_digest_is_longer_than_a_cid_may_have(code: int) -> None:
    digest = digest_of(code, b"")
    assert digest is not None
    assert len(digest) <= 64


# https://keccak.team/keccak_strengthened.html and RFC 4634; hashlib has the others.
@pytest.mark.parametrize(
    ("code", "digest"),
    [
        (0x1A, "f71837502ba8e10837bdd8d365adb85591895602fc552b48b7390abd"),
        (
            0x1C,
            "2c23146a63a29acf99e73b88f8c24eaa7dc60aa771780ccc006afbfa8fe2479b2dd2b21362337441ac12"
            "b515911957ff",
        ),
        (0x20, hashlib.sha384(b"").hexdigest()),
        (0x1013, hashlib.sha224(b"").hexdigest()),
        (0x1014, "6ed0dd02806fa89e25de060c19d3ac86cabb87d6a0ddd05c333b84f4"),
        (0x1015, "c672b8d1ef56ed28ab87c3622c5114069bdd3ad7b8f9737498d0c01ecef0967a"),
    ],
)
def test_digests_of_nothing(code: int, digest: str) -> None:
    assert digest_of(code, b"") == bytes.fromhex(digest)


def test_a_digest_may_be_shortened_to_twenty_bytes() -> None:
    whole = hashlib.sha512(b"hello").digest()
    for size in range(65):
        cid = CID(bytes((1, 0x55, 0x13, size)) + whole[:size])
        assert cid.matches(b"hello") == (size >= 20)
    assert not CID(bytes((1, 0x55, 0x12, 33)) + hashlib.sha256(b"hello").digest() + b"\0").matches(
        b"hello"
    )


@pytest.mark.parametrize("code", [0x22, 0xB201, 0xB213, 0xB241, 0xB261, 0x1012])
def test_other_functions_are_not_known(code: int) -> None:
    assert digest_of(code, b"") is None


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(CidError, match="cannot check a block by the hash 0x22"):
        CID(b"\x01\x55\x22\x08" + bytes(8)).matches(b"")
