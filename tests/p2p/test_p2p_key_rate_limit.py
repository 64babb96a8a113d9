"""Peers have sketches and hashes of ranges made, as fast as their network may."""

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
import trio
from p2p_support import NETWORK, rate_limit_of

from recon_node.ceramic import network_range
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit, Meter
from recon_node.recon import RECON_1_0, RECON_1_2, ZERO, KeyRange, KeyStore, Side, id_of
from recon_node.recon.cip124.cip124_codec import Cip124Message
from recon_node.recon.coded.messages import (
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    LACKING,
    NO_KEYS,
    Gaps,
    Listed,
    Message,
)
from recon_node.recon.coded.messages import KEYS as KEYS_MODE
from recon_node.recon.keys.kept_sums import HASH_COST, MAX_SKETCHES
from recon_node.recon.keys.key_hashes import NO_IDS
from recon_node.recon.keys.sha256a import DIGEST_SIZE
from recon_node.recon.session import HASHED_PER_STEP

KEYS = KeyStore(hashlib.sha256(b"%d" % number).digest() * 2 for number in range(3000))
TOP = b"\xff" * 65
SECONDS = 10


def a_range(number: int) -> KeyRange:
    """Almost all keys, by bounds that nobody else asks for."""
    return KeyRange(b"\x00\x00" + number.to_bytes(4, "big"), TOP)


async def have_made(
    rate_limit: KeyRateLimit, address: str, number: int, *, is_free: bool = False
) -> None:
    for make in (KEYS.sums.sketch, KEYS.sums.lthash):
        await do(Meter(rate_limit, address, KEYS, lambda: is_free), make(a_range(number)))


async def do(meter: Meter, steps: Iterator[None]) -> None:
    done = object()
    while True:
        with meter:
            step = next(steps, done)
        if step is done:
            return
        await meter.pay()


async def test_openings_of_ranges_that_nobody_has_are_paced_by_address(autojump_clock):
    """By 110 bytes each, one address had this node sketch all its keys, as fast as it asked."""
    looks = 2 * HASH_COST * len(KEYS)
    rate_limit = rate_limit_of(rate=looks / 2, burst=2 * looks)
    made = dict.fromkeys(["192.0.2.1", "2001:db8::1"], 0)
    numbers = iter(range(1000))

    async def ask(address: str) -> None:
        with trio.move_on_after(SECONDS):
            while True:
                await have_made(rate_limit, address, next(numbers))
                made[address] += 1

    async with trio.open_nursery() as nursery:
        for address, streams in (("192.0.2.1", 4), ("2001:db8::1", 1)):
            for _ in range(streams):
                nursery.start_soon(ask, address)
    usual = 2 + SECONDS / 2
    # Each of four streams may overdraw the limit by what it has begun. At the end, one can be
    # unfinished in each, and the limit in debt for another.
    assert all(usual - 5 <= number <= usual + 4 for number in made.values()), made


async def test_ranges_that_this_node_wants_itself_cost_a_peer_nothing(autojump_clock):
    rate_limit = rate_limit_of(rate=1, burst=1)
    started = trio.current_time()
    for number in range(1000, 1010):
        await have_made(rate_limit, "192.0.2.1", number, is_free=True)
    await have_made(rate_limit, "192.0.2.1", 1009)  # it is there
    assert trio.current_time() == started
    assert rate_limit.allows("192.0.2.1")
    with trio.move_on_after(1):
        await have_made(rate_limit, "192.0.2.1", 1010)
    assert not rate_limit.allows("192.0.2.1")
    assert rate_limit.allows("192.0.2.2")


async def test_salted_hashes_are_paid_in_any_range(autojump_clock):
    rate_limit = rate_limit_of(rate=1, burst=1)
    steps = KEYS.salted_lanes(a_range(0), b"salt", with_lower=False)
    with trio.move_on_after(1):
        await do(Meter(rate_limit, "192.0.2.1", KEYS, lambda: True), steps)
    assert not rate_limit.allows("192.0.2.1")


