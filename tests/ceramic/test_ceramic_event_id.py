"""EventIds and their ranges against CIP-124."""

import hashlib
from itertools import pairwise
from typing import Any

import dag_cbor as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import varint as oracle_varint
from support import vectors

from recon_node.ceramic import (
    FENCEPOST_CID,
    MAINNET,
    MAX_HEIGHT,
    EventId,
    EventIdError,
    Network,
    controller_range,
    network_id_of,
    network_range,
    rendezvous,
    scan,
    sort_value_range,
    sort_value_rendezvous,
    stream_range,
)
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, RAW, dag_cbor

# eventid_vectors.json: EventIds of the three eras of CIP-124 as the Ceramic implementations have
# made them, for five networks. Era A is the CIP as written, the one used here.
VECTORS = [vector for vector in vectors.load("eventid_vectors") if vector["era"] == "A"]

networks = st.integers(0, 2**32 - 1).map(Network.local) | st.sampled_from(
    [Network.from_id(network_id) for network_id in (0, 1, 2, 255)]
)
texts = st.text(max_size=20)
digests = st.sampled_from([bytes(32), b"\xff" * 32]) | st.binary(min_size=32, max_size=32)
cids = st.builds(
    lambda head, digest: CID(head + digest),
    st.sampled_from([CID.of(codec, b"")[:-32] for codec in (DAG_CBOR, DAG_JOSE, RAW)]),
    digests,
)
edge_heights = [0, 1, 23, 24, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, MAX_HEIGHT]
heights = st.sampled_from(edge_heights) | st.integers(0, MAX_HEIGHT)
event_ids = st.builds(EventId.build, networks, texts, texts, cids, heights, cids)


def raw_event_id(
    *,
    network_id: int = 0,
    separator: bytes = bytes(8),
    controller: bytes = bytes(8),
    stream: bytes = bytes(4),
    height: int = 0,
    cid: bytes = bytes(CID.of(DAG_CBOR, b"")),
) -> bytes:
    """An EventId field by field, its hashes free to choose."""
    head = b"\xce\x01\x05" + oracle_varint.encode(network_id)
    return head + separator + controller + stream + oracle.encode(height) + cid


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["network"])
def test_vectors(vector: dict[str, Any]) -> None:
    network = Network.from_id(vector["network_id"])
    init_cid, event_cid = CID.parse(vector["init_cid"]), CID.parse(vector["event_cid"])
    built = EventId.build(
        network, vector["sep_value"], vector["controller"], init_cid, vector["height"], event_cid
    )
    assert str(built) == vector["event_id"]
    assert EventId(bytes.fromhex(vector["event_id"])) == built


@given(networks, texts, texts, cids, heights, cids)
def test_built_as_the_cip_says_and_read_back(
    network, sort_value, controller, init_cid, height, event_cid
):
    event_id = EventId.build(network, sort_value, controller, init_cid, height, event_cid)
    separator = hashlib.sha256(sort_value.encode()).digest()[-8:]
    controller_hash = hashlib.sha256(controller.encode()).digest()[-8:]
    assert event_id == raw_event_id(
        network_id=network.id,
        separator=separator,
        controller=controller_hash,
        stream=init_cid[-4:],
        height=height,
        cid=event_cid,
    )
    assert event_id.network_id == network.id
    assert event_id.separator == separator
    assert event_id.controller == controller_hash
    assert event_id.stream == init_cid[-4:]
    assert event_id.height == height
    assert event_id.event_cid == event_cid
    assert event_id.prefix + oracle.encode(height) + event_cid == event_id
    assert not event_id.is_fencepost


@given(event_ids, st.binary(max_size=9), st.binary(max_size=9))
def test_delimits_itself(event_id: EventId, before: bytes, after: bytes) -> None:
    data = before + event_id + after
    event_id_read, end = scan(data, len(before))
    assert (type(event_id_read), event_id_read, end) == (
        EventId,
        event_id,
        len(before) + len(event_id),
    )
    if after:
        with pytest.raises(EventIdError, match="extra bytes"):
            EventId(event_id + after)


@given(event_ids)
def test_every_truncation_is_refused(event_id: EventId) -> None:
    for size in range(len(event_id)):
        with pytest.raises(EventIdError):
            scan(event_id[:size])
        with pytest.raises(EventIdError):
            EventId(event_id[:size])


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_an_event_id_or_refused(data: bytes, with_head: bool) -> None:
    if with_head:
        data = b"\xce\x01\x05" + data
    try:
        event_id, end = scan(data)
    except EventIdError:
        return
    assert event_id == data[:end]
    assert EventId(bytes(event_id)) == event_id


