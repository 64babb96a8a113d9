"""Private networks: those with the key connect, nobody else does, and garbage is harmless."""

import os
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from nacl.bindings import crypto_secretbox
from p2p_support import LOOPBACK, eventually, node, read_to_end
from trio.testing import memory_stream_pair

from recon_node.ceramic.network import MAINNET
from recon_node.p2p import AGREED, P2PError, P2PSettings
from recon_node.p2p.errors import PeerError
from recon_node.p2p.transport.dialler import KEY_HINT, NOISE_HINT
from recon_node.p2p.transport.host import open_host
from recon_node.p2p.transport.private_network import (
    KEY_SIZE,
    NONCE_SIZE,
    PrivateStream,
    fingerprint,
    read_swarm_key,
    xsalsa20,
)

KEY, OTHER = bytes(range(KEY_SIZE)), bytes(KEY_SIZE)
KUBO_KEY = "6189c5cf0b87fb800c1a9feeda73c6ab5e998db48fb9e6a978575c770ceef683"
HEADER = b"/key/swarm/psk/1.0.0/\n"


@asynccontextmanager
async def host_with(key: bytes | None, **changes):
    settings = replace(LOOPBACK, **changes)
    async with open_host(settings, create_new_key_pair(), swarm_key=key) as host:
        yield host


# --- the cipher and the file ---------------------------------------------------------------------


@given(
    st.binary(min_size=KEY_SIZE, max_size=KEY_SIZE),
    st.binary(min_size=NONCE_SIZE, max_size=NONCE_SIZE),
    st.binary(min_size=1, max_size=300),
)
def test_the_cipher_is_that_of_nacl(key, nonce, data):
    """Libsodium's secretbox uses the same stream from its 33rd byte on."""
    stream = xsalsa20(key, nonce)
    stream.encrypt(bytes(32))
    assert stream.encrypt(data) == crypto_secretbox(data, nonce, key)[16:]


def test_a_fingerprint_as_kubo_s():
    """The value is in rust-libp2p's tests, "checked against go-ipfs output"."""
    assert fingerprint(bytes.fromhex(KUBO_KEY)) == "45fc986bbc9388a11d939df26f730f0c"


@pytest.mark.parametrize(
    "content",
    [
        HEADER + b"/base16/\n" + KUBO_KEY.encode(),
        HEADER + b"/base16/\n" + KUBO_KEY.upper().encode() + b"\n",
        HEADER.replace(b"\n", b"\r\n") + b"/base16/\r\n" + KUBO_KEY.encode() + b"\r\n",
        HEADER + b"/base64/\nYYnFzwuH+4AMGp/u2nPGq16ZjbSPueapeFdcdwzu9oM=\n",
        HEADER + b"/bin/\n" + bytes.fromhex(KUBO_KEY),
    ],
)
def test_the_encodings_of_a_key(tmp_path, content):
    file = tmp_path / "swarm.key"
    file.write_bytes(content)
    assert read_swarm_key(file).hex() == KUBO_KEY


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "its first line is not /key/swarm/psk/1.0.0/"),
        (b"/key/swarm/psk/2.0.0/\n/base16/\n", "its first line"),
        (HEADER + b"/base32/\nabc\n", "its second line is b'/base32/'"),
        (HEADER + b"/base16/\nxyz\n", "its third line cannot be decoded"),
        (HEADER + b"/base16/\nabcd\n", "the key has 2 bytes, not 32"),
        (HEADER + b"/bin/\n" + bytes(31), "the key has 31 bytes, not 32"),
    ],
)
async def test_a_file_that_cannot_be_used(tmp_path, content, words):
    file = tmp_path / "swarm.key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(P2PError, match=words) as caught:
        async with node(tmp_path / "node", swarm_key_file=file):
            pass
    assert str(file) in str(caught.value)


def test_a_private_network_does_not_use_public_bootstrap_nodes():
    settings = P2PSettings()
    assert settings.joining(MAINNET).bootstrap
    assert not replace(settings, swarm_key_file=Path("swarm.key")).joining(MAINNET).bootstrap


# --- the stream -----------------------------------------------------------------------------------


class _Pipe:
    """What `PrivateStream` needs of a connection, over a memory stream."""

    def __init__(self, stream, at_once: int) -> None:
        self._stream, self._at_once = stream, at_once

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def read(self, n: int | None = None) -> bytes:
        return await self._stream.receive_some(min(n or self._at_once, self._at_once))


