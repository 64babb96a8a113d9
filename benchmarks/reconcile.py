"""What it costs two nodes to find their differences, in rounds, bytes and CPU time.

    python -m benchmarks.reconcile [--keys N] [--differences 0,1,100,10000] [--json FILE]

Both sides hold N keys of which d are on one side only, half of them on each side. `scattered`
differences lie anywhere in the key order, `recent` ones beside each other. Only the reconciliation
is measured, not the transfer of the events. rounds are round trips; bytes are those of both
directions, frames included; cpu_s is of both sides together.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from benchmarks.keys import event_ids
from benchmarks.negentropy import TIMESTAMP_SIZE, Items, Negentropy
from benchmarks.report import Row, progress, show
from recon_node.ceramic import IN_MEMORY, network_range
from recon_node.ipld import varint
from recon_node.recon import KeyRange, KeyStore
from recon_node.recon.protocols import RECON_1_0, RECON_1_1, Protocol

_EPOCH = 1_600_000_000


@dataclass(frozen=True)
class Cost:
    """What one reconciliation cost."""

    rounds: int
    bytes: int
    cpu_s: float


def recon(protocol: Protocol, ours: list[bytes], theirs: list[bytes]) -> Cost:
    """Reconcile over a version of the recon protocol; check that both sides end with the union."""
    a, b = KeyStore(ours), KeyStore(theirs)
    key_range = KeyRange(*network_range(IN_MEMORY))
    started = time.process_time()
    asking = protocol.session.initiator(a, key_range)
    answering = protocol.session.responder(b, [key_range])
    transferred = 0
    turn = [(answering, b), (asking, a)]
    messages = [asking.start()]
    while messages:
        session, store = turn[0]
        turn.reverse()
        for message in messages:
            frame = protocol.encode(message)
            transferred += len(varint.encode(len(frame))) + len(frame)
            for key in session.receive(protocol.decode(frame)):
                store.add(key)
        messages = session.respond()
    spent = time.process_time() - started
    assert a.summarize() == b.summarize()
    assert len(a) == len(set(ours) | set(theirs))
    return Cost(asking.rounds, transferred, spent)


def negentropy(ours: list[bytes], theirs: list[bytes]) -> Cost:
    """Reconcile by negentropy: an id for each key, and timestamps in the order of the keys."""
    everything = sorted({*ours, *theirs})
    item_of = {
        key: (_EPOCH + rank).to_bytes(TIMESTAMP_SIZE, "big") + sha256(key).digest()
        for rank, key in enumerate(everything)
    }
    a = Negentropy(Items(item_of[key] for key in ours))
    b = Negentropy(Items(item_of[key] for key in theirs))
    started = time.process_time()
    message: bytes | None = a.initiate()
    rounds = transferred = 0
    while message is not None:
        answer = b.reconcile(message)
        assert answer is not None
        rounds += 1
        transferred += len(message) + len(answer)
        message = a.reconcile(answer)
    spent = time.process_time() - started
    assert len(a.have) + len(a.need) == len(set(ours) ^ set(theirs))
    # The initiator still has to send what the other side lacks; its ids are not counted here.
    return Cost(rounds, transferred, spent)


SYSTEMS: dict[str, Callable[[list[bytes], list[bytes]], Cost]] = {
    "recon/1.0.0": partial(recon, RECON_1_0),
    "recon/1.1.0": partial(recon, RECON_1_1),
    "negentropy": negentropy,
}


def differing(keys: int, differences: int, placement: str) -> tuple[list[bytes], list[bytes]]:
    """Return two sets of about that many keys with that many differences between them."""
    rng = random.Random(differences)
    everything = sorted(event_ids(keys, seed=keys))
    if placement == "recent":
        start = rng.randrange(max(1, keys - differences))
        chosen = everything[start : start + differences]
    else:
        chosen = rng.sample(everything, differences)
    only_ours, only_theirs = set(chosen[::2]), set(chosen[1::2])
    ours = [key for key in everything if key not in only_theirs]
    theirs = [key for key in everything if key not in only_ours]
    return ours, theirs


def run(keys: int, differences: list[int]) -> list[Row]:
    """Measure all systems over all numbers of differences in both placements."""
    rows: list[Row] = []
    for number in differences:
        for placement in ("scattered", "recent") if number else ("none",):
            ours, theirs = differing(keys, number, placement)
            for system, reconcile in SYSTEMS.items():
                progress(f"{system}: {keys:,} keys, {number:,} differences, {placement}")
                cost = reconcile(ours, theirs)
                rows.append(
                    {
                        "system": system,
                        "keys": keys,
                        "differences": number,
                        "placement": placement,
                        "rounds": cost.rounds,
                        "bytes": cost.bytes,
                        "cpu_s": cost.cpu_s,
                    }
                )
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--differences", default="0,1,100,10000")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    differences = [int(number) for number in options.differences.split(",")]
    show("Reconciliation", run(options.keys, differences), options.json)


if __name__ == "__main__":
    main()
