"""The host: it listens or says why not, closes in time, and keeps its identity."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.identity.identify import ID as IDENTIFY
from libp2p.identity_utils import save_identity
from multiaddr import Multiaddr
from p2p_support import eventually, loopback_host

from recon_node.base import files
from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import check_port, peer_id_in, resolve
from recon_node.p2p.transport.host import GuardedHost, Host
from recon_node.p2p.transport.identity import IDENTITY_FILE, open_identity, peer_id_of


def test_the_identity_outlives_restarts_and_is_for_its_owner_only(tmp_path):
    first = open_identity(tmp_path)
    assert peer_id_of(open_identity(tmp_path)) == peer_id_of(first)
    key_file = tmp_path / IDENTITY_FILE
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert len(key_file.read_bytes()) >= 36
    assert list(tmp_path.iterdir()) == [key_file]
    for mode, then in ((0o644, 0o600), (0o400, 0o400)):  # closed to others, and else not touched:
        key_file.chmod(mode)  # a backup reads it on a disk that became read-only, too
        assert peer_id_of(open_identity(tmp_path)) == peer_id_of(first)
        assert key_file.stat().st_mode & 0o777 == then


@pytest.mark.parametrize("content", [b"", b"\x00", b"garbage", b"\x08\x01\x12\x40" + bytes(63)])
def test_a_broken_identity_is_refused_and_left_alone(tmp_path, content):
    (tmp_path / IDENTITY_FILE).write_bytes(content)
    with pytest.raises(P2PError, match=r"identity\.key .* restore it from a backup"):
        open_identity(tmp_path)
    assert (tmp_path / IDENTITY_FILE).read_bytes() == content


def test_what_cannot_be_an_identity_is_refused(tmp_path, monkeypatch):
    file = tmp_path / IDENTITY_FILE
    save_identity(create_rsa_key_pair(1024), file)
    with pytest.raises(P2PError, match="RSA key, not Ed25519"):
        open_identity(tmp_path)
    os.truncate(file, 1 << 40)  # more than any memory; it takes no space
    with pytest.raises(P2PError, match="has more than 65536 bytes"):
        open_identity(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(P2PError, match="Is a directory; check"):
        open_identity(tmp_path)
    file.rmdir()
    os.mkfifo(file)
    monkeypatch.setattr(files, "_PIPE_PATIENCE", 0.01)
    with pytest.raises(P2PError, match="nothing comes from it"):
        open_identity(tmp_path)


@pytest.mark.parametrize(
    ("number", "port", "advice"),
    [
        (errno.EADDRINUSE, 80, "Another node or program uses the port"),
        (errno.EACCES, 80, "choose a higher port"),
        (errno.EPERM, 4101, "Permission denied"),
        (errno.EADDRNOTAVAIL, 80, "does not have that address"),
        (errno.EMFILE, 80, "Choose another address"),
    ],
)
async def test_what_to_do_about_a_port(monkeypatch, number, port, advice):
    def fail(*args):
        raise OSError(number, "no")

    monkeypatch.setattr(socket.socket, "bind", fail)
    with pytest.raises(P2PError, match=rf"{advice}.* \(--listen\)"):
        check_port(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/ip4/203.0.113.7/tcp/0", "Cannot assign requested address"),
        ("/ip4/127.0.0.1/udp/0/quic-v1", "must be /ip4/"),
        ("/dns4/localhost/tcp/0", "must be /ip4/"),
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_a_clear_error(address, why):
    with pytest.raises((P2PError, ValueError), match=why):
        async with loopback_host(listen=(address,)):
            pass


async def test_a_cancelled_host_frees_its_port_and_hangs_up():
    async with loopback_host() as peer:
        async with trio.open_nursery() as nursery:
            addresses = []

            async def run_host() -> None:
                async with loopback_host() as host:
                    await host.connect(peer.addresses[0])
                    addresses.extend(host.addresses)
                    await trio.sleep_forever()

            nursery.start_soon(run_host)
            await eventually(lambda: addresses)
            nursery.cancel_scope.cancel()
        port = int(addresses[0].split("/")[4])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        await eventually(lambda: not peer.connected_peers())


PINGS_FAIL = P2PSettings().connection.ping_interval + P2PSettings().connection.ping_timeout
"""Seconds after which a peer that takes no data is gone anyway: far more than `CLOSE_LIMIT`."""


async def test_closing_takes_no_longer_with_a_peer_that_takes_no_data():
    async with loopback_host() as peer, trio.open_nursery() as nursery:
        async with loopback_host() as host:
            await host.connect(peer.addresses[0])
            (connection,) = host._live(peer.libp2p.get_id())
            lock = connection.muxed_conn._write_lock
            started = trio.Event()

            async def hold_the_wire() -> None:
                async with lock:
                    started.set()
                    await trio.sleep_forever()

            nursery.start_soon(hold_the_wire)
            await started.wait()
            before = trio.current_time()
        assert trio.current_time() - before < PINGS_FAIL
        nursery.cancel_scope.cancel()


async def test_an_error_in_the_body_comes_out_as_itself():
    with pytest.raises(KeyError):
        async with loopback_host():
            raise KeyError("mine")


async def test_dials_that_fail_say_why():
    nobody = peer_id_of(create_new_key_pair())
    async with loopback_host() as host, loopback_host() as other:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            with pytest.raises(PeerError, match=r"cannot connect .*refused"):
                await host.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{nobody}")
            closed.listen()
            async with loopback_host(dial_timeout=0.2) as hasty:
                with pytest.raises(PeerError, match=r"did not answer within 0\.2 s"):
                    await hasty.connect(f"/ip4/127.0.0.1/tcp/{port}/p2p/{nobody}")
        with pytest.raises(PeerError, match="own address"):
            await host.connect(host.addresses[0])
        with pytest.raises(PeerError, match="another peer answers at this address, 12D3KooW"):
            await host.connect(other.addresses[0].replace(other.peer_id, nobody))
        with pytest.raises(PeerError, match="not connected to peer"):
            await host.open_stream(other.peer_id, "/echo/1")
        await host.connect(other.addresses[0])
        with pytest.raises(PeerError, match="/unheard/of"):
            await host.open_stream(other.peer_id, "/unheard/of")


@pytest.mark.parametrize("address", ["", "/", "nonsense", "/ip4/1.2.3.4/tcp/99999", "/ip4/1.2.3.4"])
def test_an_address_without_a_peer_is_refused(address):
    with pytest.raises(PeerError):
        peer_id_in(address)


async def test_a_peer_that_comes_back_is_asked_again():
    """It may have got another address, or another version, since."""
    identified = []
    async with loopback_host() as a, loopback_host() as b:
        a.on_identified(lambda peer, addresses: identified.append(peer))
        for times in (1, 2):
            await a.connect(b.addresses[0])
            await eventually(lambda times=times: len(identified) == times)
            await a.disconnect(b.peer_id)
            await eventually(lambda: not b.connected_peers())


@asynccontextmanager
async def host_pair() -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts. If both dial, they keep the connection that the second one has dialled."""
    async with loopback_host() as a, loopback_host() as b:
        lasting, spare = sorted((a, b), key=lambda host: host.libp2p.get_id().to_bytes())
        yield spare, lasting


