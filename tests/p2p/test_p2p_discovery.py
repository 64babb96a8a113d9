"""Discovery: the DHT's own protocol, its keys, and records that are bounded and fresh."""

import hashlib
import time
from contextlib import suppress

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht import kad_dht, peer_routing, provider_store, value_store
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr
from p2p_support import NETWORK, PATIENCE, eventually, loopback_host, read_to_end

from recon_node.backoff import Backoff
from recon_node.ceramic import MAINNET, TESTNET_CLAY
from recon_node.ipld import varint
from recon_node.p2p.errors import PeerError, PeerGoneError
from recon_node.p2p.peers import discovery
from recon_node.p2p.peers.discovery import (
    IPFS_KAD,
    MAX_ADDRESSES,
    MAX_ANSWER,
    MAX_KEYS,
    MAX_NEW,
    MAX_PROVIDERS,
    MAX_REQUEST,
    MAX_SERVED_PER_PEER,
    RECORD_LIFETIME,
    Discovery,
    NetworkDHT,
    ProviderRecords,
    protocol_of,
    rendezvous_key,
    use_protocol_of,
)
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.streams import PeerStream

KEY = rendezvous_key(NETWORK)


def some_peer() -> PeerInfo:
    peer_id = ID.from_pubkey(create_new_key_pair().public_key)
    return PeerInfo(peer_id, [Multiaddr("/ip4/10.0.0.1/tcp/4101")])


def test_the_rendezvous_is_a_multihash_of_the_networks_eventid():
    # CIP-124, "Discover all peers in the same network": ce 01 05 varint(network id)
    assert rendezvous_key(MAINNET) == b"\x12\x20" + hashlib.sha256(b"\xce\x01\x05\x00").digest()
    assert rendezvous_key(TESTNET_CLAY) != rendezvous_key(MAINNET)
    assert len(KEY) <= 80  # servers drop longer ones


def test_each_network_has_a_dht_of_its_own():
    assert protocol_of(TESTNET_CLAY) == "/ceramic/testnet-clay/kad/1.0.0"
    use_protocol_of(NETWORK)
    for module in (kad_dht, peer_routing, provider_store, value_store):
        assert module.PROTOCOL_ID == "/ceramic/local-7/kad/1.0.0"


async def test_records_are_bounded_and_the_newest_stay():
    async with loopback_host() as host:
        records = ProviderRecords(host.libp2p)
        peers = [some_peer() for _ in range(MAX_PROVIDERS + 5)]
        for peer in [*peers[:MAX_PROVIDERS], peers[0], *peers[MAX_PROVIDERS:]]:
            records.add_provider(KEY, peer)
        kept = {each.peer_id for each in records.get_providers(KEY)}
        assert kept == {each.peer_id for each in [peers[0], *peers[6:]]}
        for number in range(MAX_KEYS + 5):
            records.add_provider(b"%d" % number, peers[0])
        assert len(records.providers) == MAX_KEYS
        records.add_provider(KEY, peers[1])
        assert peers[1].peer_id in {each.peer_id for each in records.get_providers(KEY)}


async def test_few_addresses_of_a_provider_are_kept():
    async with loopback_host() as host:
        records = ProviderRecords(host.libp2p)
        addresses = [Multiaddr(f"/ip4/10.0.0.{last}/tcp/4101") for last in range(100)]
        records.add_provider(KEY, PeerInfo(some_peer().peer_id, addresses))
        [kept] = records.get_providers(KEY)
        assert kept.addrs == addresses[:MAX_ADDRESSES]


async def ask_for_providers(client: Host, server: Host) -> KadMessage:
    request = KadMessage(type=KadMessage.GET_PROVIDERS, key=KEY)
    stream = await client.open_stream(server.peer_id, protocol_of(NETWORK))
    frames = FrameStream(stream, MAX_ANSWER)
    await frames.send([request.SerializeToString()], PATIENCE)
    return KadMessage.FromString(await frames.receive(PATIENCE) or b"")


async def hold(client: Host, server: Host, dht: NetworkDHT, count: int) -> list[PeerStream]:
    """Open streams, and say nothing on them."""
    held = [await client.open_stream(server.peer_id, protocol_of(NETWORK)) for _ in range(count)]
    await eventually(lambda: list(dht._served.values()).count(client.libp2p.get_id()) == count)
    return held


async def test_idle_streams_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(discovery, "SERVE_LIMIT", 3600.0)
    monkeypatch.setattr(discovery, "MAX_SERVED", 2 * MAX_SERVED_PER_PEER)
    use_protocol_of(NETWORK)
    async with (
        loopback_host() as server,
        loopback_host() as a,
        loopback_host() as b,
        loopback_host() as c,
    ):
        dht = NetworkDHT(server.libp2p)
        async with background_trio_service(dht):
            for client in (a, b, c):
                await client.connect(server.addresses[0])
            held = await hold(a, server, dht, MAX_SERVED_PER_PEER)
            with pytest.raises((PeerError, PeerGoneError, trio.BrokenResourceError)):
                await ask_for_providers(a, server)  # one peer has only so many
            await hold(b, server, dht, MAX_SERVED_PER_PEER)
            assert (await ask_for_providers(c, server)).type == KadMessage.GET_PROVIDERS
            await read_to_end(held[0])  # the oldest was ended for that


