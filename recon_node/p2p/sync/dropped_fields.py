"""Events that a ceramic-one node reads, but cannot store.

It stores the blocks of an event as it encodes them again, without fields that it does not know or
that are null. A block without such a field does not match its CID. Then all values of its batch are
lost, not this one alone, and the session ends; the next one would send the same batch. So valid
events would never arrive. Nodes of our own kind take two sorts of such events: anchors whose proof
has the fields of proofs of before 2023 beside a `txType`, and events under a capability in which a
field is null.
"""

from __future__ import annotations

import re
from typing import Final

from recon_node.ceramic import Event, EventKind, InvalidEventError, parse_event
from recon_node.ipld import car as car_files
from recon_node.ipld import dag_cbor

_OLD_PROOF: Final = frozenset({"blockNumber", "blockTimestamp"})
_NULLABLE: Final = ("nbf", "exp", "statement", "requestId", "m")
_SIGNS: Final = re.compile(
    b"|".join(
        re.escape(sign)
        for sign in (
            *map(dag_cbor.encode, sorted(_OLD_PROOF)),
            *(dag_cbor.encode(name) + dag_cbor.encode(None) for name in _NULLABLE),
        )
    )
)
"""What such an event has in its bytes; hardly any other has it."""


def loses_fields(car: bytes) -> bool:
    """Whether a ceramic-one node would read the event, but drop some of it before it stores it."""
    if _SIGNS.search(car) is None:
        return False
    try:
        event = parse_event(car)
    except InvalidEventError:  # damaged on disk: the peer refuses it by itself
        return False
    return _in_proof(event) if event.kind is EventKind.TIME else _in_capability(event)


def _in_proof(event: Event) -> bool:
    proof = dag_cbor.decode(car_files.decode(event.car).blocks[event.payload["proof"]])
    return "txType" in proof and not _OLD_PROOF.isdisjoint(proof)


def _in_capability(event: Event) -> bool:
    if event.capability is None:
        return False
    capability = dag_cbor.decode(event.capability)
    parts = [part for part in capability.values() if type(part) is dict]
    return any(value is None for part in parts for value in part.values())
