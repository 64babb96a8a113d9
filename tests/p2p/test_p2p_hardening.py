"""Each remedy of p2p/transport/hardening.py against the reproduction of what it remedies.

All of these fail on py-libp2p 0.8.1 as it comes: remove a method there and its test fails.
"""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from Crypto.PublicKey import RSA
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.exceptions import CryptographyError
from libp2p.crypto.pb.crypto_pb2 import KeyType, PublicKey
from libp2p.crypto.serialization import deserialize_public_key
from libp2p.peer.envelope import consume_envelope
from libp2p.peer.id import ID
from libp2p.peer.pb.envelope_pb2 import Envelope
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr
from p2p_support import PATIENCE, eventually, loopback_host, only_connection, read_to_end
from trio.testing import MockClock, wait_all_tasks_blocked

from recon_node.ipld import encode_varint
from recon_node.p2p.errors import PeerError
from recon_node.p2p.settings import ConnectionLimits
from recon_node.p2p.transport import hardening
from recon_node.p2p.transport import host as host_module
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.guarded_connection import READ_AT_ONCE, GuardedStream, ReadAhead
from recon_node.p2p.transport.hardening import MAX_PEER_ADDRESSES, MAX_PEER_PROTOCOLS
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.identity import bound_peer_ids, bound_rsa_keys

MULTISTREAM = b"\x13/multistream/1.0.0\n"
RST = 8
MIB = 1 << 20


async def echo(stream: PeerStream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


async def assert_echoes(host: Host, peer_id: str) -> None:
    with trio.fail_after(PATIENCE):
        stream = await host.open_stream(peer_id, "/echo/1")
        await stream.send_all(b"still here")
        assert await stream.receive_some(100) == b"still here"
        await stream.aclose()


@asynccontextmanager
async def echoing(**changes: Any) -> AsyncIterator[tuple[Host, Host, str]]:
    """A host, one with these settings that it is connected with, which echoes, and its peer id."""
    async with loopback_host() as a, loopback_host(**changes) as b:
        b.handle("/echo/1", echo)
        yield a, b, await a.connect(b.addresses[0])


def muxed_stream(stream: PeerStream):
    return stream._stream.muxed_stream


# --- peer ids --------------------------------------------------------------------------------


def test_a_peer_id_of_any_length_is_written_at_once():
    """Stock takes minutes for these."""
    bound_peer_ids()
    key = create_new_key_pair().public_key
    assert ID.from_base58(str(ID.from_pubkey(key))) == ID.from_pubkey(key)
    long = [ID(bytes([1]) * (1 << 22)), ID(bytes([2]) * (1 << 22))]
    assert len({str(peer_id) for peer_id in long}) == 2
    with pytest.raises(ValueError, match="4194304 characters"):
        ID.from_base58("Q" * (1 << 22))
    part = b"\x01\x72\x00" + encode_varint(1 << 22) + bytes(1 << 22)
    address = Multiaddr(b"\xa5\x03" + encode_varint(len(part)) + part)
    with pytest.raises(ValueError, match="in an address"):
        str(address)


def test_public_rsa_keys_are_read_as_by_the_library():
    bound_rsa_keys()
    key = rsa.generate_private_key(65537, 2048).public_key()
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    data = key.public_bytes(serialization.Encoding.DER, info)
    message = PublicKey(key_type=KeyType.RSA, data=data).SerializeToString()
    assert deserialize_public_key(message).impl == RSA.import_key(data)


def rsa_key(bits: int, *parts: int) -> bytes:
    """A key of this exponent; a private one if that of decryption and two factors follow."""
    return RSA.construct(((1 << bits) + 1, *parts), consistency_check=False).export_key("DER")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (rsa_key(32768, 65537), "are read"),
        (rsa_key(2048, 65537, 3, 5, 7), "not a public key"),
        (rsa_key(2048, (1 << 40) + 1), "31 bits"),
        (b"no key", "not a public key"),
    ],
)
def test_other_rsa_keys_are_refused(data: bytes, words: str):
    """Stock tests the factors of a private key, whatever its size."""
    bound_rsa_keys()
    message = PublicKey(key_type=KeyType.RSA, data=data).SerializeToString()
    with pytest.raises(CryptographyError, match=words):
        deserialize_public_key(message)
    record = Envelope(public_key={"Type": KeyType.RSA, "Data": data}).SerializeToString()
    with pytest.raises(CryptographyError, match=words):
        consume_envelope(record, "libp2p-peer-record")


