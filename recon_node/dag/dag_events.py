"""The events by which DAGs travel between nodes: shards, and the operations of replicas.

    header  {controllers: [pusher's did:key], model: DAG_MODEL, sep: "dag", dag: bytes}
    data    {shard: bytes}      a CARv1 with some blocks of the DAG
            {replica: bytes}    a replica's block: an append or a join; or a publish

Each is the signed init event of a stream without other events, so none waits for another. `dag`,
their sort value, is the binary CID of the DAG's root, or what follows the "z" in an identifier's
did:key (`0xed 0x01`, then the Ed25519 public key): an interest in that sort value gets the DAG, or
all publishes of the identifier. As text, a sort value is multibase base36; any other multibase of
the same bytes ("bafy...", "z6Mk...") means the same.

Anyone can write events under any sort value, so they are not trusted: a block must match its CID, a
replica only claims which shards belong to a DAG, and a publish shows its UCAN.

The same key, DAG and data make the same event, so pushing something again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from recon_node.ceramic import (
    MAX_CAR_SIZE,
    Event,
    EventKind,
    StreamId,
    StreamType,
    ed25519_did,
    parse_event,
)
from recon_node.ceramic.auth.did import PrivateKey, controller_of, ed25519_key
from recon_node.ceramic.builder import signed_event
from recon_node.ceramic.event_id import DAG_SORT_KEY
from recon_node.dag.errors import DagEventError
from recon_node.ipld import CID, IpldError, cid_of_block, multibase

SORT_KEY: Final = DAG_SORT_KEY

DAG_MODEL: Final = StreamId(StreamType.UNLOADABLE, CID(b"\x01\x55\x00\x06dag-v1"))
"""The model in their headers: a stream that cannot be loaded, like the metamodel."""

MAX_SHARD_SIZE: Final = MAX_CAR_SIZE - 4_000
"""Bytes of a shard that fits into an event; the rest is for the envelope and the header."""

_ED25519_HEAD: Final = b"\xed\x01"
_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 public key."""


@dataclass(frozen=True, slots=True)
class Identifier:
    """The subject of publishes: an Ed25519 public key of 32 bytes."""

    key: bytes

    @classmethod
    def parse(cls, text: str) -> Identifier:
        """Read a did:key.

        Raises:
            DidError: not a did:key, or of another kind of key.
        """
        return cls(bytes(ed25519_key(text)))

    def __str__(self) -> str:
        return ed25519_did(self.key)


Subject = CID | Identifier
"""The subject of an event: a DAG, by the CID of its root, or an identifier."""


@dataclass(frozen=True, slots=True)
class DagEvent:
    """The content of an event: a shard of a DAG (a CAR), a replica's block, or neither."""

    subject: Subject
    shard: bytes | None = None
    replica: bytes | None = None


def sort_bytes(subject: Subject) -> bytes:
    """Return the sort value of a DAG's or an identifier's events, as in their headers."""
    return _ED25519_HEAD + subject.key if isinstance(subject, Identifier) else bytes(subject)


def sort_value(subject: Subject) -> str:
    """Return the sort value as text, as `InitHeader.sort_value` and interests have it."""
    return multibase.encode(sort_bytes(subject), "base36")


def parse_subject(text: str) -> Subject:
    """Read a DAG, by its root's CID, or an identifier, by its did:key.

    Raises:
        CidError: not a CID.
        DidError: not the did:key of an Ed25519 key.
    """
    return Identifier.parse(text) if text.startswith("did:") else parse_root(text)


def parse_root(text: str) -> CID:
    """Read the CID of a DAG's root; a CIDv0 becomes the CIDv1 of the same block.

    Raises:
        CidError: not a CID.
    """
    return cid_of_block(CID.parse(text))


def shard_event(key: PrivateKey, root: CID, shard: bytes) -> Event:
    """Build the event with a shard of the DAG below `root`.

    Raises:
        InvalidEventError: the shard is larger than `MAX_SHARD_SIZE`.
    """
    return _event(key, root, {"shard": shard})


def replica_event(key: PrivateKey, subject: Subject, block: bytes) -> Event:
    """Build the event with an operation: on a DAG, or a publish of an identifier.

    Raises:
        InvalidEventError: the event would be too large.
    """
    return _event(key, subject, {"replica": block})


def read_dag_event(car: bytes) -> DagEvent:
    """Read an event with the sort key "dag", whose signature has been checked.

    Raises:
        DagEventError: another sort key, or a sort value that is neither a CID nor an Ed25519 key.
        InvalidEventError: not an event.
    """
    event = parse_event(car)
    if (
        event.kind is not EventKind.INIT
        or event.header is None
        or event.header.sort_key != SORT_KEY
    ):
        raise DagEventError(f"{event.cid} is not an init event with the sort key {SORT_KEY!r}")
    subject = subject_of(event.header.sort_value)
    data = event.data
    if isinstance(data, dict) and len(data) == 1:
        [(kind, value)] = data.items()
        if kind == "shard" and isinstance(value, bytes) and isinstance(subject, CID):
            return DagEvent(subject, shard=value)
        if kind == "replica" and isinstance(value, bytes):
            return DagEvent(subject, replica=value)
    return DagEvent(subject)


def subject_of(text: str) -> Subject:
    """Read a sort value (multibase text).

    Raises:
        DagEventError: neither a CID nor an Ed25519 public key.
    """
    try:
        raw = multibase.decode(text)
        if raw.startswith(_ED25519_HEAD) and len(raw) == len(_ED25519_HEAD) + _KEY_SIZE:
            return Identifier(raw.removeprefix(_ED25519_HEAD))
        return CID(raw)
    except IpldError as error:
        raise DagEventError(f"{text[:100]!r} is neither a DAG nor an identifier: {error}") from None


def _event(key: PrivateKey, subject: Subject, data: dict[str, Any]) -> Event:
    header = {
        "controllers": [controller_of(key)],
        "model": DAG_MODEL.to_bytes(),
        "sep": SORT_KEY,
        SORT_KEY: sort_bytes(subject),
    }
    return signed_event(key, {"header": header, "data": data})
