"""A process that writes to a store until it is killed, and says what was acknowledged.

    python store_child.py DIRECTORY SEED

One line an acknowledgement: the EventId in hex, and its position or "-".
"""

import sys
from pathlib import Path

import trio
from store_helpers import NETWORK, World

from recon_node.store import Store, Verdict, open_store


def acknowledge(verdicts: list[Verdict]) -> None:
    lines = (f"{v.event_id.hex()} {v.position or '-'}\n" for v in verdicts if v.event_id)
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


async def write_local(store: Store, seed: int) -> None:
    """A client that writes an event at a time, each on those before."""
    while True:
        for event in World(seed, streams=2, events=40).events.values():
            acknowledge(await store.admit_local([event.car]))
        seed += 1


async def write_remote(store: Store, seed: int) -> None:
    """A peer whose events come in batches, in any order."""
    while True:
        world = World(seed, streams=5, events=60)
        offers = world.offers()
        world.random.shuffle(offers)
        for start in range(0, len(offers), 25):
            acknowledge(await store.admit_remote(offers[start : start + 25]))
        seed += 1


async def main(directory: Path, seed: int) -> None:
    async with open_store(directory, NETWORK) as store, trio.open_nursery() as nursery:
        for client in range(4):
            nursery.start_soon(write_local, store, seed + client * 1000)
        nursery.start_soon(write_remote, store, seed + 100_000)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