# --- GuardedHost -----------------------------------------------------------------------------


async def test_an_exception_in_a_stream_handler_resets_that_stream_only():
    async def fail(stream: PeerStream) -> None:
        raise ValueError("a bug in a handler")

    async with echoing() as (a, b, peer):
        b.handle("/fail/1", fail)
        with suppress(PeerError):  # it may fail before it is open
            await read_to_end(await a.open_stream(peer, "/fail/1"))
        await assert_echoes(a, peer)


async def test_a_protocol_name_that_is_not_utf8_does_not_end_the_host():
    async with echoing() as (a, b, peer):
        connection = only_connection(a, b)
        stream = await connection.open_stream()
        await stream.write(MULTISTREAM + b"\x04\xff\xfe\xfd\n")
        await eventually(lambda: stream.closed)
        await assert_echoes(a, peer)


async def test_a_peer_may_have_only_so_many_streams_open_at_once():
    limits = ConnectionLimits(max_inbound_streams=3)
    async with echoing(connection=limits) as (a, b, peer):
        b_to_a = only_connection(b, a)
        await eventually(lambda: b_to_a.inbound_streams == 0)  # identify has been here
        streams = [await a.open_stream(peer, "/echo/1") for _ in range(3)]
        with pytest.raises(PeerError):
            await a.open_stream(peer, "/echo/1")
        for stream in streams:
            await stream.aclose()
        await eventually(lambda: b_to_a.inbound_streams == 0)
        await assert_echoes(a, peer)


async def test_a_peer_that_takes_no_data_delays_no_pings_of_others():
    """Stock resets the third stream of a peer, and answers nobody before that is done."""

    async def write(data: bytes) -> None:
        if data[3] == RST:
            await trio.sleep_forever()
        await write_frame(data)

    async with loopback_host() as a, loopback_host() as b, loopback_host() as host:
        for peer in (a, b):
            await peer.connect(host.addresses[0])
        to_a = only_connection(host, a)
        write_frame, to_a._write_frame = to_a._write_frame, write
        for _ in range(3):
            await a.open_stream(host.peer_id, "/ipfs/ping/1.0.0")
        with trio.fail_after(PATIENCE):
            stream = await b.open_stream(host.peer_id, "/ipfs/ping/1.0.0")
            await stream.send_all(bytes(32))
            assert await stream.receive_some(32) == bytes(32)


# --- GuardedSwarm ----------------------------------------------------------------------------


async def test_inbound_slots_come_back_when_connections_end():
    async with loopback_host(max_connections=2) as b:
        for _ in range(4):
            async with loopback_host() as a:
                await a.connect(b.addresses[0])
            await eventually(lambda: not b.connected_peers())


