"""What a syncer stands on, for tests with a clock of their own."""

import trio
from p2p_support import LOOPBACK, NETWORK

from recon_node.ceramic import METAMODEL, StreamId, sort_value_range
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.sync.reconciler import PeerMemory
from recon_node.p2p.sync.sync_scheduler import SyncScheduler
from recon_node.recon import KeyRange, KeyStore
from recon_node.store.store import Arrivals, Filling

OURS = [KeyRange(*sort_value_range(NETWORK, str(StreamId(kind, METAMODEL.cid)))) for kind in (2, 3)]


class Wanting:
    """Stands for a store: only its interests matter to when and with whom a sync runs."""

    ranges = OURS
    all = ()

    def __init__(self) -> None:
        self.wanted = self
        self.wants_more = trio.Event()
        self.arrivals = Arrivals()
        self.damage = Damage()
        self.filling = Filling()
        self.keys = KeyStore()

    async def wait_for_change(self, known):
        await self.wants_more.wait()
        self.wants_more = trio.Event()


class Connected:
    """Stands for a host that is connected with everyone, but those that do not exist."""

    peer_id = "me"

    def __init__(self) -> None:
        self.near = []

    def is_connected(self, peer_id):
        return not peer_id.startswith("fake")

    async def connect(self, address):
        await trio.sleep(LOOPBACK.dial_timeout)
        raise PeerError("no answer")

    def address_block(self, peer_id):
        return ""

    def connected_peers(self):
        return list(self.near)

    def latency(self, peer_id):
        return 0.01


class Recorded:
    """Stands for the sessions: notes what is asked for, and takes as long as a test says."""

    def __init__(self) -> None:
        self.asked = []
        self.seconds = {}
        self.error = {}
        self.told = {}
        self.memory = PeerMemory()
        self.unable = set()
        self.seconds_of_peers = 0

    def sources_of(self, key):
        return self.told.get(key, ())

    def can_sync_with(self, peer_id):
        return peer_id not in self.unable

    @property
    def slots(self):
        return self

    async def wait_until_unused(self, peer_id):
        await trio.sleep(self.seconds_of_peers)

    async def reconcile(self, peer_id, key_range, news=()):
        self.asked.append((peer_id, key_range))
        await trio.sleep(self.seconds.get(peer_id, 0))
        if peer_id in self.error:
            raise self.error[peer_id]
        return 0


class Damage:
    """Stands for the events of a store that are found damaged."""

    def __init__(self) -> None:
        self.found = 0
        self.moved = trio.lowlevel.ParkingLot()

    async def wait(self, after):
        while self.found <= after:
            await self.moved.park()
        return self.found

    def find(self):
        self.found += 1
        self.moved.unpark_all()


async def no_wait(peer_id):
    """Do not wait for a peer's interests."""


def scheduler(
    context, sessions, *, wait_for_interests=no_wait, is_needed=lambda peer_id: True, rings=None
):
    overlap = Overlap(context.store, context.book)
    return SyncScheduler(context, sessions, overlap, wait_for_interests, is_needed, rings)