@pytest.mark.parametrize("mode", [KEYS_MODE, LACKING])
async def test_looking_for_ids_in_a_list_is_paid(mode, autojump_clock):
    """By 24 bytes each, a peer had all keys looked through for two ids; also by short steps."""
    rate_limit = rate_limit_of(rate=1, burst=1)
    session = RECON_1_2.session(Side.responder(KEYS, [KeyRange(b"", TOP)]))
    meter = Meter(rate_limit, "192.0.2.1", KEYS, lambda: True)
    ids = np.frombuffer(id_of(next(KEYS.keys(KeyRange(b"", TOP)))), "<u8")
    listed = Listed(ids, NO_IDS) if mode is KEYS_MODE else Listed(NO_IDS, ids)
    with trio.move_on_after(1):
        await do(meter, session.receive(Message(KeyRange(b"", TOP), digest=bytes(32))))
        assert rate_limit.allows("192.0.2.1")
        list_of_ids = Message(gaps=Gaps([END], [mode], [NO_KEYS]), listed=[listed])
        await do(meter, session.receive(list_of_ids))
    assert not rate_limit.allows("192.0.2.1")


EVERYTHING = KeyRange(*network_range(NETWORK))
WRONG = {
    RECON_1_2: Message(EVERYTHING, Gaps([END], [FINGERPRINT], [bytes(FINGERPRINT_SIZE)])),
    RECON_1_0: Cip124Message(tuple(EVERYTHING), (b"1" * DIGEST_SIZE,)),
}
"""For each version, a message with a hash of everything that is wrong."""


@pytest.mark.parametrize("version", WRONG)
def test_keys_that_were_left_out_are_hashed_in_short_steps_that_are_paid(version):
    """By 60 bytes each, a peer had all that this node had ever refused of it hashed in one step."""
    keys, left_out = KeyStore(), sorted(KEYS.keys(KeyRange(b"", TOP)))
    side = Side.responder(keys, [EVERYTHING])
    side.leave_out_unwanted(EVERYTHING.lower + key for key in left_out)
    assert (
        len(list(version.session(side).receive(WRONG[version]))) > len(left_out) // HASHED_PER_STEP
    )
    assert keys.session_cost == HASH_COST * len(left_out)


def test_keys_that_a_peer_does_not_take_are_hashed_in_short_steps_that_are_paid():
    """In 1.0.0, a peer had this node list all its keys, and then hash them for each message."""
    keys = KeyStore(EVERYTHING.lower + key for key in KEYS.keys(KeyRange(b"", TOP)))
    session = RECON_1_0.session(Side.responder(keys, [EVERYTHING]))
    list(session.receive(Cip124Message(tuple(EVERYTHING), (ZERO,))))  # "list yours"
    assert len(list(session.receive(WRONG[RECON_1_0]))) > len(keys) // HASHED_PER_STEP
    assert keys.session_cost == HASH_COST * len(keys)


def make(keys: KeyStore, key_range: KeyRange) -> int:
    """Make a sketch, unless it is kept; return the cost."""
    before = keys.sums.cost
    for _ in keys.sums.sketch(key_range):
        pass
    return keys.sums.cost - before


def test_a_range_that_is_used_often_is_kept_before_those_of_a_stranger():
    keys, whole = KeyStore(KEYS), KeyRange(b"", TOP)
    assert make(keys, whole) == HASH_COST * len(keys)
    for _ in range(8):
        assert make(keys, whole) == 0
    for number in range(3 * MAX_SKETCHES):
        make(keys, a_range(2000 + number))
    assert make(keys, whole) == 0


def test_a_long_range_is_kept_before_a_strangers_short_ones_that_are_used_often():
    """Short ranges cost little, and what this node wants nothing: it made that again and again."""
    keys, whole = KeyStore(KEYS), KeyRange(b"", TOP)
    make(keys, whole)
    for number in range(3 * MAX_SKETCHES):
        for _ in range(20):
            make(keys, KeyRange(bytes([number]), bytes([number + 1])))
    assert make(keys, whole) == 0


def test_long_ranges_that_nobody_uses_any_more_are_forgotten():
    """A few took all slots but one, for good; and what was used had to share that one."""
    keys, used = KeyStore(KEYS), [KeyRange(b"\x10", b"\x20"), KeyRange(b"\x20", b"\x30")]
    for number in range(3 * MAX_SKETCHES):
        make(keys, a_range(2000 + number))
    for _ in range(8):
        costs = [make(keys, key_range) for key_range in used]
    assert costs == [0, 0]