async def test_dials_that_are_cancelled_use_up_nothing():
    async with loopback_host(max_connections=2) as a, loopback_host() as b:
        (silent,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = silent.socket.getsockname()[1]
        nobody = ID.from_pubkey(create_new_key_pair().public_key)
        for _ in range(5):
            with trio.move_on_after(0.02):
                await a.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{nobody}")
        await a.connect(b.addresses[0])
        assert a._swarm._resource_manager is None  # what it counts is lost on such dials
        await silent.aclose()


async def test_the_library_dials_nobody_on_its_own():
    async with loopback_host() as a, loopback_host() as b:
        heard_of = [Multiaddr(b.addresses[0])]
        a.libp2p.get_peerstore().add_addrs(b.libp2p.get_id(), heard_of, 60)
        with trio.fail_after(PATIENCE):
            await a._swarm.auto_connector.maybe_connect()
        assert not a.connected_peers()


async def test_the_library_remembers_nobody_who_has_disconnected():
    async with loopback_host() as b:
        async with loopback_host() as a:
            await a.connect(b.addresses[0])
        await eventually(lambda: not b.connected_peers())
        await eventually(lambda: not b._swarm.get_connections())
        assert not b._swarm.auto_connector._recent_disconnects


async def test_of_two_connections_made_at_once_both_sides_keep_the_same_one():
    async with loopback_host() as a, loopback_host() as b:
        b.handle("/echo/1", echo)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.connect, b.addresses[0])
            nursery.start_soon(b.connect, a.addresses[0])
        a_id, b_id = a.libp2p.get_id(), b.libp2p.get_id()
        await eventually(lambda: len(a._live(b_id)) == len(b._live(a_id)) == 1)
        smaller = a if a_id.to_bytes() < b_id.to_bytes() else b
        larger = b if smaller is a else a
        assert only_connection(smaller, larger).is_initiator
        assert not only_connection(larger, smaller).is_initiator
        await assert_echoes(a, b.peer_id)


# --- GuardedYamux and GuardedStream ----------------------------------------------------------


async def test_a_cancelled_write_leaves_the_connection_usable():
    async with echoing() as (a, b, peer):
        stream = await a.open_stream(peer, "/echo/1")
        muxed_stream(stream).send_window = 64 * MIB  # write more than the sockets hold
        b_reads = only_connection(b, a).streams_lock
        async with trio.open_nursery() as nursery, b_reads:
            nursery.start_soon(stream.send_all, bytes(24 * MIB))
            await wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        await stream.reset()
        await assert_echoes(a, peer)


async def test_a_peer_that_takes_no_data_is_cut_off():
    limits = ConnectionLimits(ping_interval=3600)
    async with loopback_host(connection=limits) as a, loopback_host(connection=limits) as b:
        b.handle("/echo/1", echo)
        peer = await a.connect(b.addresses[0])
        stream = await a.open_stream(peer, "/echo/1")
        muxed_stream(stream).send_window = 64 * MIB
        only_connection(a, b).limits = replace(limits, write_timeout=0.2)
        async with only_connection(b, a).streams_lock:
            with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError):
                await stream.send_all(bytes(24 * MIB))
            await eventually(lambda: not a.connected_peers())


async def test_a_peer_that_answers_no_ping_is_dropped():
    limits = ConnectionLimits(ping_interval=0.05)
    async with loopback_host(connection=limits) as a, loopback_host() as b:
        await a.connect(b.addresses[0])
        await eventually(lambda: only_connection(a, b).rtt() > 0)  # pings come and go
        asking, answering = only_connection(a, b), only_connection(b, a)
        async with answering._write_lock:  # until b falls silent
            asking.limits = replace(limits, ping_timeout=0.2)
            await eventually(lambda: not a.connected_peers())


@asynccontextmanager
async def standing_still(clock: MockClock) -> AsyncIterator[None]:
    """Let time pass after the block only, since hosts pause while they close."""
    try:
        yield
    finally:
        clock.rate = 1


async def test_a_writer_waits_for_a_slow_reader_as_long_as_it_wants_to(mock_clock):
    go_on = trio.Event()

    async def read_late(stream: PeerStream) -> None:
        await go_on.wait()
        total = 0
        while total < MIB and (data := await stream.receive_some(65536)):
            total += len(data)
        await stream.send_all(b"%d" % total)

    limits = ConnectionLimits(max_window=MIB // 4)
    async with loopback_host() as a, loopback_host(connection=limits) as b:
        b.handle("/late/1", read_late)
        stream = await a.open_stream(await a.connect(b.addresses[0]), "/late/1")
        async with standing_still(mock_clock), trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, bytes(MIB))
            await wait_all_tasks_blocked(0.05)
            for _ in range(12):
                mock_clock.jump(1)
                await wait_all_tasks_blocked()
            go_on.set()  # the window itself wakes the writer
        assert await stream.receive_some(100) == b"%d" % MIB


