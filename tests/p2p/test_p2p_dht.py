"""The DHT on real hosts: a protocol of its own, bounded services, one stream for many keys, and
nobody named who is gone."""

from contextlib import asynccontextmanager

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht import kad_dht, peer_routing, provider_store, value_store
from libp2p.kad_dht.pb.kademlia_pb2 import Message as KadMessage
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.peer.peerinfo import PeerInfo, info_from_p2p_addr
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr
from p2p_support import (
    ELSEWHERE,
    NETWORK,
    PATIENCE,
    dialling_from,
    eventually,
    loopback_host,
    needs_two_loopback_addresses,
    only_connection,
    read_to_end,
)

from recon_node.ceramic import TESTNET_CLAY
from recon_node.ipld import encode_varint
from recon_node.p2p.errors import PeerError, PeerGoneError
from recon_node.p2p.peers import dht, dht_server
from recon_node.p2p.peers.dht import (
    CLOSEST,
    MAX_NEW,
    LibraryDht,
    LivenessCheck,
    admit_connected_only,
)
from recon_node.p2p.peers.dht_server import (
    MAX_ANNOUNCES,
    MAX_ANSWER,
    MAX_CHECKED,
    MAX_PEERS_ANSWER,
    MAX_REQUEST,
    MAX_SERVED_PER_PEER,
    PROVIDERS_ANSWERED,
    NetworkDHT,
    protocol_of,
    use_protocol_of,
)
from recon_node.p2p.peers.schedule import MAX_QUICK, network_rendezvous, sort_value_rendezvous_of
from recon_node.p2p.transport import addresses
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.hardening import MAX_PEER_ADDRESSES
from recon_node.p2p.transport.host import Host