@pytest.mark.parametrize("at_once", [1, 5, 1000])
async def test_bytes_pass_however_they_are_cut(at_once):
    left, right = (PrivateStream(_Pipe(stream, at_once), KEY) for stream in memory_stream_pair())
    data = os.urandom(500)
    async with trio.open_nursery() as nursery:
        for part in (data[:1], data[1:100], data[100:]):
            nursery.start_soon(left.write, part)
            await trio.testing.wait_all_tasks_blocked()
        received = b""
        while len(received) < len(data):
            received += await right.read(100)
    assert received == data
    await right.write(b"and back")
    back = b""
    while len(back) < 8:
        back += await left.read()
    assert back == b"and back"


async def test_nothing_is_sent_in_the_clear_and_no_nonce_twice():
    plain = b"/multistream/1.0.0\n" * 3
    seen = set()
    for _ in range(10):
        left, right = memory_stream_pair()
        await PrivateStream(_Pipe(left, 1000), KEY).write(plain)
        sent = await right.receive_some(1000)
        assert len(sent) == NONCE_SIZE + len(plain)
        assert b"multi" not in sent
        seen.add(bytes(sent[:NONCE_SIZE]))
    assert len(seen) == 10


# --- hosts and nodes ------------------------------------------------------------------------------


async def test_hosts_with_the_same_key_connect_and_others_do_not():
    soon = {"dial_timeout": 1.0}  # for dials that have to fail
    async with (
        host_with(KEY) as one,
        host_with(KEY) as other,
        host_with(KEY, **soon) as hasty,
        host_with(OTHER, **soon) as wrong,
        host_with(None, **soon) as open_to_all,
    ):
        assert await one.connect(other.addresses[0]) == other.peer_id
        assert other.libp2p.get_network().connections
        for stranger in (wrong, open_to_all):
            for dialler, target in ((stranger, one), (hasty, stranger)):
                with pytest.raises(PeerError) as caught:
                    await dialler.connect(target.addresses[0])
                assert str(caught.value).endswith(KEY_HINT) is (dialler is not open_to_all)
            assert not stranger.connected_peers()
        assert one.connected_peers() == [other.peer_id]
        assert one.is_on_this_machine(other.peer_id)


async def test_noise_may_mean_a_swarm_key():
    """What a peer with a key sends begins at random; here, like a line of two million bytes."""

    async def answer(stream):
        async with stream:
            await stream.send_all(b"\xff\xff\x7f" + os.urandom(100))
            await stream.receive_some()

    async with host_with(KEY) as peer, host_with(None) as dialler, trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
        [listener, *_] = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        with pytest.raises(PeerError) as caught, trio.fail_after(30):
            await dialler.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer.peer_id}")
        assert str(caught.value).endswith(NOISE_HINT)
        nursery.cancel_scope.cancel()


async def test_garbage_before_the_handshake():
    """As on an open network, whoever sends it loses the connection, and the others go on."""
    async with host_with(KEY) as victim, host_with(KEY) as peer:
        port = int(victim.addresses[0].split("/")[4])
        for size in (0, 1, NONCE_SIZE - 1, NONCE_SIZE, 5000):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(os.urandom(size))
            await stream.aclose()
        assert await peer.connect(victim.addresses[0]) == victim.peer_id
        await eventually(lambda: victim.connected_peers() == [peer.peer_id])
        await eventually(lambda: not victim.budget.by_kind.get("handshakes"))


async def test_strangers_that_stall_in_the_handshake_are_cut_off(monkeypatch):
    async with host_with(KEY) as victim:
        monkeypatch.setattr(victim._swarm.connection_config, "inbound_upgrade_timeout", 0.2)
        port = int(victim.addresses[0].split("/")[4])
        for sent in (0, 10, NONCE_SIZE):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(bytes(sent))
                await read_to_end(stream)
        await eventually(lambda: not victim.budget.by_kind.get("handshakes"))


async def test_nodes_sync_within_their_private_network(tmp_path, sdk_cars):
    file, other_file = tmp_path / "swarm.key", tmp_path / "other.key"
    file.write_bytes(HEADER + b"/base16/\n" + KEY.hex().encode())
    other_file.write_bytes(HEADER + b"/base16/\n" + OTHER.hex().encode())
    cars = sdk_cars[:100]
    async with (
        node(tmp_path / "a", cars, swarm_key_file=file) as a,
        node(tmp_path / "b", swarm_key_file=file) as b,
        node(tmp_path / "c", swarm_key_file=other_file, dial_timeout=1.0) as c,
    ):
        await b.p2p.connect(a.address)
        await eventually(lambda: b.holds_as_many_as(len(cars)) and AGREED in b.outcomes())
        assert a.ahash() == b.ahash()
        with pytest.raises(PeerError):
            await c.p2p.connect(a.address)
        assert len(c.store.keys) == 0
