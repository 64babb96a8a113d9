"""EventIds without a height, against the vectors of the deployed network."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ceramic.errors import EventIdError
from recon_node.ceramic.event_id import EventId
from recon_node.ceramic.heightless_event_id import (
    GREATEST,
    LEAST,
    HeightlessEventId,
    controller_range,
    is_fencepost,
    model_range,
    network_range,
    stream_range,
)
from recon_node.ceramic.init_header import StreamId
from recon_node.ceramic.network import Network
from recon_node.ipld import CID

VECTORS = vectors.load("eventid_vectors")
WITHOUT_HEIGHT = [vector for vector in VECTORS if vector["era"] == "C"]
WITH_HEIGHT = [vector for vector in VECTORS if vector["era"] == "A"]
MODEL = StreamId.parse("kh4q0ozorrgaq2mezktnrmdwleo1d")
INIT = CID.parse(VECTORS[0]["init_cid"])
EVENT = CID.parse(VECTORS[0]["event_cid"])
CONTROLLER = VECTORS[0]["controller"]

networks = st.sampled_from([Network(0, "mainnet"), Network(255, "inmemory"), Network.local(7)])
controllers = st.text(st.characters(codec="utf-8"), max_size=20)
cids = st.binary(min_size=32, max_size=32).map(lambda digest: CID(b"\x01\x71\x12\x20" + digest))


@pytest.mark.parametrize("vector", WITHOUT_HEIGHT, ids=lambda vector: vector["network"])
def test_the_vectors_of_the_deployed_network(vector):
    built = HeightlessEventId.build(
        Network(vector["network_id"], vector["network"]),
        StreamId.parse(vector["sep_value"]),
        vector["controller"],
        CID.parse(vector["init_cid"]),
        CID.parse(vector["event_cid"]),
    )
    assert built.hex() == vector["event_id"] == str(built)
    assert HeightlessEventId(bytes(built)) == built
    assert str(built.event_cid) == vector["event_cid"]


def test_either_kind_is_refused_as_the_other():
    assert len(WITHOUT_HEIGHT) == len(WITH_HEIGHT) == 5
    for keys, other in ((WITH_HEIGHT, HeightlessEventId), (WITHOUT_HEIGHT, EventId)):
        for vector in keys:
            with pytest.raises(EventIdError):
                other(bytes.fromhex(vector["event_id"]))


def test_the_bounds_of_an_interest_are_those_that_a_ceramic_one_node_sends():
    lower, upper = model_range(Network.local(7), MODEL)
    assert lower.hex() == "ce01058780808010ba25076d730241e7" + "00" * 12
    assert upper.hex() == "ce01058780808010ba25076d730241e7" + "ff" * 13


@given(networks, controllers, cids, cids)
def test_every_key_lies_between_the_fenceposts_of_its_ranges(network, controller, init, event):
    key = HeightlessEventId.build(network, MODEL, controller, init, event)
    ranges = [
        (LEAST, GREATEST),
        network_range(network),
        model_range(network, MODEL),
        controller_range(network, MODEL, controller),
        stream_range(network, MODEL, controller, init),
    ]
    for (lower, upper), (inner_lower, inner_upper) in pairwise(ranges):
        assert lower <= inner_lower < key < inner_upper <= upper
        for bound in (lower, upper, inner_lower, inner_upper):
            assert is_fencepost(bound)
    assert not is_fencepost(key)


@given(networks, cids)
def test_keys_of_others_lie_outside(network, event):
    key = HeightlessEventId.build(network, MODEL, CONTROLLER, INIT, event)
    lower, upper = controller_range(network, MODEL, CONTROLLER + "x")
    assert not lower < key < upper
    lower, upper = model_range(network, StreamId(0, EVENT))
    assert not lower < key < upper


@given(st.integers(0, 100))
def test_a_key_cut_short_is_refused(size):
    key = HeightlessEventId.build(Network.local(7), MODEL, CONTROLLER, INIT, EVENT)
    if size < len(key):
        with pytest.raises(EventIdError):
            HeightlessEventId(key[:size])
    with pytest.raises(EventIdError):
        HeightlessEventId(key + bytes(size + 1))
