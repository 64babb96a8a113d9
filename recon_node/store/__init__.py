"""Layer 4, the store: the durable event log, admission and the feed.

`open_store` yields the `Store` of a data directory. In reading order:

    store             submits events; what it holds, in memory: after each commit the key store and
                      the feed's head move, and readers wake up
    opening           opens and closes it
    intake            gathers requests into batches, which are verified in other processes; the one
                      writer of the log
    policy            asks the write policy about the streams of a batch
    admission/        whether an event is accepted, and when it is delivered: pure
    db/               the transaction of the batch (see `log_schema` for what survives what)
    ring_keys         the keys as ceramic-one nodes have them
    reading/          the questions about the log, which are at `Store.reader`
    damage            events whose bytes are not what was written
    kept_interests    which keys the node is interested in, and how people write that
    directory_lock    the lock of the data directory
    values, errors    what goes in and comes out
    maintenance/      what `recon-node store` does, while no node has the log
"""

from recon_node.store.admission.records import State
from recon_node.store.damage import DamagedEventError
from recon_node.store.directory_lock import is_in_use
from recon_node.store.errors import (
    DamagedLogError,
    DiskFullError,
    InvalidInterestError,
    StoreError,
    UnknownTimeError,
)
from recon_node.store.kept_interests import format_interest, is_of_a_document, parse_interest
from recon_node.store.opening import open_store
from recon_node.store.policy import Policy, PolicySettings
from recon_node.store.reading.backlog import RefusedEvent, Undelivered
from recon_node.store.reading.stream_lists import FoundEvent, ListedStream, StreamFilter, StreamPage
from recon_node.store.store import Store
from recon_node.store.values import (
    FeedColumns,
    FeedFilter,
    FeedRow,
    FeedTime,
    HeldRow,
    Interest,
    PendingProof,
    StoreSettings,
    TimeRow,
    Verdict,
)

__all__ = [
    "DamagedEventError",
    "DamagedLogError",
    "DiskFullError",
    "FeedColumns",
    "FeedFilter",
    "FeedRow",
    "FeedTime",
    "FoundEvent",
    "HeldRow",
    "Interest",
    "InvalidInterestError",
    "ListedStream",
    "PendingProof",
    "Policy",
    "PolicySettings",
    "RefusedEvent",
    "State",
    "Store",
    "StoreError",
    "StoreSettings",
    "StreamFilter",
    "StreamPage",
    "TimeRow",
    "Undelivered",
    "UnknownTimeError",
    "Verdict",
    "format_interest",
    "is_in_use",
    "is_of_a_document",
    "open_store",
    "parse_interest",
]
