"""Addresses: which can be dialled, what is announced, and what is kept of what others say."""

import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import dns.asyncresolver
import dns.resolver
import psutil
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr
from multiaddr.codecs.domain import Codec as NamePart
from multiaddr.protocols import protocol_with_name
from p2p_support import PATIENCE, eventually, loopback_host, node
from support import vectors

from recon_node.p2p import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.dht_server import RecordStore
from recon_node.p2p.transport import addresses as addresses_module
from recon_node.p2p.transport import host as host_module
from recon_node.p2p.transport.addresses import (
    check_dialable,
    is_dialable,
    is_loopback,
    likely,
    reachable,
    resolve,
)
from recon_node.p2p.transport.hardening import MAX_PEER_ADDRESSES, GuardedPeerStore
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.identity import peer_id_of

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
OTHER = "12D3KooWFyT2abvq5aR22xgfTQHhUagYbS7isLs6JJYexarLLQ6z"
VECTORS = vectors.load("dialled_addresses")


UNDIALABLE = VECTORS["undialable"]
DIALABLE = VECTORS["dialable"]
ZONED = "/ip6zone/lo/ip6/fe80::1/tcp/4101"
"""The library takes it for a multiaddr, and cannot read it."""


class Interfaces:
    """Stands for the network interfaces of the machine."""

    def __init__(self, monkeypatch):
        self.up = {}
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: self.up)

    def add(self, name, family, address):
        self.up[name] = [SimpleNamespace(family=family, address=address)]


@pytest.fixture
def interfaces(monkeypatch):
    interfaces = Interfaces(monkeypatch)
    interfaces.add("lo", trio.socket.AF_INET, "127.0.0.1")
    return interfaces


@pytest.mark.parametrize("address", DIALABLE)
def test_what_can_be_dialled(address):
    check_dialable(Multiaddr(address))
    check_dialable(Multiaddr(f"{address}/p2p/{PEER}"))


@pytest.mark.parametrize("address", [*UNDIALABLE, f"{UNDIALABLE[0]}/p2p/{PEER}", ZONED])
def test_what_cannot_be_dialled(address):
    with pytest.raises(PeerError, match="cannot be dialled: "):
        check_dialable(Multiaddr(address))