@pytest.mark.parametrize("end", ["their reset", "our reset", "our close", "their connection"])
async def test_a_waiting_writer_learns_of_the_end_at_once(mock_clock, end):
    """It does not look from time to time, for there is no time."""
    ended = trio.Event()

    async def never_read(stream: PeerStream) -> None:
        await ended.wait()
        if end == "their reset":
            await stream.reset()
        await trio.sleep_forever()

    async with loopback_host() as a, loopback_host() as b:
        b.handle("/never/1", never_read)
        stream = await a.open_stream(await a.connect(b.addresses[0]), "/never/1")

        async def write() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(bytes(MIB))

        async with standing_still(mock_clock), trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await wait_all_tasks_blocked(0.05)
            ended.set()
            if end == "our reset":
                await stream.reset()
            elif end == "our close":
                await muxed_stream(stream).close()
            elif end == "their connection":
                await only_connection(b, a).secured_conn.close()


async def test_writers_of_one_stream_do_not_mix_their_bytes():
    async with echoing() as (a, _, peer):
        stream = await a.open_stream(peer, "/echo/1")
        received = bytearray()
        async with trio.open_nursery() as nursery:
            for letter in (b"a", b"b"):
                nursery.start_soon(stream.send_all, letter * MIB)
            while len(received) < 2 * MIB:
                received += await stream.receive_some(65536)
        assert received in (b"a" * MIB + b"b" * MIB, b"b" * MIB + b"a" * MIB)


async def test_a_peer_that_ignores_flow_control_is_cut_off():
    async def never_read(stream: PeerStream) -> None:
        await trio.sleep_forever()

    limits = ConnectionLimits(max_buffered=MIB)
    async with loopback_host() as a, loopback_host(connection=limits) as b:
        b.handle("/never/1", never_read)
        stream = await a.open_stream(await a.connect(b.addresses[0]), "/never/1")
        muxed_stream(stream).send_window = 64 * MIB
        with trio.fail_after(PATIENCE), suppress(trio.BrokenResourceError):
            await stream.send_all(bytes(32 * MIB))
        await eventually(lambda: not b.connected_peers())


