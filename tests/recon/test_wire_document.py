"""The keys and hashes that docs/wire.md gives to other implementations are those of the code."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from recon_node.ceramic import EventId, Network, network_range, sort_value_range
from recon_node.ipld import CID, varint
from recon_node.recon import Sha256a
from recon_node.recon.keys.key_store import Summary
from recon_node.recon.v1_1.codec import fingerprint

DOC = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
CLAY = Network.parse("testnet-clay")


def section(title: str) -> str:
    return DOC.split(f"## {title}\n")[1].split("\n## ")[0]


def blocks(text: str) -> list[str]:
    """The indented blocks of a section."""
    return re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)


def names(text: str) -> tuple[str, str, CID, CID]:
    """What the example EventID is made of."""
    sort_value, controller, init, event = re.findall(
        r"`([^`]+)`", text.split("**An EventID.**")[1].split("    ce01")[0]
    )
    return sort_value, controller, CID.parse(init), CID.parse(event)


def test_the_event_id() -> None:
    text = section("EventIDs")
    sort_value, controller, init, event = names(text)
    shown = bytes.fromhex(blocks(text)[0])
    assert EventId.build(CLAY, sort_value, controller, init, 255, event) == shown


def test_the_event_id_is_made_as_the_table_says() -> None:
    """By nothing but the page's words."""
    text = section("EventIDs")
    sort_value, controller, init, event = names(text)
    head = b"".join(bytes.fromhex(each) for each in ("ce01", "05", "01"))
    hashed = [sha256(each.encode()).digest()[-8:] for each in (sort_value, controller)]
    height = b"\x18\xff"
    assert bytes.fromhex(blocks(text)[0]) == head + b"".join(hashed) + init[-4:] + height + event


def test_the_fenceposts() -> None:
    text = section("EventIDs")
    shown = [
        tuple(EventId(bytes.fromhex(line)) for line in block.splitlines())
        for block in blocks(text)[1:]
    ]
    assert shown == [network_range(CLAY), sort_value_range(CLAY, names(text)[0])]


@pytest.mark.parametrize("name", ["mainnet", "testnet-clay", "dev-unstable", "inmemory"])
def test_the_network_numbers(name: str) -> None:
    network = Network.parse(name)
    row = f"| {name} | {network.id} | `{varint.encode(network.id).hex()}` |"
    assert row in section("EventIDs")


def test_a_local_network() -> None:
    local = Network.parse("local-7")
    assert local.id == 2**32 + 7
    assert f"local-7: `{varint.encode(local.id).hex()}`" in section("EventIDs")


def test_the_hashes() -> None:
    (block,) = blocks(section("Sha256a"))
    shown = dict(re.split(r" {2,}", line.strip()) for line in block.splitlines())
    keys = (b"hello", b"other")
    digests = [sha256(key).digest() for key in keys]
    lanes = [
        sum(int.from_bytes(each[at : at + 4], "little") for each in digests) % 2**32
        for at in range(0, 32, 4)
    ]
    both = Sha256a.of(*keys)
    assert shown == {
        "sha256(hello)": digests[0].hex(),
        "sha256(other)": digests[1].hex(),
        "Sha256a": b"".join(lane.to_bytes(4, "little") for lane in lanes).hex(),
        "1.1.0's fingerprint": fingerprint(Summary(both, 2)).hex(),
        "of no keys": fingerprint(Summary(Sha256a.of(), 0)).hex(),
    }
    assert both.digest.hex() == shown["Sha256a"]
