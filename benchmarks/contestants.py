"""The systems that are measured: each reconciles a pair of sets and says what that cost."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

import numpy as np

from benchmarks.negentropy import Items, Negentropy
from benchmarks.pairs import Pair
from recon_node.base.steps import run_steps
from recon_node.ceramic import IN_MEMORY, network_range
from recon_node.ipld import encode_varint
from recon_node.p2p.settings import MIB
from recon_node.recon import (
    DEFAULT_SETTINGS,
    RECON_1_0,
    RECON_1_2,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    SessionSettings,
    Side,
    SoughtIds,
    Version,
    find_by_id,
    turn_of,
)
from recon_node.recon.actions import Actions, Admit, Send, SendValues, Value
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import Decoder, KeyForm, Message, encode
from recon_node.recon.ring.ring_session import Initiator, Responder

WHOLE: Final = KeyRange(*map(bytes, network_range(IN_MEMORY)))
LONG_MESSAGES: Final = SessionSettings(message_bytes=8 * MIB)
"""As an operator may set it where peers speak 1.0.0 alone: a turn is one message there."""
_SYNC_ID: Final = "00000000-0000-4000-8000-000000000000"
"""Of a session of 0.1.0; ceramic-one's are UUIDs."""


@dataclass(slots=True)
class Cost:
    """What one reconciliation cost; bytes as the initiator sees them."""

    rounds: int = 0
    """Round trips until the initiator is done."""
    bytes_sent: int = 0
    bytes_received: int = 0
    cpu_s: float = 0.0
    """Of both sides together, the loading of the keys left out."""


@dataclass(slots=True)
class CpuTimer:
    """Measures the CPU time of this process: `with CpuTimer() as timer: ...; timer.seconds`.

    What was made before is collected first. Otherwise the garbage collector would visit the keys
    loaded a moment ago within the time measured; those of a node were loaded long ago.
    """

    seconds: float = 0.0
    _started: float = field(default=0.0, repr=False)

    def __enter__(self) -> Self:
        gc.collect()
        self._started = time.process_time()
        return self

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what the block takes. Asking for the time may take 0.1 ms by itself."""
        paused = time.process_time()
        yield
        self._started += time.process_time() - paused

    def __exit__(self, *error: object) -> None:
        self.seconds = time.process_time() - self._started


class WrongResultError(Exception):
    """A contestant did not find the difference: its figures would mean nothing."""


def recon(protocol: Version[Any], pair: Pair, settings: SessionSettings = DEFAULT_SETTINGS) -> Cost:
    """Reconcile over a version of this project's protocol; both sides end with the union."""
    ours, theirs = map(KeyStore, pair.keys())
    make_sketches(protocol, ours, theirs)
    cost = reconcile(protocol, WHOLE, ours, theirs, settings)
    check_union(pair, ours, theirs)
    return cost


def reconcile(
    protocol: Version[Any],
    key_range: KeyRange,
    ours: KeyStore,
    theirs: KeyStore,
    settings: SessionSettings = DEFAULT_SETTINGS,
) -> Cost:
    """Reconcile two stores, which both end with the union."""
    cost = Cost()
    with CpuTimer() as timer:
        asking = protocol.session(Side.initiator(ours, key_range, settings))
        answering = protocol.session(Side.responder(theirs, [key_range], settings))
        turns = [(answering, theirs), (asking, ours)]
        messages = turn_of(asking.start())
        while messages:
            answer: list[Any] = []
            receiver, store = turns[0]
            turns.reverse()
            for message in messages:
                data = protocol.encode(message)
                _count(cost, len(encode_varint(len(data))) + len(data), sent=receiver is answering)
                fetch = partial(_fetch, timer, store, turns[0][1])
                answer = turn_of(receiver.receive(protocol.decode(data)), fetch)
            messages = answer
    cost.rounds, cost.cpu_s = asking.side.rounds, timer.seconds
    return cost


def _fetch(timer: CpuTimer, store: KeyStore, other: KeyStore, action: Fetch | FetchById) -> Failed:
    """Get keys into a store. Looking them up counts, and storing them does not."""
    keys = look_up(action.sought, other) if isinstance(action, FetchById) else action.keys
    with timer.paused():
        store.load(keys)
    return Failed()


def make_sketches(protocol: Version[Any], *stores: KeyStore) -> None:
    """Make what 1.2.0 keeps beside the tree: neither of them is made for a session."""
    if protocol is RECON_1_2:
        for store in stores:
            run_steps(store.sums.sketch(WHOLE))
            run_steps(store.sums.lthash(WHOLE))


