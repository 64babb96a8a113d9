"""What a session costs at full size: a million keys of 62 bytes, 10,000 differences, scattered."""

import random
from functools import partial

import pytest

from benchmarks.keys import event_ids
from recon_node.ceramic import IN_MEMORY, network_range
from recon_node.recon import (
    RECON_1_0,
    RECON_1_2,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    SessionSettings,
    Side,
    turn_of,
)

MIB = 1 << 20
RANGE = KeyRange(*network_range(IN_MEMORY))


def fetch_into(store: KeyStore, action: Fetch | FetchById) -> Failed | None:
    if isinstance(action, FetchById):
        return None
    for key in action.keys:
        store.add(key)
    return Failed()


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "message_bytes", "most_rounds", "most_bytes"),
    [
        (RECON_1_0, MIB, 20, 20_000_000),
        (RECON_1_0, 8 * MIB, 6, 20_000_000),
        (RECON_1_2, MIB, 5, 6_000_000),
    ],
)
def test_a_million_keys(protocol, message_bytes, most_rounds, most_bytes):
    everything = event_ids(1_000_000, seed=1)
    differing = random.Random(1).sample(everything, 10_000)
    ours, theirs = set(everything), set(everything)
    ours.difference_update(differing[::2])
    theirs.difference_update(differing[1::2])
    a, b = KeyStore(ours), KeyStore(theirs)
    settings = SessionSettings(message_bytes=message_bytes)
    asking = protocol.session(Side.initiator(a, RANGE, settings))
    sides = [(protocol.session(Side.responder(b, [RANGE], settings)), b), (asking, a)]
    turn, sent = turn_of(asking.start()), 0
    while turn:
        session, store = sides[0]
        sides.reverse()
        for message in turn:
            frame = protocol.encode(message)
            assert len(frame) <= message_bytes
            sent += len(frame)
            answer = turn_of(session.receive(protocol.decode(frame)), partial(fetch_into, store))
        turn = answer
    assert len(a) == len(b) == len(everything)
    assert a.summarize() == b.summarize()
    assert asking.side.rounds <= most_rounds
    assert sent <= most_bytes