async def test_a_large_request_is_not_read(monkeypatch):
    monkeypatch.setattr(discovery, "SERVE_LIMIT", 3600.0)
    use_protocol_of(NETWORK)
    async with (
        loopback_host() as server,
        loopback_host() as client,
        background_trio_service(NetworkDHT(server.libp2p)),
    ):
        await client.connect(server.addresses[0])
        stream = await client.open_stream(server.peer_id, protocol_of(NETWORK))
        await stream.send_all(varint.encode(MAX_REQUEST + 1))
        with suppress(trio.BrokenResourceError):
            await read_to_end(stream)


async def test_an_answer_makes_only_so_many_new_peers(monkeypatch):
    """Any peer can make up any number."""
    made_up = [some_peer() for _ in range(2 * MAX_NEW)]
    async with loopback_host() as server, loopback_host() as client:
        found: dict[str, list[str]] = {}
        service = Discovery(client, NETWORK, 600, found.__setitem__)

        async def ask(peer: ID, key: bytes) -> list[PeerInfo]:
            return made_up

        monkeypatch.setattr(service._dht.provider_store, "ask", ask)
        await client.connect(server.addresses[0])
        await service._look_around()
        assert len(found) == MAX_NEW


async def test_old_records_do_not_count(monkeypatch):
    async with loopback_host() as host:
        records = ProviderRecords(host.libp2p)
        now = time.time()
        for age in (RECORD_LIFETIME + 1, RECORD_LIFETIME - 60):
            monkeypatch.setattr(time, "time", lambda at=now - age: at)
            records.add_provider(KEY, some_peer())
        monkeypatch.setattr(time, "time", lambda: now)
        assert len(records.get_providers(KEY)) == 1


async def test_values_are_not_stored_for_anyone():
    async with loopback_host() as server, loopback_host() as client:
        use_protocol_of(NETWORK)
        server_dht, client_dht = NetworkDHT(server.libp2p), NetworkDHT(client.libp2p)
        async with (
            background_trio_service(server_dht),
            background_trio_service(client_dht),
        ):
            await client.connect(server.addresses[0])
            with trio.fail_after(PATIENCE):
                await client_dht.value_store._store_at_peer(
                    server.libp2p.get_id(), b"plain-key", b"value"
                )
            assert server_dht.get_value_store_size() == 0


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(discovery, "ROUNDS", Backoff(0.1, 60.0))


@pytest.mark.parametrize("third_speaks", [protocol_of(NETWORK), IPFS_KAD])
async def test_two_that_know_only_a_third_find_each_other(quick, third_speaks):
    """Also where the third one knows libp2p's own protocol id only."""
    found: dict[str, dict[str, list[str]]] = {}
    ipfs_kad = third_speaks == IPFS_KAD

    async with loopback_host() as a, loopback_host() as b, loopback_host() as c:
        async with trio.open_nursery() as nursery:
            for host in (a, b, c):
                known = found.setdefault(host.peer_id, {})
                service = Discovery(host, NETWORK, 600, known.__setitem__, ipfs_kad=ipfs_kad)
                host.on_identified(lambda peer, _, s=service: nursery.start_soon(s.join, peer))
                nursery.start_soon(service.run)
            for other in {protocol_of(NETWORK), IPFS_KAD} - {third_speaks}:
                a.libp2p.remove_stream_handler(other)
            await b.connect(a.addresses[0])
            await c.connect(a.addresses[0])
            await eventually(lambda: c.peer_id in found[b.peer_id])
            await eventually(lambda: b.peer_id in found[c.peer_id])
            nursery.cancel_scope.cancel()
        assert found[b.peer_id][c.peer_id] == c.addresses
        assert b.peer_id not in found[b.peer_id]


async def test_a_peer_that_leads_astray_keeps_two_from_finding_each_other_no_longer(quick):
    """It names peers that do not answer as the closest, whatever it is asked."""
    found: dict[str, dict[str, list[str]]] = {}
    silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nowhere = Multiaddr(f"/ip4/127.0.0.1/tcp/{silent[0].socket.getsockname()[1]}")

    async def mislead(stream: PeerStream) -> None:
        frames = FrameStream(stream, MAX_ANSWER)
        while (data := await frames.receive(30)) is not None:
            request = KadMessage.FromString(data)
            answer = KadMessage(type=request.type, key=request.key)
            for _ in range(20):
                named = answer.closerPeers.add()
                named.id = some_peer().peer_id.to_bytes()
                named.addrs.append(nowhere.to_bytes())
            await frames.send([answer.SerializeToString()], PATIENCE)

    async with (
        loopback_host() as a,
        loopback_host() as b,
        loopback_host() as c,
        loopback_host() as liar,
        trio.open_nursery() as nursery,
    ):
        liar.handle(protocol_of(NETWORK), mislead)
        for host in (a, b, c):
            known = found.setdefault(host.peer_id, {})
            service = Discovery(host, NETWORK, 600, known.__setitem__)
            host.on_identified(lambda peer, _, s=service: nursery.start_soon(s.join, peer))
            nursery.start_soon(service.run)
            await liar.connect(host.addresses[0])
        await b.connect(a.addresses[0])
        await c.connect(a.addresses[0])
        await eventually(lambda: c.peer_id in found[b.peer_id])
        await eventually(lambda: b.peer_id in found[c.peer_id])
        nursery.cancel_scope.cancel()
    await silent[0].aclose()
