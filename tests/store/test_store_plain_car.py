"""The quick check of a CAR agrees with the parser, which takes longer."""

import random

import pytest
from nacl.signing import SigningKey
from support import sdk_sample

from recon_node.ceramic import StreamId, StreamType, parse_event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.store.damage import is_plainly_sound


@pytest.fixture(scope="module")
def cars() -> list[bytes]:
    return sdk_sample.cars()[::7]


def test_events_of_the_sdk_are_told_without_parsing(cars: list[bytes]) -> None:
    events = [parse_event(each) for each in cars]
    quick = 0
    for event in events:
        quick += is_plainly_sound(event.car, event.cid)
        assert not is_plainly_sound(event.car, events[0].cid) or event is events[0]
    assert quick > len(events) / 2


@pytest.mark.parametrize("size", [100, 16_000, 16_300, 16_400, 900_000])
def test_large_events_are_told_without_parsing(size: int, rng: random.Random) -> None:
    """To parse one of 480 kB took 0.3 s, each time that somebody read it."""
    model = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"m"))
    event = init_event(SigningKey(bytes(32)), model, {"a": "x" * size}, unique=b"u")
    assert is_plainly_sound(event.car, event.cid)
    head = len(event.car) - size
    for at in [*range(head), *(rng.randrange(len(event.car)) for _ in range(20))]:
        for flipped in (1, 0x80):
            broken = bytearray(event.car)
            broken[at] ^= flipped
            assert not is_plainly_sound(bytes(broken), event.cid)


def test_other_blocks_and_bytes_are_noticed(cars: list[bytes], rng: random.Random) -> None:
    foreign = CID.of(DAG_CBOR, b"\xa0")
    for stored in cars:
        event = parse_event(stored)
        blocks = dict(car.decode(event.car).blocks)
        at = rng.randrange(len(event.car))
        variants = [
            car.encode([event.cid], {**blocks, foreign: b"\xa0"}),
            car.encode([event.cid, foreign], blocks),
            car.encode([event.cid], {cid: blocks[cid] for cid in blocks if cid != event.cid}),
            event.car[:at] + bytes([event.car[at] ^ 1]) + event.car[at + 1 :],
            event.car[:at],
            car.encode([event.cid], {}),
            b"",
        ]
        assert not any(is_plainly_sound(variant, event.cid) for variant in variants)
