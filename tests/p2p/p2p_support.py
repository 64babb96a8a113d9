"""Shared by the p2p tests: hosts and nodes on loopback.

Several nodes in one process share the DHT's protocol id: all tests use the network NETWORK.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from support.waiting import eventually as eventually
from trio.testing import memory_stream_pair

from recon_node.ceramic import EventId, Network
from recon_node.fairness.slots import TokenBuckets
from recon_node.ipld import encode_varint
from recon_node.p2p import AGREED, P2P, P2PSettings, open_p2p
from recon_node.p2p.context import Counters
from recon_node.p2p.settings import MAX_REQUEST
from recon_node.p2p.sync.event_stream import (
    AdmitEvents,
    EventRequest,
    RequestByIds,
    RequestByKeys,
    fetch_events,
)
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.p2p.sync.rings import PEER_RING
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host, open_host
from recon_node.recon import VERSIONS, SoughtIds, Version
from recon_node.store import Policy, Store, StoreSettings, open_store

NETWORK = Network.local(7)
LOOPBACK = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",))

PATIENCE = 60.0
"""Seconds to wait for what takes milliseconds: the machine may be slow, and busy with more."""

Held = tuple[EventId, bytes]
"""An event that someone holds: its EventId and CAR."""


ELSEWHERE = "127.0.0.2"
"""Where attackers come from; whoever is honest comes from 127.0.0.1."""
needs_two_loopback_addresses = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere 127.0.0.2 is not an address of the loopback"
)


@contextmanager
def dialling_from(monkeypatch: pytest.MonkeyPatch, address: str) -> Iterator[None]:
    """Make all connections of this process from an address."""
    stock = trio.open_tcp_stream

    async def from_there(host, port, **options):
        return await stock(host, port, **options, local_address=address)

    with monkeypatch.context() as patch:
        patch.setattr(trio, "open_tcp_stream", from_there)
        yield


@asynccontextmanager
async def loopback_host(**changes: Any) -> AsyncIterator[Host]:
    """A host with a fresh identity on a free port of loopback."""
    async with open_host(replace(LOOPBACK, **changes), create_new_key_pair()) as host:
        yield host


def encode_frame(data: bytes) -> bytes:
    """Put the length before a frame's bytes."""
    return encode_varint(len(data)) + data


async def read_to_end(stream: Any) -> None:
    """Read until the stream ends, or is reset: of a libp2p stream, that may look alike."""
    with trio.fail_after(PATIENCE), suppress(trio.BrokenResourceError):
        while await stream.receive_some(100):
            pass


def only_connection(host: Host, peer: Host) -> Any:
    """The muxed connection that `host` has with `peer`; there must be one."""
    (connection,) = host._live(peer.libp2p.get_id())
    return connection.muxed_conn


def sessions(counters: Counters, *kinds: str) -> int:
    """How many sessions have ended: those of a role, with a result, or both."""
    return sum(took.count for labels, took in counters.durations.items() if {*kinds} <= {*labels})


def rate_limit_of(rate: float, burst: float) -> KeyRateLimit:
    """A pace other than that of a node: keys a second, and keys without a wait."""
    rate_limit = KeyRateLimit()
    rate_limit._buckets = TokenBuckets(burst, rate, 1000)
    return rate_limit


def frame_pair() -> tuple[FrameStream, FrameStream]:
    """The two ends of a stream in memory."""
    left, right = memory_stream_pair()
    return FrameStream(left, LOOPBACK.max_frame), FrameStream(right, LOOPBACK.max_frame)


async def fetch_all(
    frames: FrameStream,
    wanted: Sequence[EventId] | SoughtIds,
    admit: AdmitEvents,
    patience: float = PATIENCE,
    per_request: int = MAX_REQUEST,
) -> list[bytes]:
    """Fetch events by EventIds, or by ids; return those of the events that were not supplied."""

    def requests() -> Iterator[EventRequest]:
        names = wanted.ids if isinstance(wanted, SoughtIds) else wanted
        for start in range(0, len(names), per_request):
            part = names[start : start + per_request]
            if isinstance(wanted, SoughtIds):
                yield RequestByIds(wanted.key_range, part)
            else:
                yield RequestByKeys(part)

    not_supplied: list[bytes] = []
    await fetch_events(frames, requests(), admit, not_supplied.extend, patience)
    return not_supplied


