"""Floor 4, the store: the durable event log, admission and the feed.

`open_store` yields the `Store` of a data directory. An event that is submitted (`admit_local`,
`admit_remote`) takes one way down:

    intake        gathers requests into batches
    verification  what the event alone can tell, in other processes
    judging       what the write policy says of the streams
    admission     `rules`: whether it is accepted; `ladder`: when it is delivered; `anchors`
    db            the transaction of the batch (see `schema` for what survives what)
    contents      the key store and the feed's head move, and readers wake up

and then its verdict is returned.
"""

from recon_node.store.admission.records import State
from recon_node.store.damage import Damage, DamagedEventError
from recon_node.store.errors import (
    DamagedLogError,
    DiskFullError,
    InvalidInterestError,
    StoreError,
    UnknownTimeError,
)
from recon_node.store.interest_notation import format_interest, is_of_a_document, parse_interest
from recon_node.store.lock import is_in_use
from recon_node.store.opening import open_store
from recon_node.store.policy import (
    Lists,
    Policy,
    PolicyError,
    PolicySettings,
    StreamFacts,
    WritePolicy,
)
from recon_node.store.reading.catalogue import FoundEvent, ListedStream, StreamFilter, StreamPage
from recon_node.store.reading.undelivered import RefusedEvent, Undelivered
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
    StoreStats,
    TimeRow,
    Verdict,
    usable_cores,
)

__all__ = [
    "Damage",
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
    "Lists",
    "PendingProof",
    "Policy",
    "PolicyError",
    "PolicySettings",
    "RefusedEvent",
    "State",
    "Store",
    "StoreError",
    "StoreSettings",
    "StoreStats",
    "StreamFacts",
    "StreamFilter",
    "StreamPage",
    "TimeRow",
    "Undelivered",
    "UnknownTimeError",
    "Verdict",
    "WritePolicy",
    "format_interest",
    "is_in_use",
    "is_of_a_document",
    "open_store",
    "parse_interest",
    "usable_cores",
]