def test_what_only_the_own_machine_can_dial():
    for host in (
        "ip4/127.0.0.2",
        "ip6/::1",
        "dns4/localhost",
        "dns4/LOCALHOST.",
        "dns/a.localhost",
    ):
        assert is_loopback(f"/{host}/tcp/1")
    numbers = ("127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "\uff11\uff12\uff17.1")
    for number in numbers:
        assert is_loopback(f"/dns4/{number}/tcp/1")
    for host in (
        "ip4/10.0.0.1",
        "dns4/node.example",
        "ip6/fd00::1",
        "dns4/10.1",
        "dns4/127.example",
    ):
        assert not is_loopback(f"/{host}/tcp/1")


async def test_a_name_is_not_dialled_on_this_machine(monkeypatch):
    """Unless it says so, or the node listens nowhere else."""
    async with loopback_host() as peer:
        Records(monkeypatch, {"_dnsaddr.node.example": [f"dnsaddr={peer.addresses[0]}"]})
        name = f"/dnsaddr/node.example/p2p/{peer.peer_id}"
        async with loopback_host(listen=("/ip4/0.0.0.0/tcp/0",)) as host:
            with pytest.raises(PeerError, match="it resolves to this machine"):
                await host.connect(name)
            port = peer.addresses[0].split("/")[4]
            await host.connect(f"/dns4/localhost/tcp/{port}/p2p/{peer.peer_id}")
        async with loopback_host() as host:
            await host.connect(name)


async def test_names_that_nobody_answers_for_leave_threads_for_others(monkeypatch):
    """Such a lookup keeps its thread for half a minute, when the dial has long been given up."""
    answered = threading.Event()

    def look_up(*args: Any, **kwargs: Any) -> list[Any]:
        answered.wait(PATIENCE)
        return []

    async def dial() -> None:
        nobody = peer_id_of(create_new_key_pair())
        with pytest.raises(PeerError, match="did not answer"):
            await host.connect(f"/dns4/node.example/tcp/1/p2p/{nobody}")

    threads = int(trio.to_thread.current_default_thread_limiter().total_tokens)
    async with loopback_host(dial_timeout=0.5) as host:
        monkeypatch.setattr(addresses_module.socket, "getaddrinfo", look_up)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(threads):
                    nursery.start_soon(dial)
            with trio.fail_after(PATIENCE / 2):
                await trio.to_thread.run_sync(threading.get_ident)
        finally:
            answered.set()


async def test_names_are_looked_up_as_idna_2008_spells_them(monkeypatch):
    asked = []

    def look_up(host, *_, **__):
        asked.append(host)
        return [(trio.socket.AF_INET, 0, 0, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(addresses_module.socket, "getaddrinfo", look_up)
    for name in ("node.example", "straße.example", "ދިވެހި.example"):
        [found] = await resolve(Multiaddr(f"/dns4/{name}/tcp/4101"))
        assert str(found) == "/ip4/192.0.2.7/tcp/4101"
    assert asked == ["node.example", b"xn--strae-oqa.example", b"xn--hqbpi0jcw.example"]


def test_all_addresses_of_the_machine_are_never_called_0_0_0_0(interfaces):
    listening = [Multiaddr("/ip4/0.0.0.0/tcp/4101"), Multiaddr("/ip6/::/tcp/4101")]
    loopback = [Multiaddr("/ip4/127.0.0.1/tcp/4101"), Multiaddr("/ip6/::1/tcp/4101")]
    assert reachable(listening) == loopback  # no network: --network none, or a cable unplugged
    interfaces.add("eth0", trio.socket.AF_INET, "192.0.2.7")
    assert reachable(listening[:1]) == [Multiaddr("/ip4/192.0.2.7/tcp/4101")]
    named = Multiaddr("/ip4/192.0.2.9/tcp/4101")
    assert reachable([named])[0] == named
    interfaces.up.clear()
    interfaces.add("eth0", trio.socket.AF_INET, "169.254.1.1")  # no address given to it yet
    assert is_dialable(str(reachable(listening[:1])[0]))


async def test_what_identify_says_follows_the_interfaces(interfaces):
    async with loopback_host(listen=("/ip4/0.0.0.0/tcp/0",)) as host:
        port = host.addresses[0].split("/")[4]
        for ip in ("127.0.0.1", "192.0.2.7"):
            if ip != "127.0.0.1":
                interfaces.add("eth0", trio.socket.AF_INET, ip)
            expected = [f"/ip4/{ip}/tcp/{port}"]
            assert host.addresses == [f"{expected[0]}/p2p/{host.peer_id}"]
            async with loopback_host() as peer:
                announced = []
                peer.on_identified(
                    lambda _, addresses, announced=announced: announced.append(addresses)
                )
                await host.connect(peer.addresses[0])
                await eventually(lambda announced=announced: announced)
                assert [address.split("/p2p/")[0] for address in announced[0]] == expected


@given(
    part=st.sampled_from(DIALABLE).map(lambda text: Multiaddr(f"{text}/p2p/{PEER}").to_bytes()),
    data=st.data(),
)
def test_bytes_that_can_be_dialled_can_be_written_as_text(part, data):
    """Anybody sends any bytes; what is dialled is a text, and so is what the log shows."""
    changes = st.dictionaries(st.integers(0, len(part) - 1), st.integers(0, 255), max_size=3)
    sent = bytearray(part)
    for at, byte in data.draw(changes).items():
        sent[at] = byte
    address = Multiaddr(bytes(sent))
    if is_dialable(address):
        check_dialable(Multiaddr(str(address)))


@pytest.mark.parametrize("text", DIALABLE)
def test_an_address_that_can_be_dialled_looks_like_it(text):
    for address in (text, f"{text}/p2p/{PEER}"):
        raw = Multiaddr(address).to_bytes()
        assert likely([b"", raw, raw], 1) == [raw]
    assert likely([raw], -1) == []


@given(st.text("aZ0-_.ü", max_size=70))
def test_a_name_is_read_and_written_as_by_the_library_if_that_takes_it(name):
    part, protocol = NamePart(), protocol_with_name("dns4")
    with suppress(ValueError):
        raw = addresses_module._stock_to_bytes(part, protocol, name)
        assert addresses_module._name_to_bytes(part, protocol, name) == raw
        assert addresses_module._name_to_string(part, protocol, raw) == name


async def test_few_addresses_of_an_introduction_are_checked(monkeypatch):
    """Port 0 cannot be dialled."""
    raws = [b"\x04\x08\x08" + number.to_bytes(2, "big") + b"\6\0\0" for number in range(700)]
    checked = []
    check = addresses_module._is_dialable.__wrapped__
    monkeypatch.setattr(
        addresses_module, "_is_dialable", lambda text: checked.append(text) or check(text)
    )
    store = GuardedPeerStore(lambda peer_id: False)
    await host_module._note(store, ID.from_string(PEER), Identify(listen_addrs=raws))
    assert 0 < len(checked) <= MAX_PEER_ADDRESSES


async def test_no_store_takes_what_cannot_be_dialled():
    addresses = [Multiaddr(address) for address in UNDIALABLE + DIALABLE[:1]]
    without_text = Multiaddr(addresses[-1].to_bytes() + b"\xa5\x03\x04oops")
    addresses.insert(0, without_text)
    peer_id = ID.from_string(PEER)
    store = GuardedPeerStore(lambda peer_id: False)
    store.add_addrs(peer_id, addresses, 60)
    assert store.addrs(peer_id) == addresses[-1:]

    async with loopback_host() as host:
        records = RecordStore(host.libp2p)
        records.add_provider(b"key", PeerInfo(peer_id, addresses))
        assert [provider.addrs for provider in records.get_providers(b"key")] == [addresses[-1:]]

    book = PeerBook(10)
    book.note_peer(PEER, [*map(str, addresses[1:]), f"{DIALABLE[1]}/p2p/{OTHER}"])
    assert book.get(PEER).addresses == [f"{DIALABLE[0]}/p2p/{PEER}"]


def test_a_peer_file_of_before_is_cleaned_on_load():
    kept = {PEER: "/ip4/0.0.0.0/tcp/4101", OTHER: DIALABLE[0]}
    rows = [
        {"id": peer, "addresses": [f"{address}/p2p/{peer}"], "latency": None, "last_sync": None}
        for peer, address in kept.items()
    ]
    book = PeerBook(10)
    book.load(rows)
    assert [peer.id for peer in book.peers()] == [OTHER]


async def test_loopback_addresses_of_peers_elsewhere_are_not_kept(tmp_path, monkeypatch):
    elsewhere = "/ip4/192.0.2.7/tcp/4101"
    async with node(tmp_path) as here:
        p2p = here.p2p
        monkeypatch.setattr(p2p._host, "known_protocols", lambda peer: {"/ceramic/recon/1.0.0"})
        for near, kept in ((False, 1), (True, 2)):
            monkeypatch.setattr(p2p._host, "is_on_this_machine", lambda address, near=near: near)
            p2p._identified(PEER, [elsewhere, "/ip4/127.0.0.1/tcp/4101"])
            assert len(p2p._book.get(PEER).addresses) == kept
        p2p.found(OTHER, ["/ip4/127.0.0.1/tcp/4101"])  # all is loopback here
        assert p2p._book.get(OTHER) is not None
        p2p._book.forget(OTHER)
        monkeypatch.setattr(Host, "addresses", [f"{elsewhere}/p2p/{p2p.peer_id}"])
        p2p.found(OTHER, ["/ip4/127.0.0.1/tcp/4101"])
        assert p2p._book.get(OTHER) is None
        p2p.found(p2p.peer_id, [elsewhere])  # a node does not dial itself
        assert p2p._book.get(p2p.peer_id) is None


@pytest.mark.parametrize(
    ("setting", "address"),
    [("announce", "/ip4/0.0.0.0/tcp/4101"), ("bootstrap", "/ip4/192.0.2.7/udp/1/quic-v1")],
)
async def test_settings_that_cannot_be_dialled_stop_the_start(tmp_path, setting, address):
    with pytest.raises(ValueError, match="cannot be dialled"):
        async with node(tmp_path, **{setting: (f"{address}/p2p/{PEER}",)}):
            pass


class Records:
    """Stands for the DNS: TXT records by name."""

    def __init__(self, monkeypatch, records):
        self.records = records
        monkeypatch.setattr(dns.asyncresolver.Resolver, "__init__", lambda resolver: None)
        monkeypatch.setattr(dns.asyncresolver.Resolver, "resolve", self.resolve)

    async def resolve(self, name, kind):
        await trio.lowlevel.checkpoint()
        if name not in self.records:
            raise dns.resolver.NoAnswer
        if self.records[name] is None:
            await trio.sleep_forever()
        return [SimpleNamespace(strings=[record.encode()]) for record in self.records[name]]


async def test_a_dnsaddr_is_looked_up(monkeypatch):
    records = [
        f"dnsaddr=/ip4/192.0.2.7/udp/1/quic-v1/p2p/{PEER}",
        f"dnsaddr=/ip4/192.0.2.7/tcp/1/p2p/{PEER}",
        f"dnsaddr=/ip4/192.0.2.8/tcp/1/p2p/{OTHER}",
        "v=spf1",
    ]
    Records(monkeypatch, {"_dnsaddr.node.example": records})
    addresses = await resolve(Multiaddr(f"/dnsaddr/node.example/p2p/{PEER}"))
    assert addresses == [Multiaddr(f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}")]
    with pytest.raises(PeerError, match=r"_dnsaddr\.nowhere\.example have no TCP address"):
        await resolve(Multiaddr(f"/dnsaddr/nowhere.example/p2p/{PEER}"))


async def test_a_peer_is_reached_by_its_dnsaddr_and_a_dead_address_is_passed_over(monkeypatch):
    async with loopback_host() as host, loopback_host() as peer:
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{peer.peer_id}"
        records = {"_dnsaddr.node.example": [f"dnsaddr={dead}", f"dnsaddr={peer.addresses[0]}"]}
        Records(monkeypatch, records)
        assert await host.connect(f"/dnsaddr/node.example/p2p/{peer.peer_id}") == peer.peer_id


async def test_a_dns_that_does_not_answer_is_given_up(monkeypatch):
    Records(monkeypatch, {"_dnsaddr.node.example": None})
    async with loopback_host(dial_timeout=0.1) as host:
        with pytest.raises(PeerError, match=r"did not answer within 0\.1 s"):
            await host.connect(f"/dnsaddr/node.example/p2p/{PEER}")
