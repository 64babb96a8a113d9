"""The operations of the DAG Replication & Publishing Protocol, and their one canonical form.

`Append` adds shards to the state of a DAG, `Join` brings the states of several replicas together
(section "DAG State"), and `Publish` binds a state to an identifier (section "Publishing Protocol").
Each is a map in DAG-CBOR with its name in `type`. A meaning has one form, and so one CID: lists are
without duplicates and sorted by the base32 text of the CIDs, which is not the order of their bytes.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, Self

from msgspec import Struct
from msgspec.structs import asdict

from recon_node.ipld import CID

ID_SIZE: Final = 32
"""Bytes of an identifier: an Ed25519 public key."""


class ReplicaError(ValueError):
    """Not a replica in its canonical form, or an incomplete history."""


class Append(Struct, frozen=True, tag="append"):
    """Adds shards (CAR files, by their CIDs) to the prior state."""

    shards: tuple[CID, ...]

    def __post_init__(self) -> None:
        _check_order(self.shards, "the shards of an append")

    @classmethod
    def of(cls, shards: Iterable[CID]) -> Self:
        """Build an append of these shards, in any order, duplicates allowed."""
        return cls(tuple(sorted(set(shards), key=str)))


class Join(Struct, frozen=True, tag="join"):
    """Adds the shards of the forks' histories to the prior state."""

    forks: tuple[CID, ...]

    def __post_init__(self) -> None:
        _check_order(self.forks, "the forks of a join")
        if not self.forks:
            raise ReplicaError("a join names at least one fork besides its prior")


class Publish(Struct, frozen=True, tag="publish"):
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
    fields = {"type": operation.__struct_config__.tag, **asdict(operation)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if value is not None
    }


def _check_order(links: tuple[CID, ...], what: str) -> None:
    texts = [str(link) for link in links]
    if any(before >= after for before, after in pairwise(texts)):
        raise ReplicaError(f"{what} must be unique and in the order of their base32 text")
