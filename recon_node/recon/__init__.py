"""Recon: set reconciliation over sorted keys (CIP-124), without I/O.

`KeyStore` holds the keys and hashes any range of them. `VERSIONS` lists the versions of the
protocol in which sides take turns, best first. In reading order:

    actions  a session as its driver sees it
    session  what sessions in turns share: the theory, and one side's state
    keys/    the keys of a store, and what may be asked of them
    cip124/  1.0.0, the messages of the CIP
    coded/   1.2.0, coded symbols
    ring/    0.1.0, the deployed network's
"""

from typing import Any, Final

from recon_node.recon.actions import (
    Actions,
    Failed,
    Fetch,
    FetchById,
    Send,
    Session,
    SoughtIds,
    turn_of,
)
from recon_node.recon.cip124 import RECON_1_0
from recon_node.recon.coded import RECON_1_2
from recon_node.recon.keys.key_hashes import ID_SIZE, id_of
from recon_node.recon.keys.key_store import KeyStore, KeyView
from recon_node.recon.keys.lookups import find_by_id
from recon_node.recon.keys.ordered_keys import (
    KeyRange,
    Summary,
    covers,
    intersect_ranges,
    merge_ranges,
    subtract_ranges,
)
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.session import (
    DEFAULT_SETTINGS,
    LocalProtocolError,
    RemoteProtocolError,
    SessionSettings,
    Side,
    Version,
)

VERSIONS: Final[tuple[Version[Any], ...]] = (RECON_1_2, RECON_1_0)
"""The versions in which sides take turns, in the order in which an initiator offers them."""

__all__ = [
    "DEFAULT_SETTINGS",
    "ID_SIZE",
    "RECON_1_0",
    "RECON_1_2",
    "VERSIONS",
    "ZERO",
    "Actions",
    "Failed",
    "Fetch",
    "FetchById",
    "KeyRange",
    "KeyStore",
    "KeyView",
    "LocalProtocolError",
    "RemoteProtocolError",
    "Send",
    "Session",
    "SessionSettings",
    "Sha256a",
    "Side",
    "SoughtIds",
    "Summary",
    "Version",
    "covers",
    "find_by_id",
    "id_of",
    "intersect_ranges",
    "merge_ranges",
    "subtract_ranges",
    "turn_of",
]
