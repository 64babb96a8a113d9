"""Floor 4, the store: the durable event log, admission and the feed.

`open_store` gives the `Store` of a data directory. An event is handed in (`admit_local`,
`admit_remote`), checked, written to the log, entered in the key store, and delivered to the feed in
causal order. Start reading with `admission` (what is accepted), `ladder` (when it is delivered),
`schema` (the file, and what survives what), `writer` (how commits are grouped) and `verifiers`
(where signatures are checked).
"""

from recon_node.store.damage.detection import Damage, DamagedEventError
from recon_node.store.db.feed_filter import FeedFilter
from recon_node.store.errors import (
    DamagedLogError,
    DiskFullError,
    InvalidInterestError,
    StoreError,
)
from recon_node.store.interests import format_interest, is_of_a_document, parse_interest
from recon_node.store.opening import open_store
from recon_node.store.store import Store
from recon_node.store.values import (
    FeedColumns,
    FeedRow,
    Interest,
    PendingProof,
    StoreSettings,
    StoreStats,
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
    "Interest",
    "InvalidInterestError",
    "PendingProof",
    "Store",
    "StoreError",
    "StoreSettings",
    "StoreStats",
    "Verdict",
    "format_interest",
    "is_of_a_document",
    "open_store",
    "parse_interest",
    "usable_cores",
]
