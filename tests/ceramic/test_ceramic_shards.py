"""Shards: how they are written, and that each controller is in exactly one of a number of them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ceramic import (
    EventId,
    EventIdError,
    Network,
    Shard,
    StreamId,
    heightless_event_id,
    sort_value_range,
)
from recon_node.ceramic.event_id import MAX_SHARDS
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, RAW

NETWORK = Network.local(7)
MODEL = StreamId.parse("kh4q0ozorrgaq2mezktnrmdwleo1d")
EVENT = CID.of(RAW, b"an event")


@given(st.integers(1, 64), st.text(st.characters(codec="utf-8")), st.integers(0, 2**64 - 2))
def test_a_controller_is_in_one_of_some_shards(count: int, controller: str, height: int) -> None:
    shards = [Shard.of(number, count) for number in range(1, count + 1)]
    assert [shard.covers(controller) for shard in shards].count(True) == 1
    value = str(MODEL)
    key = EventId.build(NETWORK, value, controller, EVENT, height, EVENT)
    ring_key = HeightlessEventId.build(NETWORK, MODEL, controller, EVENT, EVENT)
    for shard in shards:
        lower, upper = shard.range(NETWORK, value)
        assert (lower < key < upper) is shard.covers(controller)
        below, above = heightless_event_id.shard_range(NETWORK, MODEL, shard)
        assert (below < ring_key < above) is shard.covers(controller)
        assert Shard.parse(str(shard)) == shard


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 100, MAX_SHARDS])
def test_shards_follow_each_other_and_are_of_about_equal_size(count: int) -> None:
    shards = [Shard.of(number, count) for number in range(1, count + 1)]
    bounds = [[int.from_bytes(bound) for bound in shard] for shard in shards]
    assert (bounds[0][0], bounds[-1][1] + 1) == (0, 256 ** len(shards[0].first))
    assert all(one[1] + 1 == two[0] for one, two in pairwise(bounds))
    sizes = [last - first + 1 for first, last in bounds]
    assert max(sizes) <= 1.07 * min(sizes)


def test_the_whole_sort_value_is_one_shard() -> None:
    assert Shard.parse("1/1") == Shard.parse("00..FF")
    assert Shard.of(1, 1).range(NETWORK, "blog") == sort_value_range(NETWORK, "blog")
    assert str(Shard.parse("1/4")) == "00..3f"
    assert str(Shard.parse("2/5")) == "33..65"


@pytest.mark.parametrize(
    "text", ["", "0/4", "5/4", "1/0", "1/4097", "3f..00", "0..3", "00..3fff", "00-3f", "did:key:z"]
)
def test_what_is_not_a_shard(text: str) -> None:
    with pytest.raises(EventIdError, match="shard"):
        Shard.parse(text)