@given(event_ids, st.data())
def test_a_damaged_event_id_is_another_one_or_refused(event_id, draw):
    data = bytearray(event_id)
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        damaged = EventId(bytes(data))
    except EventIdError:
        return
    rebuilt = raw_event_id(
        network_id=damaged.network_id,
        separator=damaged.separator,
        controller=damaged.controller,
        stream=damaged.stream,
        height=damaged.height,
        cid=damaged.event_cid,
    )
    assert rebuilt == damaged == bytes(data)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "does not start with ce0105"),
        (b"\xce\x01\x03" + raw_event_id()[3:], "does not start with ce0105"),
        (b"\xce\x81\x00\x05" + raw_event_id()[3:], "does not start with ce0105"),
        (raw_event_id()[:3] + b"\x80\x00" + raw_event_id()[4:], "shortest form"),
        (raw_event_id()[:24] + b"\x18\x17" + raw_event_id()[25:], "shortest form"),
        (raw_event_id()[:24] + b"\x1b" + bytes(4) + b"\xff" * 4 + raw_event_id()[25:], "shortest"),
        (raw_event_id()[:24] + b"\x1c" + raw_event_id()[25:], "not a CBOR unsigned int"),
        (raw_event_id()[:24] + b"\x20" + raw_event_id()[25:], "not a CBOR unsigned int"),
        (raw_event_id(height=2**64 - 1), "claims the height"),
        (raw_event_id(cid=b"\x12\x20" + bytes(32)), "cannot be the CID of an event"),
        (raw_event_id(cid=b"\x01\x55\x00\x03abc"), "cannot be the CID of an event"),
        (raw_event_id(cid=b"\x01\x71\x00\x00"), "cannot be the CID of an event"),
        (raw_event_id(cid=b"\x01\x54\x12\x20" + bytes(32)), "cannot be the CID of an event"),
    ],
)
def test_refusals(raw: bytes, complaint: str) -> None:
    with pytest.raises(EventIdError, match=complaint):
        EventId(raw)
    with pytest.raises(EventIdError, match=complaint):
        scan(b"\xce" + raw, 1)


@pytest.mark.parametrize("height", [-1, 2**64 - 1, 2**64])
def test_heights_out_of_range(height: int) -> None:
    cid = CID.of(DAG_CBOR, b"")
    with pytest.raises(EventIdError, match="height"):
        EventId.build(MAINNET, "", "", cid, height, cid)


def test_a_fencepost_cannot_be_built_as_a_key() -> None:
    cid = CID.of(DAG_CBOR, b"")
    with pytest.raises(EventIdError, match="cannot be the CID of an event"):
        EventId.build(MAINNET, "", "", cid, 0, FENCEPOST_CID)
    with pytest.raises(EventIdError, match="not valid Unicode"):
        EventId.build(MAINNET, "\ud800", "", cid, 0, cid)


@given(heights, heights)
def test_keys_of_a_stream_sort_by_height(one: int, other: int) -> None:
    keys = [EventId(raw_event_id(height=height)) for height in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)
    assert (dag_cbor.encode(one) < dag_cbor.encode(other)) == (one < other)


@given(networks, texts, texts, cids, heights, cids)
def test_the_four_ranges_are_nested(network, sort_value, controller, init_cid, height, event_cid):
    event_id = EventId.build(network, sort_value, controller, init_cid, height, event_cid)
    ranges = [
        network_range(network),
        sort_value_range(network, sort_value),
        controller_range(network, sort_value, controller),
        stream_range(network, sort_value, controller, init_cid),
    ]
    for lower, upper in ranges:
        assert lower < event_id < upper
        for bound in (lower, upper):
            assert EventId(bytes(bound)) == bound
            assert bound.is_fencepost
            assert bound.event_cid == FENCEPOST_CID
            assert bound.network_id == network.id
        assert (lower.height, upper.height) == (0, 2**64 - 1)
    for (outer_lower, outer_upper), (lower, upper) in pairwise(ranges):
        assert outer_lower <= lower < upper <= outer_upper


def extreme(size: int) -> st.SearchStrategy[bytes]:
    extremes = st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF])
    return st.lists(extremes, min_size=size, max_size=size).map(bytes)


extreme_event_ids = st.builds(
    raw_event_id,
    network_id=st.integers(0, 2**33),
    separator=extreme(8),
    controller=extreme(8),
    stream=extreme(4),
    height=heights,
    cid=cids,
).map(EventId)


@given(extreme_event_ids)
def test_the_network_range_holds_the_most_extreme_hashes(key):
    lower, upper = network_range(Network(key.network_id, "any"))
    assert lower < key < upper


@given(event_ids, event_ids)
def test_a_range_holds_keys_of_its_own_only(one: EventId, other: EventId) -> None:
    """Keys between the bounds of `one`'s network, or stream, share its prefix."""
    lower, upper = network_range(Network.from_id(one.network_id))
    assert (lower < other < upper) == (one.network_id == other.network_id)
    lower, upper = (
        EventId(one.prefix + height + FENCEPOST_CID) for height in (b"\0", b"\x1b" + b"\xff" * 8)
    )
    assert (lower < other < upper) == (one.prefix == other.prefix)


def test_rendezvous_vectors() -> None:
    """CIP-124, "Discover all peers in the same network" and "using the same sort-value"."""
    rows = vectors.load("rendezvous")["vectors"]
    for row in rows:
        network, sort_value = Network.parse(row["network"]), row["sort_value"]
        assert network.id == row["network_id"]
        places = (
            rendezvous(network)
            if sort_value is None
            else sort_value_rendezvous(network, sort_value)
        )
        assert places.hex() == row["rendezvous"]
        assert "1220" + hashlib.sha256(places).hexdigest() == row["key"]
    assert len({row["key"] for row in rows}) == len(rows)


@given(networks, texts, texts)
def test_a_bound_says_of_which_network_it_is(network: Network, value: str, controller: str) -> None:
    lower, upper = network_range(network)
    for bound in (lower, upper, lower[:-20], *controller_range(network, value, controller)):
        assert network_id_of(bound) == network.id
    for no_bound in (b"", b"\xce", b"\xce\x01\x05", b"\xff" * 40):
        assert network_id_of(no_bound) is None