KEY = network_rendezvous(NETWORK).key
WITHOUT_TEXT = Multiaddr("/ip4/192.0.2.7/tcp/4101").to_bytes() + b"\xa5\x03\x04oops"
"""The bytes of an address whose peer id is invalid: it can be read, but not written as text."""
KEYS = [sort_value_rendezvous_of(NETWORK, str(number)).key for number in range(MAX_QUICK)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No limit depends on the speed of the machine."""
    monkeypatch.setattr(dht, "REQUEST_TIMEOUT", PATIENCE)
    monkeypatch.setattr(dht, "EXCHANGE_LIMIT", 3600.0)
    monkeypatch.setattr(dht_server, "SERVE_LIMIT", 3600.0)


def test_each_network_has_a_dht_of_its_own():
    assert protocol_of(TESTNET_CLAY) == "/ceramic/testnet-clay/kad/1.0.0"
    use_protocol_of(NETWORK)
    for module in (kad_dht, peer_routing, provider_store, value_store):
        assert module.PROTOCOL_ID == "/ceramic/local-7/kad/1.0.0"


@asynccontextmanager
async def server_and_client():
    """Two hosts with their DHTs, connected."""
    async with loopback_host() as server, loopback_host() as client, trio.open_nursery() as nursery:
        dhts = LibraryDht(server, NETWORK), LibraryDht(client, NETWORK)
        for dht in dhts:
            nursery.start_soon(dht.run)
        await client.connect(server.addresses[0])
        yield dhts
        nursery.cancel_scope.cancel()


async def test_many_keys_are_announced_and_asked_for_on_one_stream():
    async with server_and_client() as (server, client):
        server.provide(KEYS[:3])
        answers = await client.exchange(server.peer_id, KEYS[:20], KEYS[2:4])
        [itself] = [provider for provider in answers[KEYS[2]] if provider.peer_id == server.peer_id]
        assert itself.addresses == tuple(server._host.addresses)
        assert {provider.peer_id for provider in answers[KEYS[3]]} == {client.peer_id}
        for key in KEYS[:20]:
            [known] = server.known_providers(key)
            assert known.peer_id == client.peer_id
            assert known.addresses == tuple(client._host.addresses)
        assert server.known_providers(KEYS[20]) == []
        # without a question, it returns when all was read
        assert await client.exchange(server.peer_id, KEYS[20:], []) == {}
        assert all(map(server.known_providers, KEYS[20:]))


async def test_the_first_rounds_of_two_tasks_are_not_taken_for_a_flood():
    """They make at most five rounds each in the ten seconds."""
    assert 2 * 5 * MAX_QUICK <= MAX_ANNOUNCES


async def test_a_flood_of_announcements_is_cut_short_and_leaves_room_for_others(monkeypatch):
    """From one peer; test_p2p_provider_records.py has floods from many."""
    monkeypatch.setattr(dht_server, "MAX_ANNOUNCES", 50)
    async with server_and_client() as (server, client), loopback_host() as other:
        monkeypatch.setattr(server._dht, "_provider_rate_window", 3600.0)
        with pytest.raises(PeerError, match="did not answer"):
            await client.exchange(server.peer_id, [b"%d" % number for number in range(1000)], [])
        assert len(server.records) == 50
        neighbour = LibraryDht(other, NETWORK)
        await other.connect(server._host.addresses[0])
        await neighbour.exchange(server.peer_id, [KEY], [])
        assert [provider.peer_id for provider in server.known_providers(KEY)] == [other.peer_id]


def count_checks(monkeypatch) -> list[str]:
    """Return a list that gets each made-up address that is checked."""
    checked: list[str] = []
    check = addresses._is_dialable.__wrapped__

    def count(text: str) -> bool:
        checked.extend([text] if text.startswith("/ip4/8.") else [])
        return bool(check(text))

    monkeypatch.setattr(addresses, "_is_dialable", count)
    return checked


async def test_an_answer_makes_only_so_many_new_peers_of_few_addresses(monkeypatch):
    """Any peer can make up any number."""
    addrs = made_up(200, b"\x06\x00\x00")
    answer = KadMessage(type=KadMessage.GET_PROVIDERS, key=KEY)
    for number in range(2 * MAX_NEW):
        answer.providerPeers.add(id=b"\0\x01%c" % number, addrs=addrs)

    async def serve(stream: PeerStream) -> None:
        frames = FrameStream(stream, MAX_REQUEST)
        while await frames.receive(PATIENCE):
            await frames.send([answer.SerializeToString()], PATIENCE)

    async with loopback_host() as server, loopback_host() as client:
        server.handle(protocol_of(NETWORK), serve)
        await client.connect(server.addresses[0])
        checked = count_checks(monkeypatch)
        found = await LibraryDht(client, NETWORK).exchange(server.peer_id, [], [KEY])
    assert len({provider.peer_id for provider in found[KEY]}) == MAX_NEW
    assert 0 < len(checked) <= MAX_NEW * MAX_CHECKED
    assert {len(provider.addresses) for provider in found[KEY]} == {0}


async def test_a_request_has_few_addresses_checked(monkeypatch):
    """Of those that a peer signs, and of those where it can be reached."""
    keys = create_new_key_pair()
    record = PeerRecord(ID.from_pubkey(keys.public_key), [*map(Multiaddr, made_up(1000))])
    envelope = seal_record(record, keys.private_key)
    async with loopback_host() as server, table_of(server) as table:
        checked = count_checks(monkeypatch)
        assert server.libp2p.get_peerstore().consume_peer_record(envelope, 3600)
        table.provider_store.add_provider(KEY, PeerInfo(record.peer_id, record.addrs))
        assert 0 < len(checked) <= MAX_PEER_ADDRESSES + MAX_CHECKED


def made_up(count: int, port: bytes = b"\x06\x10\x05") -> list[bytes]:
    """Addresses that differ."""
    return [b"\x04\x08" + number.to_bytes(3, "big") + port for number in range(count)]


async def test_the_twenty_closest_peers_fit_into_an_answer():
    """Of whatever size their addresses and their signed records are."""
    answer = KadMessage(type=KadMessage.FIND_NODE)
    async with loopback_host() as server, table_of(server) as table:
        store = server.libp2p.get_peerstore()
        for names in (3, 60):
            keys = create_new_key_pair()
            long = [Multiaddr(f"/dns4/{number:063}.{'b' * 63}/tcp/1") for number in range(names)]
            record = PeerRecord(ID.from_pubkey(keys.public_key), long)
            store.consume_peer_record(seal_record(record, keys.private_key), 3600)
            for _ in range(CLOSEST // 2):
                table._add_closer_peers_to_response(answer, [record.peer_id])
    assert len(answer.closerPeers) == CLOSEST
    assert all(peer.addrs for peer in answer.closerPeers)
    assert answer.ByteSize() <= MAX_PEERS_ANSWER


async def test_an_answer_has_a_few_providers_at_random():
    async with server_and_client() as (server, client):
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghi"[: PROVIDERS_ANSWERED + 4]
        peers = [f"12D3KooW{letter * 44}" for letter in letters]
        for peer in peers:
            server.records.add(KEY, peer, [], "192.0.2.1", trio.current_time())
        seen = set()
        for _ in range(20):  # in a sixth of which each of them is missing
            answer = (await client.exchange(server.peer_id, [], [KEY]))[KEY]
            assert len({provider.peer_id for provider in answer}) == PROVIDERS_ANSWERED
            seen |= {provider.peer_id for provider in answer}
        assert seen == set(peers)


@asynccontextmanager
async def answered_with(*answers: bytes):
    """The DHT of a host, and the id of a connected peer that gives such answers on each stream."""
    async with loopback_host() as peer, loopback_host() as host:
        left = list(answers)

        async def serve(stream: PeerStream) -> None:
            frames = FrameStream(stream, MAX_REQUEST)
            await frames.receive(PATIENCE)
            if left:
                await frames.send([left.pop(0)], PATIENCE)

        here = LibraryDht(host, NETWORK)
        peer.handle(protocol_of(NETWORK), serve)
        await host.connect(peer.addresses[0])
        yield here, peer.peer_id


async def test_a_peer_that_answers_nonsense_is_an_error_of_its_own():
    another = KadMessage(type=KadMessage.GET_PROVIDERS, key=b"other").SerializeToString()
    another_kind = KadMessage(type=KadMessage.FIND_NODE).SerializeToString()
    nonsense = [b"", b"\xff", another_kind, another]
    async with answered_with(*nonsense) as (here, liar):
        for _ in (*nonsense, "no answer"):
            with pytest.raises(PeerError, match="did not answer a question of the DHT"):
                await here.exchange(liar, [], [KEY])
            assert here._host.is_connected(liar)


@pytest.mark.parametrize("announce", [(), ("/ip4/192.0.2.7/tcp/4101",)])
async def test_strangers_have_a_node_dial_nothing_on_its_own_machine(announce):
    """Neither on a walk nor for a check, unless the node can be reached from nowhere else."""
    reached = []
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]

    async def refuse(connection: trio.SocketStream) -> None:
        reached.append(connection)
        await connection.aclose()

    def named() -> PeerInfo:
        stranger = ID.from_pubkey(create_new_key_pair().public_key)
        return PeerInfo(stranger, [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")])

    async def serve(stream: PeerStream) -> None:
        answer = KadMessage(type=KadMessage.FIND_NODE)
        near = named()
        answer.closerPeers.add(id=near.peer_id.to_bytes(), addrs=[near.addrs[0].to_bytes()])
        frames = FrameStream(stream, MAX_REQUEST)
        await frames.receive(PATIENCE)
        await frames.send([answer.SerializeToString()], PATIENCE)

    async with (
        loopback_host() as peer,
        loopback_host(announce=announce) as host,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        here = LibraryDht(host, NETWORK)
        peer.handle(protocol_of(NETWORK), serve)
        await host.connect(peer.addresses[0])
        await host.protocols_of(peer.peer_id)
        await here.admit(peer.peer_id)
        assert len(await here.closest(KEY)) > 1
        assert bool(reached) is not bool(announce)
        reached.clear()
        here._dht.provider_store.add_provider(KEY, named())
        await LivenessCheck(host, here._dht.routing_table, here.records).check()
        assert bool(reached) is not bool(announce)
        assert len(here.records) == 0
        nursery.cancel_scope.cancel()


async def test_a_walk_that_is_cut_short_leaves_no_stream_open():
    """Each would take one of the 256 that a connection has."""
    asked = trio.Event()

    async def say_nothing(stream: PeerStream) -> None:
        await stream.receive_some(1)
        asked.set()
        await trio.sleep_forever()

    async with loopback_host() as peer, loopback_host() as host:
        here = LibraryDht(host, NETWORK)
        peer.handle(protocol_of(NETWORK), say_nothing)
        await host.connect(peer.addresses[0])
        await host.protocols_of(peer.peer_id)
        await here.admit(peer.peer_id)
        await eventually(lambda: not host.has_streams(peer.peer_id))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.closest, KEY)
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert not host.has_streams(peer.peer_id)
        assert not only_connection(host, peer).streams


async def test_an_exchange_ends_even_if_the_peer_sends_announcements_for_ever(monkeypatch):
    """Some servers answer announcements, so they are passed over; a round waits for all peers."""
    monkeypatch.setattr(dht, "EXCHANGE_LIMIT", 0.3)
    again = KadMessage(type=KadMessage.ADD_PROVIDER, key=KEY).SerializeToString()

    async def serve(stream: PeerStream) -> None:
        while True:
            await FrameStream(stream, MAX_REQUEST).send([again] * 100, PATIENCE)

    async with loopback_host() as peer, loopback_host() as host:
        here = LibraryDht(host, NETWORK)
        peer.handle(protocol_of(NETWORK), serve)
        await host.connect(peer.addresses[0])
        with trio.fail_after(PATIENCE), pytest.raises(PeerError, match="did not answer all within"):
            await here.exchange(peer.peer_id, [KEY], [KEY])


async def test_named_providers_may_have_addresses_of_any_kind():
    named = ID.from_string("12D3KooW" + "A" * 44)
    good = Multiaddr("/ip4/192.0.2.7/tcp/4101").to_bytes()
    answer = KadMessage(type=KadMessage.GET_PROVIDERS, key=KEY)
    provider = answer.providerPeers.add()
    provider.id = named.to_bytes()
    provider.addrs.extend([b"", b"\x04\x01", b"\xff" * 100, good, b"\x04" + bytes(4)])
    async with answered_with(answer.SerializeToString()) as (here, server):
        [answered] = (await here.exchange(server, [], [KEY]))[KEY]
        assert (answered.peer_id, answered.addresses) == (str(named), ("/ip4/192.0.2.7/tcp/4101",))


async def ask(client: Host, server: Host, kind=KadMessage.GET_PROVIDERS) -> KadMessage:
    return await ask_on(await client.open_stream(server.peer_id, protocol_of(NETWORK)), kind)


async def ask_on(stream: PeerStream, kind=KadMessage.GET_PROVIDERS) -> KadMessage:
    frames = FrameStream(stream, MAX_ANSWER)
    await frames.send([KadMessage(type=kind, key=KEY).SerializeToString()], PATIENCE)
    answer = await frames.receive(PATIENCE)
    await stream.aclose()
    if answer is None:  # as a reset may look
        raise PeerGoneError("there is no answer")
    return KadMessage.FromString(answer)


async def hold(client: Host, server: Host, table: NetworkDHT, count: int) -> list[PeerStream]:
    """Open streams, and say nothing on them."""
    held = [await client.open_stream(server.peer_id, protocol_of(NETWORK)) for _ in range(count)]
    await eventually(lambda: table._served[client.libp2p.get_id()] == count)
    return held


async def test_idle_streams_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(dht_server, "MAX_SERVED", 2 * MAX_SERVED_PER_PEER)
    use_protocol_of(NETWORK)
    async with (
        loopback_host() as server,
        loopback_host() as a,
        loopback_host() as b,
        loopback_host() as c,
    ):
        table = NetworkDHT(server.libp2p)
        async with background_trio_service(table):
            for client in (a, b, c):
                await client.connect(server.addresses[0])
            held = await hold(a, server, table, MAX_SERVED_PER_PEER)
            with pytest.raises((PeerError, PeerGoneError, trio.BrokenResourceError)):
                await ask(a, server)  # one peer has only so many
            await hold(b, server, table, MAX_SERVED_PER_PEER)
            assert (await ask(c, server)).type == KadMessage.GET_PROVIDERS
            await read_to_end(held[0])  # the oldest was ended for that


@needs_two_loopback_addresses
async def test_a_crowd_at_one_address_ends_only_its_own_streams(monkeypatch):
    monkeypatch.setattr(dht_server, "MAX_SERVED", MAX_SERVED_PER_PEER)
    async with (
        loopback_host() as server,
        loopback_host() as honest,
        loopback_host() as a,
        loopback_host() as b,
        table_of(server) as table,
    ):
        await honest.connect(server.addresses[0])
        [stream] = await hold(honest, server, table, 1)
        with dialling_from(monkeypatch, ELSEWHERE):
            await a.connect(server.addresses[0])
            await b.connect(server.addresses[0])
        held = await hold(a, server, table, MAX_SERVED_PER_PEER - 1)
        await hold(b, server, table, MAX_SERVED_PER_PEER - 1)
        await read_to_end(held[0])
        assert (await ask_on(stream)).type == KadMessage.GET_PROVIDERS


@needs_two_loopback_addresses
async def test_an_address_that_asks_without_end_waits_and_others_do_not(monkeypatch):
    monkeypatch.setattr(dht_server, "ANSWERS_AT_ONCE", 5)
    monkeypatch.setattr(dht_server, "ANSWERS_PER_SECOND", 1e-6)
    async with (
        loopback_host() as server,
        loopback_host() as greedy,
        loopback_host() as honest,
        table_of(server) as table,
    ):
        await greedy.connect(server.addresses[0])
        frames = FrameStream(
            await greedy.open_stream(server.peer_id, protocol_of(NETWORK)), MAX_ANSWER
        )
        question = KadMessage(type=KadMessage.GET_PROVIDERS, key=KEY).SerializeToString()
        asked: list[bytes] = []
        get = table.provider_store.get_providers
        table.provider_store.get_providers = lambda key: asked.append(key) or get(key)
        await frames.send([question] * 100, PATIENCE)
        for _ in range(5):
            assert await frames.receive(PATIENCE)
        with dialling_from(monkeypatch, ELSEWHERE):
            await honest.connect(server.addresses[0])
        assert (await ask(honest, server)).type == KadMessage.GET_PROVIDERS
        assert len(asked) <= 5 + 1 + 1


async def test_nobody_waits_for_a_ping_where_the_table_is_full(monkeypatch):
    """Of a peer that may be slow to answer; meanwhile a lock would keep out all others."""
    pinged = trio.Event()

    async def answer_late(stream: PeerStream) -> None:
        pinged.set()
        await trio.sleep_forever()

    async with (
        loopback_host() as server,
        loopback_host() as slow,
        loopback_host() as client,
        table_of(server) as table,
    ):
        slow.handle("/ipfs/ping/1.0.0", answer_late)
        monkeypatch.setattr(table.routing_table, "_should_split_bucket", lambda bucket: False)
        [bucket] = table.routing_table.buckets
        monkeypatch.setattr(bucket, "bucket_size", 1)
        for host in (slow, client):
            await host.connect(server.addresses[0])
            await server.protocols_of(host.peer_id)
        assert await table.routing_table.add_peer(info(slow))
        await ask(client, server)
        assert bucket.peer_ids() == [slow.libp2p.get_id()]
        assert not pinged.is_set()


async def test_a_large_request_is_not_read():
    use_protocol_of(NETWORK)
    async with (
        loopback_host() as server,
        loopback_host() as client,
        background_trio_service(NetworkDHT(server.libp2p)),
    ):
        await client.connect(server.addresses[0])
        stream = await client.open_stream(server.peer_id, protocol_of(NETWORK))
        await stream.send_all(encode_varint(MAX_REQUEST + 1))
        await read_to_end(stream)


async def test_values_are_not_stored_for_anyone():
    async with loopback_host() as server, loopback_host() as client:
        use_protocol_of(NETWORK)
        server_dht, client_dht = NetworkDHT(server.libp2p), NetworkDHT(client.libp2p)
        async with background_trio_service(server_dht), background_trio_service(client_dht):
            await client.connect(server.addresses[0])
            store_at = client_dht.value_store._store_at_peer
            with trio.fail_after(PATIENCE):
                await store_at(server.libp2p.get_id(), b"plain-key", b"value")
            assert server_dht.get_value_store_size() == 0


# --- peers that are gone -------------------------------------------------------------------------


@asynccontextmanager
async def table_of(host: Host):
    use_protocol_of(NETWORK)
    table = NetworkDHT(host.libp2p)
    admit_connected_only(table.routing_table, host.is_connected)
    async with background_trio_service(table):
        yield table


async def handed_out(client: Host, server: Host) -> set[str]:
    """Whom a server names, of its own table and of the providers."""
    named = set()
    for kind in (KadMessage.FIND_NODE, KadMessage.GET_PROVIDERS):
        answer = await ask(client, server, kind)
        named |= {str(ID(peer.id)) for peer in (*answer.closerPeers, *answer.providerPeers)}
    return named


def info(host: Host) -> PeerInfo:
    return info_from_p2p_addr(Multiaddr(host.addresses[0]))


async def test_a_dead_peer_is_dropped_and_one_that_answers_stays():
    async with (
        loopback_host() as server,
        loopback_host() as client,
        loopback_host() as alive,
        table_of(server) as table,
    ):
        check = LivenessCheck(server, table.routing_table, table.provider_store.records)
        await client.connect(server.addresses[0])
        await server.connect(alive.addresses[0])
        async with loopback_host() as dying:
            await server.connect(dying.addresses[0])
            for host in (alive, dying):
                assert await table.routing_table.add_peer(info(host))
                table.provider_store.add_provider(KEY, info(host))
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


async def test_a_crowd_of_providers_hides_no_dead_peer_of_the_table(monkeypatch):
    monkeypatch.setattr(dht, "MAX_DIALLED", 2)
    async with loopback_host() as server, loopback_host() as near, table_of(server) as table:
        check = LivenessCheck(server, table.routing_table, table.provider_store.records)
        await server.connect(near.addresses[0])
        async with loopback_host() as dying:
            await server.connect(dying.addresses[0])
            assert await table.routing_table.add_peer(info(dying))
            await server.disconnect(dying.peer_id)
            await eventually(lambda: not server.is_connected(dying.peer_id))
            await check.check()
            assert table.routing_table.size() == 1
        await eventually(lambda: not server.is_connected(dying.peer_id))
        for _ in range(6):
            made_up = ID.from_pubkey(create_new_key_pair().public_key)
            table.provider_store.add_provider(KEY, PeerInfo(made_up, []))
        await check.check()
        assert table.routing_table.size() == 0
        assert len(table.provider_store.records) == 5


async def test_a_provider_whose_address_has_no_text_does_not_end_the_dht():
    """It is taken for one that does not answer, once it is gone."""
    async with loopback_host() as server, loopback_host() as near, table_of(server) as table:
        records = table.provider_store.records
        check = LivenessCheck(server, table.routing_table, records)
        await server.connect(near.addresses[0])
        gone = ID.from_pubkey(create_new_key_pair().public_key)
        table.provider_store.add_provider(KEY, PeerInfo(gone, [Multiaddr(WITHOUT_TEXT)]))
        await check.check()
        assert len(records) == 0


async def test_hearsay_brings_no_peer_into_the_table():
    async with loopback_host() as server, loopback_host() as gone, table_of(server) as table:
        assert not await table.routing_table.add_peer(info(gone))
        assert not await table.routing_table.add_peer(info(gone), skip_server_mode_check=True)
        await server.connect(gone.addresses[0])
        assert await table.routing_table.add_peer(info(gone))


@pytest.mark.parametrize("neighbours", [False, True])
async def test_a_node_that_is_cut_off_drops_nobody(neighbours):
    async with loopback_host() as server, loopback_host() as near, table_of(server) as table:
        async with loopback_host() as dying:
            table.provider_store.add_provider(KEY, info(dying))
        if neighbours:
            await server.connect(near.addresses[0])
        await LivenessCheck(server, table.routing_table, table.provider_store.records).check()
        assert len(table.provider_store.get_providers(KEY)) == (0 if neighbours else 1)