def look_up(sought: SoughtIds, other: KeyStore) -> list[bytes]:
    """Return the keys of some ids, found in the store of the side that has them, as a node does."""
    ids = np.frombuffer(b"".join(sought.ids), "<u8")
    return [key for _, key in run_steps(find_by_id(other, sought.key_range, ids))]


class _RingSide:
    """A side of a session of 0.1.0, in bytes. Values go without events: these do not count."""

    def __init__(self, role: type[Initiator | Responder], keys: list[bytes]) -> None:
        self.store = KeyStore(keys)
        self._ring = Ring(self.store, WHOLE.__contains__)
        self.session = role(self._ring, [WHOLE])
        self._decoder = Decoder(KeyForm.BYTES, from_initiator=not role.initiates)

    def receive(self, data: bytes, timer: CpuTimer) -> list[bytes]:
        """Take a message of the other side; return those in answer."""
        (message,) = self._decoder.feed(data)
        return self.perform(self.session.receive(message), timer)

    def perform(self, actions: Actions[Message], timer: CpuTimer) -> list[bytes]:
        """Do what the session says; return its messages."""
        messages: list[Message] = []
        for action in actions:
            if isinstance(action, Send):
                messages += action.messages
            elif isinstance(action, SendValues):
                keys = self._ring.keys(action.first, action.last)
                messages += [Value(key, b"") for key in keys]
            elif isinstance(action, Admit):
                with timer.paused():
                    self.store.load(value.key for value in action.values)
        return [encode(message, KeyForm.BYTES, _SYNC_ID) for message in messages]


def recon_0_1(pair: Pair) -> Cost:
    """Reconcile over ceramic-one's protocol; both sides end with the union."""
    ours, theirs = pair.keys()
    asking, answering = _RingSide(Initiator, ours), _RingSide(Responder, theirs)
    cost = Cost()
    with CpuTimer() as timer:
        requests = asking.perform(asking.session.start(), timer)
        while not answering.session.done:
            cost.bytes_sent += sum(map(len, requests))
            answers = [answer for data in requests for answer in answering.receive(data, timer)]
            cost.bytes_received += sum(map(len, answers))
            cost.rounds += bool(answers)
            requests = [request for data in answers for request in asking.receive(data, timer)]
    cost.cpu_s = timer.seconds
    check_union(pair, asking.store, answering.store)
    return cost


def negentropy(pair: Pair) -> Cost:
    """Reconcile by negentropy V1: only the initiator learns the difference, as a list of ids."""
    ours, theirs = map(Items, pair.items())
    cost = Cost()
    with CpuTimer() as timer:
        asking, answering = Negentropy(ours), Negentropy(theirs)
        message: bytes | None = asking.initiate()
        while message is not None:
            cost.bytes_sent += len(message)
            answer = answering.reconcile(message)
            assert answer is not None
            cost.bytes_received += len(answer)
            cost.rounds += 1
            message = asking.reconcile(answer)
    cost.cpu_s = timer.seconds
    check_difference(pair, len(asking.have) + len(asking.need))
    return cost


Contestant = Callable[[Pair], Cost]

CONTESTANTS: Final[dict[str, Contestant]] = {
    "recon/1.2.0": partial(recon, RECON_1_2),
    "recon/1.0.0": partial(recon, RECON_1_0),
    "recon/1.0.0, 8 MiB": partial(recon, RECON_1_0, settings=LONG_MESSAGES),
    "negentropy": negentropy,
    "recon/0.1.0": recon_0_1,
}


def check_union(pair: Pair, ours: KeyStore, theirs: KeyStore) -> None:
    """Raise WrongResultError unless both sides hold all keys of the population."""
    everything = len(pair.population.keys)
    if not ours.summarize(WHOLE) == theirs.summarize(WHOLE) or len(ours) != everything:
        raise WrongResultError(
            f"the sides hold {len(ours):,} and {len(theirs):,} keys, not {everything:,} both"
        )


def check_difference(pair: Pair, count: int) -> None:
    """Raise WrongResultError unless that is the number of differences."""
    if count != pair.differences:
        raise WrongResultError(f"{count:,} differences were found, not {pair.differences:,}")


def _count(cost: Cost, size: int, *, sent: bool) -> None:
    if sent:
        cost.bytes_sent += size
    else:
        cost.bytes_received += size