async def test_a_peer_stays_identified_when_one_of_two_connections_closes(monkeypatch):
    """Two nodes that dial each other at the same time would meet twice otherwise."""
    closed, identified = [], []
    forget = GuardedHost._on_notifee_disconnected

    def note(host: GuardedHost, connection: INetConn) -> None:
        forget(host, connection)
        closed.append(str(host.get_id()))

    monkeypatch.setattr(GuardedHost, "_on_notifee_disconnected", note)
    async with host_pair() as (a, b):
        ids = sorted([a.peer_id, b.peer_id])
        for host in (a, b):
            host.on_identified(lambda peer, addresses: identified.append(peer))
        await a.connect(b.addresses[0])
        await eventually(lambda: sorted(identified) == ids)
        await b.connect(a.addresses[0], redial=True)
        await eventually(lambda: sorted(closed) == ids)
        for host, peer in ((a, b), (b, a)):
            assert await host.protocols_of(peer.peer_id)  # asks, unless it is known
        assert sorted(identified) == ids


async def test_a_peer_that_was_asked_on_the_connection_that_closed_is_asked_again():
    answers = trio.Event()
    identified = []
    async with host_pair() as (a, b):
        answer = b.libp2p.get_mux().handlers[IDENTIFY]

        async def answer_late(stream: INetStream) -> None:
            if not answers.is_set():
                await trio.sleep_forever()
            await answer(stream)

        b.libp2p.set_stream_handler(IDENTIFY, answer_late)
        a.on_identified(lambda peer, addresses: identified.append(peer))
        await a.connect(b.addresses[0])
        (asked,) = a._live(b.libp2p.get_id())
        await eventually(asked.get_streams)
        await b.connect(a.addresses[0], redial=True)
        await eventually(lambda: len(a._live(b.libp2p.get_id())) == 2)
        answers.set()
        await asked.close()
        await eventually(lambda: identified == [b.peer_id])


async def test_a_peer_that_comes_back_before_its_old_connection_is_gone_is_asked_again():
    """It may have restarted after its machine had lost the network or power."""
    identified = []
    async with host_pair() as (a, b):
        a.on_identified(lambda peer, addresses: identified.append(peer))
        await a.connect(b.addresses[0])
        await eventually(lambda: identified == [b.peer_id])
        (old,) = a._live(b.libp2p.get_id())
        old._created_at -= 3600
        await b.connect(a.addresses[0], redial=True)
        await eventually(lambda: identified == [b.peer_id] * 2)


async def test_announced_addresses_replace_those_listened_on():
    announce = ("/ip4/198.51.100.1/tcp/4101",)
    async with loopback_host(announce=announce) as host:
        assert host.addresses == [f"{announce[0]}/p2p/{host.peer_id}"]


@pytest.mark.parametrize("kind", ["dns", "dns4"])
async def test_a_name_in_an_address_is_looked_up(kind: str) -> None:
    port_and_peer = "/tcp/4101/p2p/12D3KooWFyT2abvq5aR22xgfTQHhUagYbS7isLs6JJYexarLLQ6z"
    resolved = await resolve(Multiaddr(f"/{kind}/localhost{port_and_peer}"))
    assert resolved
    assert {str(address) for address in resolved} <= {
        f"/ip4/127.0.0.1{port_and_peer}",
        f"/ip6/::1{port_and_peer}",
    }
    assert await resolve(resolved[0]) == resolved[:1]
    with pytest.raises(PeerError, match=r"cannot find the host nowhere\.invalid"):
        await resolve(Multiaddr("/dns4/nowhere.invalid/tcp/4101"))


async def test_a_bug_in_what_is_called_for_new_peers_does_not_end_the_process():
    """The library identifies peers in a system task of trio: its exceptions end everything."""
    announced = []

    def fail(peer_id: str, addresses: list[str]) -> None:
        announced.append(peer_id)
        raise RuntimeError("a bug")

    async with loopback_host() as a, loopback_host() as b:
        b.on_identified(fail)
        await a.connect(b.addresses[0])
        await eventually(lambda: announced == [a.peer_id])
        assert b.is_connected(a.peer_id)
