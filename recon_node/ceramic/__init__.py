"""Layer 2, Ceramic: networks, StreamIDs, EventIds, events, DIDs and signatures.

Pure functions over bytes: what an event is, which key it has, and whether it is what it claims
to be. What is refused raises a `CeramicError` whose message is user-facing. In reading order:

    event                what a CAR holds
    init_header          what an init event says about its stream; StreamIDs
    checked_events       events that a node has checked, read by the native core
    event_id             the keys that Recon reconciles
    auth/                who signed an event, and whether they were allowed to
    time_proof           what a time event proves
    builder              makes events
    network              the networks
    heightless_event_id  the keys as ceramic-one nodes have them
    errors               what goes wrong
"""

from recon_node.ceramic.auth.capability import ALWAYS, Validity
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.ceramic.auth.signature import (
    authority,
    check_authority,
    signer,
    validity_of,
    verify_signature,
)
from recon_node.ceramic.errors import (
    CeramicError,
    DidError,
    EventIdError,
    InvalidEventError,
    InvalidSignatureError,
    NetworkError,
    StreamIdError,
    UnsupportedSignatureError,
)
from recon_node.ceramic.event import (
    MAX_CAR_SIZE,
    Event,
    EventKind,
    assemble_event,
    bare_time_event,
    parse_event,
)
from recon_node.ceramic.event_id import (
    FENCEPOST_CID,
    FIELDS_SIZE,
    MAX_HEIGHT,
    EventId,
    Shard,
    controller_range,
    event_ids,
    network_id_of,
    network_range,
    prefix_range,
    rendezvous,
    scan,
    sort_value_range,
    sort_value_rendezvous,
    stream_range,
    streams_range,
)
from recon_node.ceramic.init_header import METAMODEL, InitHeader, StreamId, StreamType
from recon_node.ceramic.network import (
    DEV_UNSTABLE,
    IN_MEMORY,
    MAINNET,
    TESTNET_CLAY,
    Network,
    network_name,
)
from recon_node.ceramic.time_proof import (
    TimeProof,
    check_transaction,
    expected_input,
    has_plain_path,
)

__all__ = [
    "ALWAYS",
    "DEV_UNSTABLE",
    "FENCEPOST_CID",
    "FIELDS_SIZE",
    "IN_MEMORY",
    "MAINNET",
    "MAX_CAR_SIZE",
    "MAX_HEIGHT",
    "METAMODEL",
    "TESTNET_CLAY",
    "CeramicError",
    "DidError",
    "Event",
    "EventId",
    "EventIdError",
    "EventKind",
    "InitHeader",
    "InvalidEventError",
    "InvalidSignatureError",
    "Network",
    "NetworkError",
    "Shard",
    "StreamId",
    "StreamIdError",
    "StreamType",
    "TimeProof",
    "UnsupportedSignatureError",
    "Validity",
    "assemble_event",
    "authority",
    "bare_time_event",
    "check_authority",
    "check_transaction",
    "controller_range",
    "ed25519_did",
    "event_ids",
    "expected_input",
    "has_plain_path",
    "network_id_of",
    "network_name",
    "network_range",
    "parse_event",
    "prefix_range",
    "rendezvous",
    "scan",
    "signer",
    "sort_value_range",
    "sort_value_rendezvous",
    "stream_range",
    "streams_range",
    "validity_of",
    "verify_signature",
]
