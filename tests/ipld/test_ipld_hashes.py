"""Hash functions: the CIDs of kubo, and digests that are shortened."""

import hashlib
import json
from pathlib import Path

import pytest

from recon_node.ipld import CID, CidError
from recon_node.ipld.cid import digest_of

FACTS = json.loads((Path(__file__).parent.parent / "data/ipld/hashes.json").read_text())
CIDS = FACTS["cids"]


@pytest.mark.parametrize("name", CIDS)
def test_blocks_are_checked_by_every_function_that_kubo_has(name: str) -> None:
    cid = CID.parse(CIDS[name])
    assert cid.matches(b"hello")
    assert not cid.matches(b"hello!")


@pytest.mark.parametrize(("code", "digest"), FACTS["of_nothing"]["digests"].items())
def test_digests_of_nothing(code: str, digest: str) -> None:
    """Of those that kubo does not write."""
    assert digest_of(int(code, 16), b"") == bytes.fromhex(digest)


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
