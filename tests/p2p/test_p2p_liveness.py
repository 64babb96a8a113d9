"""Dead peers are handed out by the DHT no longer than until the next check."""

from contextlib import asynccontextmanager

import pytest
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo, info_from_p2p_addr
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr
from p2p_support import NETWORK, PATIENCE, eventually, loopback_host

from recon_node.p2p.peers.dht import LivenessCheck, admit_connected_only
from recon_node.p2p.peers.dht_server import MAX_ANSWER, NetworkDHT, protocol_of, use_protocol_of
from recon_node.p2p.peers.schedule import network_rendezvous
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host

KEY = network_rendezvous(NETWORK).key


@asynccontextmanager
async def dht(host: Host):
    use_protocol_of(NETWORK)
    table = NetworkDHT(host.libp2p)
    admit_connected_only(table.routing_table, host.is_connected)
    async with background_trio_service(table):
        yield table


async def handed_out(client: Host, server: Host) -> set[str]:
    """Whom a server names, of its own table and of the providers."""
    named = set()
    for kind in (KadMessage.FIND_NODE, KadMessage.GET_PROVIDERS):
        stream = await client.open_stream(server.peer_id, protocol_of(NETWORK))
        frames = FrameStream(stream, MAX_ANSWER)
        await frames.send([KadMessage(type=kind, key=KEY).SerializeToString()], PATIENCE)
        answer = KadMessage.FromString(await frames.receive(PATIENCE) or b"")
        named |= {str(ID(each.id)) for each in (*answer.closerPeers, *answer.providerPeers)}
        await stream.aclose()
    return named


def info(host: Host) -> PeerInfo:
    return info_from_p2p_addr(Multiaddr(host.addresses[0]))


async def test_a_dead_peer_is_dropped_and_one_that_answers_stays():
    async with (
        loopback_host() as server,
        loopback_host() as client,
        loopback_host() as alive,
        dht(server) as table,
    ):
        check = LivenessCheck(server, table.routing_table, table.provider_store.records)
        await client.connect(server.addresses[0])
        await server.connect(alive.addresses[0])
        async with loopback_host() as dying:
            await server.connect(dying.addresses[0])
            for each in (alive, dying):
                assert await table.routing_table.add_peer(info(each))
                table.provider_store.add_provider(KEY, info(each))
            await check.check()
            dead = dying.peer_id
            assert {alive.peer_id, dead} <= await handed_out(client, server)
        await eventually(lambda: not server.is_connected(dead))
        await server.disconnect(alive.peer_id)
        await eventually(lambda: not server.is_connected(alive.peer_id))
        await check.check()
        named = await handed_out(client, server)
        assert dead not in named
        assert alive.peer_id in named


async def test_hearsay_brings_no_peer_into_the_table():
    async with loopback_host() as server, loopback_host() as gone, dht(server) as table:
        assert not await table.routing_table.add_peer(info(gone))
        assert not await table.routing_table.add_peer(info(gone), skip_server_mode_check=True)
        await server.connect(gone.addresses[0])
        assert await table.routing_table.add_peer(info(gone))


@pytest.mark.parametrize("neighbours", [False, True])
async def test_a_node_that_is_cut_off_drops_nobody(neighbours):
    async with loopback_host() as server, loopback_host() as near, dht(server) as table:
        async with loopback_host() as dying:
            table.provider_store.add_provider(KEY, info(dying))
        if neighbours:
            await server.connect(near.addresses[0])
        await LivenessCheck(server, table.routing_table, table.provider_store.records).check()
        assert len(table.provider_store.get_providers(KEY)) == (0 if neighbours else 1)
