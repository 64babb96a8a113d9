"""Attacks by connections, messages and requests, as many as a hostile peer or client can make."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.id import ID

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import NETWORK as NETWORK_NAME
from benchmarks.attack.field import OWNER, Field, add, make_model
from benchmarks.attack.measuring import Row
from recon_node.ipld import encode_varint
from recon_node.p2p.peers.interest_statement import (
    INTERESTS_PROTOCOL,
    MAX_PREFIXES,
    NOTHING_KNOWN,
    InterestStatement,
    state,
)
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import RECON_1_2, KeyRange
from recon_node.recon.coded.messages import (
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    RANGE_DIGEST_SIZE,
    Gaps,
    Message,
)

SECONDS: Final = 5.0
"""How long each flood lasts."""
_Flood = Callable[[Host, str], Awaitable[None]]


async def _gossip(host: Host, victim: str) -> None:
    stream = await host.open_stream(victim, INTERESTS_PROTOCOL)
    frames = FrameStream(stream, 0, account=stream.account)
    for _ in range(3):
        prefixes = sorted(os.urandom(20) for _ in range(MAX_PREFIXES))
        await frames.send(
            [InterestStatement(hostile.NETWORK.id, tuple(prefixes), os.urandom(8)).encode()], 10
        )
    await trio.sleep(0.02)
    await stream.reset()


async def _rapid_streams(host: Host, victim: str) -> None:
    async def one() -> None:
        with suppress(Exception):
            await (await host.open_stream(victim, "/ipfs/ping/1.0.0")).reset()

    async with trio.open_nursery() as nursery:
        for _ in range(32):
            nursery.start_soon(one)


def _wire(host: Host, victim: str) -> Any:
    """The connection below the streams."""
    connection: Any = host._live(ID.from_string(victim))[0].muxed_conn
    return connection.secured_conn


async def _raw_streams(host: Host, victim: str) -> None:
    """Open and reset streams without waiting for anything."""
    start = 1_000_001 + 2 * int.from_bytes(os.urandom(3))
    await _wire(host, victim).write(
        b"".join(
            struct.pack("!BBHII", 0, 1, flag, number, 0)
            for number in range(start, start + 1000, 2)
            for flag in (1, 8)
        )
    )


async def _pings(host: Host, victim: str) -> None:
    await _wire(host, victim).write(
        b"".join(struct.pack("!BBHII", 0, 2, 1, 0, number) for number in range(1000))
    )


async def _empty_data(host: Host, victim: str) -> None:
    await _wire(host, victim).write(struct.pack("!BBHII", 0, 0, 0, 77, 0) * 1000)


async def _lookups(host: Host, victim: str) -> None:
    stream = await host.open_stream(victim, f"/ceramic/{NETWORK_NAME}/kad/1.0.0")

    async def read() -> None:
        while await stream.receive_some(65536):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(300):
            message = KadMessage(type=KadMessage.MessageType.FIND_NODE, key=os.urandom(32))
            raw = message.SerializeToString()
            await stream.send_all(encode_varint(len(raw)) + raw)
        nursery.cancel_scope.cancel()
    await stream.reset()


async def _sketches(host: Host, victim: str) -> None:
    """A range of its own each time, with a wrong end and a count that calls for an estimate."""
    stream = await host.open_stream(victim, RECON_1_2.id)
    frames = hostile.frames_of(stream)
    own = KeyRange(bytes(hostile.WHOLE.lower) + os.urandom(8), hostile.WHOLE.upper)
    message = Message(own, digest=os.urandom(RANGE_DIGEST_SIZE), count=140_000)
    await frames.send([RECON_1_2.encode(message)], 10)
    await frames.receive(20, 20)
    await stream.reset()


async def _fingerprints(host: Host, victim: str) -> None:
    """A message with 18,000 bounds, whose fingerprints are all wrong."""
    gaps = Gaps()
    for bound in sorted(hostile.WHOLE.lower[:8] + os.urandom(8) for _ in range(18_000)):
        gaps.append(bound, FINGERPRINT, os.urandom(FINGERPRINT_SIZE))
    gaps.append(END, FINGERPRINT, os.urandom(FINGERPRINT_SIZE))
    stream = await host.open_stream(victim, RECON_1_2.id)
    frames = hostile.frames_of(stream)
    await frames.send([RECON_1_2.encode(Message(hostile.WHOLE, gaps))], 20)
    await frames.receive(60, 60)
    await stream.reset()


_FLOODS: Final[dict[str, tuple[_Flood, int]]] = {
    "gossip": (_gossip, 4),
    "rapid streams": (_rapid_streams, 1),
    "raw streams": (_raw_streams, 1),
    "pings": (_pings, 1),
    "empty data": (_empty_data, 1),
    "lookups": (_lookups, 4),
    "sketches": (_sketches, 4),
    "fingerprints": (_fingerprints, 4),
}
"""Each with how many programs run at once."""


async def flood(address: str, name: str) -> None:
    send, count = _FLOODS[name]
    victim = hostile.peer_id(address)

    async def one() -> None:
        async with hostile.new_host(address) as host:
            while True:
                await send(host, victim)

    await hostile.at_once(SECONDS, count, hostile.again, one)


@attack(flags=lambda: ("--discovery",))  # without which nobody can look up anything
def floods(here: Field) -> None:
    """One peer sends as many messages, streams and lookups as it can, seven kinds in turn."""
    with here.attacked():
        for name in _FLOODS.keys() - {"sketches"}:  # which weigh more at a node with many events
            hostile.attack_node(here, SECONDS, flood, name)


@attack()
def connections_without_end(here: Field) -> None:
    """TCP connections that begin a handshake keep the node busy and its slots taken."""
    with here.attacked():
        hostile.attack_node(here, SECONDS, _handshakes)


async def _handshakes(address: str) -> None:
    port = int(address.split("/")[4])
    opening = b"\x13/multistream/1.0.0\n\x07/noise\n" + bytes([0, 32])

    async def one() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(opening + os.urandom(32))
            await stream.receive_some(200)

    await hostile.at_once(SECONDS, 16, hostile.again, one)


async def _hold_slots(address: str, count: int) -> None:
    """One idle connection each from many addresses of the loopback."""
    real = trio.open_tcp_stream

    async def take(stream: PeerStream) -> None:
        while await stream.receive_some(4096):
            pass

    async def hold() -> None:
        with hostile.cut_off():
            async with hostile.new_host(address) as host:
                host.handle(INTERESTS_PROTOCOL, take)
                host.handle(RECON_1_2.id, take)
                stream = await host.open_stream(hostile.peer_id(address), INTERESTS_PROTOCOL)
                frames = FrameStream(stream, 0, account=stream.account)
                all_ = state(hostile.NETWORK, [hostile.WHOLE], NOTHING_KNOWN)
                await frames.send([all_.encode()], 5)
                await trio.sleep_forever()

    source: list[str] = [""]

    async def from_source(host: str, port: int, **options: Any) -> trio.SocketStream:
        return await real(host, port, local_address=source[0], **options)

    trio.open_tcp_stream = from_source  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        for number in range(count):
            source[0] = f"127.1.{number // 250}.{1 + number % 250}"
            nursery.start_soon(hold)
            await trio.sleep(0.08)


def _connected(here: Field) -> int:
    """How many connections of `_hold_slots` the node has, as the kernel says."""
    port = int(here.node.addresses[0].split("/")[4])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours, established = f"0100007F:{port:04X}", "01"
    return sum(
        local == ours and remote.partition(":")[0].endswith("017F") and kind == established
        for _, local, remote, kind, *_ in lines
    )


@attack()
def all_slots(here: Field) -> None:
    """Idle connections from 150 addresses keep an honest newcomer out."""
    model, _ = make_model(OWNER, name="by a newcomer")
    with here.attacked(), hostile.attacker(_hold_slots, here.node.addresses[0], 150):
        time.sleep(25)
        here.rows.append(Row("slots taken", "", f"{_connected(here)} of 150", holds=True))
        with here.newcomer() as newcomer:
            add(newcomer.api_url, [model])
            with suppress(TimeoutError):
                here.at_most("newcomer's event", here.await_event(model), 20.0)
                return
    here.expect("the newcomer gets in", True, False)


@contextmanager
def _clients(url: str, count: int, start: bytes) -> Iterator[list[socket.socket]]:
    """Connections that begin a request and do not end it."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            try:
                sockets.append(stack.enter_context(socket.create_connection(address, timeout=5)))
                sockets[-1].sendall(start)
            except OSError:
                continue  # it was shut out, as it may be
        yield sockets


def _slowly(here: Field, count: int, start: bytes, seconds: float = 6.0) -> None:
    with _clients(here.url, count, start) as sockets:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1)
            for client in sockets:
                with suppress(OSError):
                    client.sendall(b"a")


@attack(short=True)
def slow_clients(here: Field) -> None:
    """Clients of the API that say little, slowly, shut out liveness and all others."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    head = b"HTTP/1.1\r\nHost: localhost\r\n"
    with here.attacked():
        _slowly(here, 520, b"")
        _slowly(here, 520, b"GET /ceramic/liveness " + head + b"X: ")
        _slowly(here, 130, b"GET /ceramic/feed/head?wait=30 " + head + b"\r\n")
        body = b"POST /ceramic/events " + head + b"Content-Length: 4000000\r\n\r\n"
        _slowly(here, 128, body + bytes(3_900_000))
    here.expect("liveness after", 200, httpx.get(f"{here.url}/ceramic/liveness").status_code)
