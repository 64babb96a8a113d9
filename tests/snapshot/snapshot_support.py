"""Logs with real events, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import trio
from nacl.signing import SigningKey

from recon_node.ceramic import Event, Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import StoreSettings, open_store

NETWORK = Network.local(7)
MODELS = [StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model %d" % n)) for n in range(2)]


def events(count: int, seed: int) -> list[Event]:
    """Make events of many streams; each comes after what it builds on."""
    rng = Random(seed)
    keys = [SigningKey(rng.randbytes(32)) for _ in range(5)]
    made: list[Event] = []
    tips: list[tuple[SigningKey, Event, Event]] = []
    for n in range(count):
        if not tips or rng.random() < 0.4:
            key = rng.choice(keys)
            init = init_event(key, rng.choice(MODELS), {"n": n}, unique=rng.randbytes(12))
            tips.append((key, init, init))
            made.append(init)
        else:
            at = rng.randrange(len(tips))
            key, init, tip = tips[at]
            new = data_event(key, init, [tip.cid], {"text": rng.randbytes(20).hex()})
            tips[at] = (key, init, new)
            made.append(new)
    return made


def make_log(data_dir: Path, made: Sequence[Event]) -> None:
    """Add events to the log of a directory."""

    async def main() -> None:
        settings = StoreSettings(synchronous="normal", verifiers=0)
        async with open_store(data_dir, NETWORK, settings=settings) as store:
            verdicts = await store.admit_local([each.car for each in made])
            assert {each.status for each in verdicts} <= {"new", "known"}

    trio.run(main)
