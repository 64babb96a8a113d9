"""The keys and hashes that docs/wire.md gives to other implementations are those of the code."""

import re
from hashlib import sha256
from pathlib import Path

from peers import added_up
from support import vectors

from recon_node.ceramic import EventId, Network, StreamId, network_range, sort_value_range
from recon_node.ceramic.heightless_event_id import HeightlessEventId, is_fencepost, model_range
from recon_node.ceramic.heightless_event_id import network_range as heightless_network_range
from recon_node.ipld import CID, encode_varint
from recon_node.recon import KeyRange, KeyStore, Sha256a
from recon_node.recon.actions import Send, SendValues, Value, turn_of
from recon_node.recon.coded.messages import fingerprint
from recon_node.recon.keys.key_hashes import LtHash
from recon_node.recon.keys.sha256a import lanes_of
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import KeyForm, Message, encode
from recon_node.recon.ring.ring_session import Initiator, Responder

DOC = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
CLAY = Network.parse("testnet-clay")


def section(title: str) -> str:
    return DOC.split(f"## {title}\n")[1].split("\n## ")[0]


def blocks(text: str) -> list[str]:
    """The indented blocks of a section."""
    return re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)


def names(text: str) -> tuple[str, str, CID, CID]:
    """What the example EventId is made of."""
    sort_value, controller, init, event = re.findall(
        r"`([^`]+)`", text.split("**An EventId.**")[1].split("    ce01")[0]
    )
    return sort_value, controller, CID.parse(init), CID.parse(event)


def test_the_event_id() -> None:
    """As it is built, and by nothing but the page's words."""
    text = section("EventIds")
    sort_value, controller, init, event = names(text)
    shown = bytes.fromhex(blocks(text)[0])
    assert EventId.build(CLAY, sort_value, controller, init, 255, event) == shown
    head, height = bytes.fromhex("ce010501"), b"\x18\xff"
    hashed = [sha256(text.encode()).digest()[-8:] for text in (sort_value, controller)]
    assert shown == head + b"".join(hashed) + init[-4:] + height + event


def test_the_fenceposts() -> None:
    text = section("EventIds")
    shown = [
        tuple(EventId(bytes.fromhex(line)) for line in block.splitlines())
        for block in blocks(text)[1:]
    ]
    assert shown == [network_range(CLAY), sort_value_range(CLAY, names(text)[0])]


RINGS = "Recon with ceramic-one nodes: `/ceramic/recon/0.1.0`"


def heightless() -> tuple[HeightlessEventId, StreamId]:
    sort_value, controller, init, event = names(section("EventIds"))
    model = StreamId.parse(sort_value)
    return HeightlessEventId.build(CLAY, model, controller, init, event), model


def test_the_event_id_without_height() -> None:
    key, model = heightless()
    shown = [block.splitlines() for block in blocks(section(RINGS))[:2]]
    assert bytes.fromhex("".join(shown[0])) == key
    assert tuple(map(bytes.fromhex, shown[1])) == model_range(CLAY, model)


def test_the_session_with_a_ceramic_one_node() -> None:
    key, model = heightless()
    initiator = Initiator(Ring(KeyStore(), is_fencepost), [KeyRange(*model_range(CLAY, model))])
    everything = [KeyRange(*heightless_network_range(CLAY))]
    responder = Responder(Ring(KeyStore([key]), is_fencepost), everything)
    said: list[tuple[str, Message]] = [("initiator", *turn_of(initiator.start()))]
    for speaker, message in said:  # which grows meanwhile
        listener = responder if speaker == "initiator" else initiator
        for action in listener.receive(message):
            answerer = "responder" if speaker == "initiator" else "initiator"
            if isinstance(action, Send):
                said += [(answerer, message) for message in action.messages]
            elif isinstance(action, SendValues):
                said.append((answerer, Value(key, b"\x01\x17\x18\xff")))
    shown = re.findall(r" {4}(\w+):\n((?: {8}[0-9a-f]+\n)+)", section(RINGS))
    messages = [(speaker, "".join(text.split())) for speaker, text in shown]
    assert messages == [
        (speaker, encode(message, KeyForm.BYTES).hex()) for speaker, message in said
    ]


def test_the_network_numbers() -> None:
    for name in ("mainnet", "testnet-clay", "dev-unstable", "inmemory"):
        network = Network.parse(name)
        row = f"| {name} | {network.id} | `{encode_varint(network.id).hex()}` |"
        assert row in section("EventIds")
    local = Network.parse("local-7")
    assert local.id == 2**32 + 7
    assert f"local-7: `{encode_varint(local.id).hex()}`" in section("EventIds")


def test_the_hashes() -> None:
    (block,) = blocks(section("Sha256a"))
    shown = dict(re.split(r" {2,}", line.strip()) for line in block.splitlines())
    keys = (b"hello", b"other")
    digests = [sha256(key).digest() for key in keys]
    both = Sha256a.of(*keys)
    assert shown == {
        "sha256(hello)": digests[0].hex(),
        "sha256(other)": digests[1].hex(),
        "Sha256a": added_up(digests).hex(),
        "fingerprint": fingerprint(sum(map(lanes_of, keys))).hex(),
        "of no keys": fingerprint(0).hex(),
        "salted": fingerprint(sum(lanes_of(bytes(range(16)) + key) for key in keys)).hex(),
    }
    assert both.digest.hex() == shown["Sha256a"]


def test_the_hash_that_cannot_be_steered() -> None:
    (block,) = blocks(section("LtHash"))
    shown = dict(re.split(r" {2,}", line.strip()) for line in block.splitlines())

    def lanes(*keys: bytes) -> str:
        return LtHash.of(*keys).lanes[:8].tobytes().hex() + "..."

    assert shown == {
        "lanes(hello)": lanes(b"hello"),
        "lanes(other)": lanes(b"other"),
        "state": lanes(b"hello", b"other"),
        "digest": LtHash.of(b"hello", b"other").digest().hex(),
        "digest of no keys": LtHash().digest().hex(),
    }


def test_the_rendezvous_are_those_of_the_vectors() -> None:
    sort_value = "kh4q0ozorrgaq2mezktnrmdwleo1d"
    rows = [row for row in vectors.load("rendezvous")["vectors"] if row["network"] == CLAY.name]
    wanted = [row for row in rows if row["sort_value"] in (None, sort_value)]
    text = section("Discovery: `/ceramic/<network>/kad/1.0.0`")
    stated = re.findall(r"^ {4}rendezvous +([0-9a-f]+)\n {4}key +([0-9a-f]+)$", text, re.MULTILINE)
    assert sort_value in text
    assert stated == [(row["rendezvous"], row["key"]) for row in wanted]
