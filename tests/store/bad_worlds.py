"""Worlds with badly signed events, and their events in any order and batches."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from capabilities import SESSION, capability
from store_helpers import KEYS, MODEL, NETWORK, OTHER_MODEL, World
from support.forging import forged
from support.time_events import time_event

from recon_node.ceramic import Event, EventId, InitHeader
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    signed_event,
)
from recon_node.ipld import CID


class BadWorld(World):
    """Streams with everything in them that can be wrong with an event, and right ones on top."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, streams=2, events=6, time_events=True)
        self.unsupported()
        self.unsigned()
        inits = list(self.headers)
        for n in range(18):
            init = self.random.choice(inits)
            self.add_any(init, self.prevs(init), n)

    def unsupported(self) -> None:
        """A stream that no one can write to, as far as this node knows."""
        header = {"controllers": ["did:web:x"], "model": MODEL.to_bytes()}
        event = signed_event(KEYS[0], {"header": header, "data": None})
        self.headers[event.cid], self.keys[event.cid] = event.header, KEYS[0]
        self.add(event)

    def unsigned(self) -> None:
        """A stream that begins with an event that anybody can make."""
        event = deterministic_init_event(controller_of(KEYS[1]), MODEL, unique=b"unsigned")
        self.headers[event.cid], self.keys[event.cid] = event.header, KEYS[1]
        self.add(event)

    def prevs(self, init: CID) -> list[CID]:
        """Of that stream, but for a tenth of them."""
        mine = [cid for cid, event in self.events.items() if event.init == init]
        if self.random.random() < 0.1:
            mine = list(self.events)
        return self.random.sample(mine, min(len(mine), self.random.choice([1, 1, 2, 3, 9])))

    def add_any(self, init: CID, prevs: list[CID], n: int) -> None:
        kind = self.random.choice(["right", "right", "stranger", "session", "forged", "time", "id"])
        key = self.keys[init]
        payload = {"id": init, "prev": prevs, "data": {"n": n}}
        if kind == "stranger":
            key = KEYS[(KEYS.index(key) + 1) % len(KEYS)]
        if kind == "session":
            self.add(signed_event(SESSION, payload, capability=capability(OTHER_MODEL)))
        elif kind == "forged":
            self.add(forged(data_event(key, init, prevs, {"n": n})))
        elif kind == "time":
            self.add(time_event(init, prevs[0], tx_hash=self.random.randbytes(32)))
        elif kind == "id":
            self.add(data_event(key, prevs[0], prevs, {"n": n}))
        else:
            self.add(data_event(key, init, prevs, {"n": n}))

    def header_of(self, event: Event) -> InitHeader:
        while event.init not in self.headers:
            event = self.events[event.init]
        return self.headers[event.init]

    def claims(self, event: Event) -> Iterator[Offer]:
        """The right EventId, as far as there is one, and some that are wrong."""
        header, height = self.header_of(event), self.heights[event.cid]
        other = self.random.choice([key for key in self.headers if key != event.init])
        signer = init_event(SESSION, MODEL, None).header
        for value, controller, init, at in (
            (header.sort_value, header.controller, event.init, height),
            (header.sort_value, header.controller, event.init, height + 1),
            (header.sort_value, header.controller, other, height),
            (str(OTHER_MODEL), header.controller, event.init, height),
            (header.sort_value, signer.controller, event.init, height),
        ):
            yield EventId.build(NETWORK, value, controller, init, at, event.cid), event.car


def shuffled(offers: list[Offer], random: Random) -> list[list[Offer]]:
    """In another order, in batches of other sizes."""
    rest = random.sample(offers, len(offers))
    batches = []
    while rest:
        size = random.choice([1, 2, 5, len(rest)])
        batches.append(rest[:size])
        rest = rest[size:]
    return batches


Offer = tuple[EventId, bytes]