async def fetch_from(answers: list[bytes], wanted: Sequence[EventId] | SoughtIds) -> list[Held]:
    """Fetch from a peer that sends these frames, whatever it is asked; return what was taken."""
    ours, theirs = frame_pair()
    received: list[Held] = []

    async def deliver(events: Sequence[Held]) -> None:
        received.extend(events)

    await theirs.send(answers, PATIENCE)
    await theirs._stream.send_eof()
    await fetch_all(ours, wanted, deliver, 30)
    return received


@asynccontextmanager
async def node(
    data_dir: Path,
    cars: Sequence[bytes] = (),
    versions: Sequence[Version[Any]] = VERSIONS,
    ceramic_one: bool = True,
    policy: Policy | None = None,
    verifiers: int = 0,
    max_waiting: int = 1_000_000,
    **changes: Any,
) -> AsyncIterator[Node]:
    """A store with some events and the network side over it, on a free port of loopback."""
    settings = replace(LOOPBACK, **{"discovery": False, **changes})
    of_store = StoreSettings(ceramic_one=ceramic_one, verifiers=verifiers, max_waiting=max_waiting)
    async with open_store(data_dir, NETWORK, settings=of_store, policy=policy) as store:
        await store.admit_local(cars)
        async with open_p2p(settings, store, data_dir, versions) as p2p:
            yield Node(store, p2p)


@asynccontextmanager
async def two_nodes(
    tmp_path: Path,
    of_a: Sequence[bytes] = (),
    of_b: Sequence[bytes] = (),
    only_b: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> AsyncIterator[tuple[Node, Node]]:
    """Nodes `a` and `b` with some events and the same settings but `only_b`; `b` dialled `a`."""
    async with (
        node(tmp_path / "a", of_a, **options) as a,
        node(tmp_path / "b", of_b, **{**options, **only_b}) as b,
    ):
        await b.p2p.connect(a.address)
        yield a, b


QUIET: dict[str, Any] = {"sync_interval": 3600, "push_delay": 3600}
"""The node starts no session of its own accord, once it has synced with a new peer."""


@asynccontextmanager
async def victim_and_peer(
    tmp_path: Path, cars: Sequence[bytes] = (), **changes: Any
) -> AsyncIterator[tuple[Node, Host]]:
    """A quiet node with some events, and a host connected with it that speaks by hand."""
    async with (
        node(tmp_path / "victim", cars, **{**QUIET, **changes}) as victim,
        loopback_host() as peer,
    ):
        await connect(peer, victim)
        yield victim, peer


async def assert_still_serves(victim: Node, tmp_path: Path) -> None:
    """An honest node reconciles with the one that was mistreated."""
    async with node(tmp_path / "honest") as honest:
        await honest.p2p.connect(victim.address)
        await eventually(lambda: AGREED in honest.outcomes())
        assert honest.ahash() == victim.ahash()


def streams_opened(by: Node, kind: str) -> list[str]:
    """The protocols of the streams that a node opens from now on, of those of a kind."""
    opened = []
    open_stream = by.p2p._host.open_stream

    async def noted(peer_id: str, *protocols: str) -> Any:
        stream = await open_stream(peer_id, *protocols)
        if kind in stream.protocol:
            opened.append(stream.protocol)
        return stream

    by.p2p._host.open_stream = noted
    return opened


async def connect(peer: Host, to: Node) -> None:
    """Connect a host with a node, and wait until it has identified itself.

    One that speaks no recon is forgotten then, with all that was noted of it.
    """
    await peer.connect(to.address)
    identified = to.p2p._host.libp2p._identified_peers
    await eventually(lambda: peer.libp2p.get_id() in identified)


@dataclass
class Node:
    """A node without its HTTP side."""

    store: Store
    p2p: P2P

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self.p2p.addresses[0]

    def holds_as_many_as(self, count: int) -> bool:
        """Return whether so many events are here, all delivered."""
        return len(self.store.keys) == self.store.head == count

    def ahash(self) -> str:
        """The hash of all that it holds."""
        return self.store.keys.summarize(self.store.wanted.ranges[0]).hash.hex()

    def outcomes(self) -> list[str]:
        """How the sessions so far ended in which events could be exchanged."""
        reports = self.p2p.sync_reports
        return [report.outcome for report in reports if report.protocol != PEER_RING]

    def failures(self, peer_id: str) -> int:
        """How often a peer has failed in a row."""
        return sum(peer.failures for peer in self.p2p.peers() if peer.id == peer_id)
