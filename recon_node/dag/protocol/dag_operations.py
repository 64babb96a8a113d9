"""The operations of the DAG Replication & Publishing Protocol, and their one canonical form.

`Append` adds shards to the state of a DAG, `Join` brings the states of several replicas together
(section "DAG State"), and `Publish` binds a state to an identifier (section "Publishing Protocol").
Each is a map in DAG-CBOR with its name in `type`. A meaning has one form, and so one CID: lists are
without duplicates and sorted by the base32 text of the CIDs, which is not the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

from recon_node.ipld import CID

ID_SIZE: Final = 32
"""Bytes of an identifier: an Ed25519 public key."""

_NONE: Final[frozenset[str]] = frozenset()


class ReplicaError(ValueError):
    """Not a replica in its canonical form, or an incomplete history."""


@dataclass(frozen=True, slots=True)
class Append:
    """Adds shards (CAR files, by their CIDs) to the prior state."""

    shards: tuple[CID, ...]

    def __post_init__(self) -> None:
        _check_order(self.shards, "the shards of an append")

    @classmethod
    def of(cls, shards: Iterable[CID]) -> Self:
        """Build an append of these shards, in any order, duplicates allowed."""
        return cls(tuple(sorted(set(shards), key=str)))


@dataclass(frozen=True, slots=True)
class Join:
    """Adds the shards of the forks' histories to the prior state."""

    forks: tuple[CID, ...]

    def __post_init__(self) -> None:
        _check_order(self.forks, "the forks of a join")
        if not self.forks:
            raise ReplicaError("a join names at least one fork besides its prior")


@dataclass(frozen=True, slots=True)
class Publish:
    """Binds the block `link` of the DAG `origin` to an identifier.

    `id` is an Ed25519 public key, `origin` a replica, `shard` the one with the block `link`, if
    known, and `proof` the UCAN (JWT) that permits the publish.
    """

    id: bytes
    link: CID
    origin: CID
    proof: str
    shard: CID | None = None

    def __post_init__(self) -> None:
        if len(self.id) != ID_SIZE:
            key = f"an Ed25519 public key of {ID_SIZE} bytes, not {len(self.id)}"
            raise ReplicaError(f"the id of a publish is {key}")


Operation = Append | Join | Publish


def encode_operation(operation: Operation) -> dict[str, Any]:
    """Return the operation as a value for DAG-CBOR."""
    if isinstance(operation, Append):
        return {"type": "append", "shards": list(operation.shards)}
    if isinstance(operation, Join):
        return {"type": "join", "forks": list(operation.forks)}
    fields = {
        "type": "publish",
        "id": operation.id,
        "link": operation.link,
        "origin": operation.origin,
        "proof": operation.proof,
    }
    return fields if operation.shard is None else {**fields, "shard": operation.shard}


def decode_operation(value: Any) -> Operation:
    """Read an operation from a decoded block.

    Raises:
        ReplicaError: an unknown kind, wrong fields, or not the canonical form.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "append":
        change = check_fields(value, "an append", {"type", "shards"})
        return Append(_links(change["shards"], "the 'shards' of an append"))
    if kind == "join":
        change = check_fields(value, "a join", {"type", "forks"})
        return Join(_links(change["forks"], "the 'forks' of a join"))
    if kind == "publish":
        return _decode_publish(value)
    raise ReplicaError(f"an operation is an append, a join or a publish, not {str(kind)[:50]!r}")


def check_fields(
    value: Any, what: str, required: set[str], optional: Iterable[str] = _NONE
) -> dict[str, Any]:
    """Return `value`, which must be a map with these fields and no others.

    Raises:
        ReplicaError: not a map, or a field is missing or unknown.
    """
    if not isinstance(value, dict) or not required <= value.keys() <= required.union(optional):
        perhaps = "".join(f", and perhaps {name}" for name in sorted(optional))
        raise ReplicaError(f"{what} is a map of {', '.join(sorted(required))}{perhaps}")
    return value


def check_link(value: Any, what: str) -> CID:
    """Return `value`, which must be a link.

    Raises:
        ReplicaError: not a link.
    """
    if not isinstance(value, CID):
        raise ReplicaError(f"{what} is a link")
    return value


def _decode_publish(value: Any) -> Publish:
    fields = check_fields(value, "a publish", {"type", "id", "link", "origin", "proof"}, {"shard"})
    if not isinstance(fields["id"], bytes) or not isinstance(fields["proof"], str):
        raise ReplicaError("the 'id' of a publish is bytes, and its 'proof' a UCAN as text")
    return Publish(
        id=fields["id"],
        link=check_link(fields["link"], "the 'link' of a publish"),
        origin=check_link(fields["origin"], "the 'origin' of a publish"),
        proof=fields["proof"],
        shard=check_link(fields["shard"], "a publish's 'shard'") if "shard" in fields else None,
    )


def _links(value: Any, what: str) -> tuple[CID, ...]:
    if not isinstance(value, list) or not all(isinstance(link, CID) for link in value):
        raise ReplicaError(f"{what} are a list of links")
    return tuple(value)


def _check_order(links: tuple[CID, ...], what: str) -> None:
    texts = [str(link) for link in links]
    if any(before >= after for before, after in pairwise(texts)):
        raise ReplicaError(f"{what} must be unique and in the order of their base32 text")