async def test_a_streams_window_grows_no_further_than_the_limit():
    windows = []

    async def read_all(stream: PeerStream) -> None:
        while await stream.receive_some(65536):
            windows.append(muxed_stream(stream).target_recv_window)

    limits = ConnectionLimits(max_window=MIB // 2)
    async with loopback_host() as a, loopback_host(connection=limits) as b:
        b.handle("/read/1", read_all)
        peer = await a.connect(b.addresses[0])
        stream = await a.open_stream(peer, "/read/1")
        await stream.send_all(bytes(16 * MIB))
        await stream.aclose()
        await eventually(lambda: len(windows) >= 16 * MIB / 65536)
    assert max(windows) == MIB // 2


async def test_reads_of_single_bytes_send_the_peer_no_frames():
    """New credit is due once half of the window is used. Stock sends some with every read."""

    async def read_bytes(stream: PeerStream) -> None:
        for _ in range(100):
            assert await stream.receive_some(1)
        await stream.send_all(b"done")

    async with loopback_host() as a, loopback_host() as b:
        b.handle("/bytes/1", read_bytes)
        stream = await a.open_stream(await a.connect(b.addresses[0]), "/bytes/1")
        full = muxed_stream(stream).send_window
        with trio.fail_after(PATIENCE):
            await stream.send_all(bytes(100))
            assert await stream.receive_some(4) == b"done"
        assert full - muxed_stream(stream).send_window == 100


@pytest.mark.parametrize("resets", [False, True])
async def test_nothing_is_left_of_a_stream_once_nobody_here_uses_it(resets):
    """The peer resets it while it is read, or never ends it."""

    async def read_once(stream: PeerStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(1)

    async with loopback_host() as a, loopback_host() as b:
        b.handle("/once/1", read_once)
        stream = await a.open_stream(await a.connect(b.addresses[0]), "/once/1")
        there = only_connection(b, a)
        assert muxed_stream(stream).stream_id in there.streams
        await (stream.reset() if resets else stream.send_all(b"x"))
        left = there.streams, there.stream_buffers, there.stream_events
        await eventually(lambda: not any(left))


async def test_a_reader_ends_when_another_task_closes_the_stream():
    async with echoing() as (a, _, peer), trio.open_nursery() as nursery:
        stream = await a.open_stream(peer, "/echo/1")
        nursery.start_soon(stream.receive_some, 1)
        await wait_all_tasks_blocked()
        with trio.fail_after(PATIENCE):
            await stream.aclose()
            await eventually(lambda: not nursery.child_tasks)


async def test_a_stream_that_is_closed_behind_other_writers_ends_in_good_order(monkeypatch):
    """They may take longer than a reset may: a slow line takes seconds for their frames."""
    monkeypatch.setattr(hardening, "_RESET_LIMIT", 0.0)
    async with echoing() as (a, b, peer):
        stream = await a.open_stream(peer, "/echo/1")
        await stream.send_all(b"data")
        async with trio.open_nursery() as nursery, only_connection(a, b)._write_lock:
            nursery.start_soon(stream.aclose)
            await wait_all_tasks_blocked()
        await eventually(lambda: not (a.has_streams(peer) or b.has_streams(a.peer_id)))


async def test_a_reader_that_is_cancelled_loses_nothing(monkeypatch):
    """What it reads has left the buffer by the time it sends new credit, behind other writers."""
    monkeypatch.setattr(GuardedStream, "_grow_threshold", lambda _: 1)
    read = bytearray()

    async def read_some(stream: PeerStream, scope: trio.CancelScope) -> None:
        with scope:
            read.extend(await stream.receive_some(4))

    async with echoing() as (a, b, peer), trio.open_nursery() as nursery:
        stream = await a.open_stream(peer, "/echo/1")
        await stream.send_all(b"data")
        connection, scope = only_connection(a, b), trio.CancelScope()
        unread = connection.stream_buffers[muxed_stream(stream).stream_id]
        await eventually(lambda: unread == b"data")
        async with connection._write_lock:  # as if others were writing
            nursery.start_soon(read_some, stream, scope)
            await eventually(lambda: not unread)
            scope.cancel()
            await wait_all_tasks_blocked(0.01)
        await eventually(lambda: read == b"data")


async def test_more_streams_than_the_muxer_has_are_an_error_and_not_a_hang():
    limits = ConnectionLimits(max_inbound_streams=1000)
    async with loopback_host(connection=limits) as a, loopback_host(connection=limits) as b:
        await a.connect(b.addresses[0])
        connection = only_connection(a, b)
        await eventually(lambda: b.libp2p.get_id() in a.libp2p._identified_peers)
        await eventually(lambda: connection.stream_backlog_semaphore.value == 256)
        with trio.fail_after(PATIENCE):
            for _ in range(256):
                await connection.open_stream()
            with pytest.raises(MuxedStreamError, match="in use"):
                await connection.open_stream()


async def test_a_cancelled_opening_gives_its_slot_back():
    async with echoing() as (a, b, peer):
        connection = only_connection(a, b)
        await eventually(lambda: peer in map(str, a.libp2p._identified_peers))
        await eventually(lambda: connection.stream_backlog_semaphore.value == 256)
        async with trio.open_nursery() as nursery, connection._write_lock:
            nursery.start_soon(a.open_stream, peer, "/echo/1")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await eventually(lambda: connection.stream_backlog_semaphore.value == 256)


# --- negotiation and security ----------------------------------------------------------------


async def test_an_endless_negotiation_line_is_refused_unread(monkeypatch):
    monkeypatch.setattr(host_module, "_NEGOTIATION_TIMEOUT", 3600.0)  # which would end it, too
    async with loopback_host() as b:
        port = int(b.addresses[0].split("/")[4])
        async with await trio.open_tcp_stream("127.0.0.1", port) as raw:
            await raw.send_all(MULTISTREAM + encode_varint(1 << 33) + b"x")
            await read_to_end(raw)


async def test_a_peer_without_encryption_is_refused():
    async with loopback_host() as b:
        keys = create_new_key_pair()
        plain = new_host(keys, sec_opt={PLAINTEXT_PROTOCOL_ID: InsecureTransport(keys)})
        async with plain.run([]):
            with trio.fail_after(PATIENCE), pytest.raises(Exception, match="security"):
                await plain.get_network().dial_addr(Multiaddr(b.addresses[0]), b.libp2p.get_id())
        assert not b.connected_peers()


async def test_garbage_of_any_kind_on_a_connection_leaves_the_host_serving():
    kinds = [
        b"",
        b"\xff" * 100,
        MULTISTREAM + b"\xff" * 20,
        MULTISTREAM + b"\x07/noise\n" + b"\x00\x20" + b"\x01" * 32,
        struct.pack("!BBHII", 9, 9, 9, 9, 9) * 10,
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    async with loopback_host() as a, loopback_host() as b:
        b.handle("/echo/1", echo)
        port = int(b.addresses[0].split("/")[4])
        for kind in kinds:
            raw = await trio.open_tcp_stream("127.0.0.1", port)
            await raw.send_all(kind)
            await raw.aclose()
        peer = await a.connect(b.addresses[0])
        connection = only_connection(a, b)
        for kind in kinds:
            stream = await connection.open_stream()
            await stream.write(kind or b"\x00")
            await stream.close()
        await assert_echoes(a, peer)


async def test_the_peerstore_is_bounded(monkeypatch):
    """Stock: whatever any peer names is kept, and each address compared with all of its peer's."""
    monkeypatch.setattr(hardening, "MAX_PEERS", 10)
    async with loopback_host() as host, loopback_host() as peer:
        await host.connect(peer.addresses[0])
        store = host.libp2p.get_peerstore()
        strangers = [ID(b"\x00\x01%c" % number) for number in range(20)]
        addresses = [Multiaddr(f"/ip4/10.0.0.{last}/tcp/1") for last in range(40)]
        for stranger in strangers:
            store.add_addrs(stranger, addresses, 3600)
        assert len(store.peer_ids()) == 10
        assert set(strangers[-8:]) <= set(store.peer_ids())
        assert store.addrs(strangers[-1]) == addresses[:MAX_PEER_ADDRESSES]
        store.add_protocols(strangers[-1], ["x" * 100_000, *map(str, range(1000))])
        assert store.get_protocols(strangers[-1]) == list(map(str, range(MAX_PEER_PROTOCOLS - 1)))
        assert store.addrs(peer.libp2p.get_id())
        assert store.privkey(host.libp2p.get_id())


sizes = st.one_of(st.integers(1, 100), st.sampled_from([READ_AT_ONCE - 1, READ_AT_ONCE, None]))


class Below:
    """A connection on which some pieces arrive, and then the end."""

    def __init__(self, pieces) -> None:
        self.pieces = [piece for piece in pieces if piece]
        self.reads = []

    async def read(self, n=None) -> bytes:
        self.reads.append(n)
        await trio.lowlevel.checkpoint()
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if n is not None and len(piece) > n:
            self.pieces.insert(0, piece[n:])
        return piece[:n]


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(sizes, min_size=1, max_size=8))
def test_it_returns_what_arrives_and_then_the_end(pieces, asked):
    async def read_all() -> None:
        below, received = Below(pieces), b""
        stream = ReadAhead(below)
        at = 0
        while part := await stream.read(asked[at % len(asked)]):
            size = asked[at % len(asked)]
            assert size is None or len(part) <= size
            received += part
            at += 1
        assert received == b"".join(pieces)
        assert await stream.read(1) == b""

    trio.run(read_all)


async def test_pieces_of_what_has_arrived_take_one_read_and_nothing_takes_none():
    below = Below([bytes(range(100))])
    stream = ReadAhead(below)
    assert await stream.read(0) == b""
    assert below.reads == []
    assert b"".join([await stream.read(2) for _ in range(50)]) == bytes(range(100))
    assert below.reads == [READ_AT_ONCE]
