"""Keeping dead peers out of the answers of this node's DHT.

The library adds every peer that it hears of to its routing table, and takes hearsay for a sign of
life, so that nodes remind each other of dead peers forever. Here a peer is only added to the table
while it is connected. Peers that are listed without a connection, in the table or as providers, are
dialled regularly and removed if they do not answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

import structlog
import trio
from libp2p.kad_dht.routing_table import RoutingTable
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.backoff import jittered
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.provider_records import ProviderRecords
from recon_node.p2p.transport.host import Host

log = structlog.get_logger(__name__)

CHECK_INTERVAL: Final = 60.0
"""Seconds between two checks of the peers that are listed without a connection."""
MAX_CHECKED: Final = 20
"""Maximum peers dialled in one check, starting with those checked longest ago."""
CHECK_LIMIT: Final = 10.0
"""Seconds in which a peer must accept a connection."""
ENOUGH_CONNECTIONS: Final = 16
"""With more than this, a connection that was made for a check is closed after it."""


def admit_connected_only(table: RoutingTable, is_able: Callable[[str], bool]) -> None:
    """Make a routing table admit the peers of which ``is_able`` says that they are connected and
    speak the DHT."""
    stock = table.add_peer

    async def add_peer(peer: PeerInfo | ID, **_options: bool) -> bool:
        peer_id = peer.peer_id if isinstance(peer, PeerInfo) else peer
        if not is_able(str(peer_id)):
            return False
        return await stock(peer, skip_server_mode_check=True)  # the library knows one protocol id

    table.add_peer = add_peer  # type: ignore[assignment, method-assign]


class LivenessCheck:
    """Removes dead peers from a routing table and from provider records."""

    def __init__(self, host: Host, table: RoutingTable, records: ProviderRecords) -> None:
        self._host = host
        self._table = table
        self._records = records
        self._checked: dict[ID, float] = {}

    async def run(self) -> None:
        """Check regularly until cancelled."""
        while True:
            await trio.sleep(jittered(CHECK_INTERVAL, random.random()))
            await self.check()

    async def check(self) -> None:
        """Dial peers that are listed without a connection; remove those that do not answer.

        A node without connections removes no peers, since it may be offline itself.
        """
        if not self._host.connected_peers():
            return
        suspects = {
            peer: addresses
            for peer, addresses in self._listed().items()
            if str(peer) != self._host.peer_id and not self._host.is_connected(str(peer))
        }
        self._checked = {peer: at for peer, at in self._checked.items() if peer in suspects}
        longest_ago = sorted(suspects, key=lambda peer: self._checked.get(peer, 0.0))
        async with trio.open_nursery() as nursery:
            for peer in longest_ago[:MAX_CHECKED]:
                self._checked[peer] = trio.current_time()
                nursery.start_soon(self._check_one, peer, suspects[peer])

    def _listed(self) -> dict[ID, list[Multiaddr]]:
        """Return all peers that the DHT's answers may name, and their addresses."""
        listed: dict[ID, list[Multiaddr]] = {}
        for each in self._table.get_peer_infos():
            listed.setdefault(each.peer_id, []).extend(each.addrs)
        for provider in self._records.each_provider():
            addresses = listed.setdefault(ID.from_string(provider.peer_id), [])
            addresses.extend(map(Multiaddr, provider.addresses))
        return listed

    async def _check_one(self, peer: ID, addresses: Iterable[Multiaddr]) -> None:
        peer_id = str(peer)
        with trio.move_on_after(CHECK_LIMIT):
            for address in dict.fromkeys(str(each) for each in addresses):
                place = address.removesuffix(f"/p2p/{peer_id}")
                try:
                    await self._host.connect(f"{place}/p2p/{peer_id}")
                except PeerError:
                    continue
                if len(self._host.connected_peers()) > ENOUGH_CONNECTIONS:
                    await self._host.disconnect(peer_id)
                return
        if self._host.is_connected(peer_id):
            return
        log.debug("Removed a peer from the DHT: it does not answer", peer=peer_id)
        self._table.remove_peer(peer)
        self._records.forget(peer_id)
