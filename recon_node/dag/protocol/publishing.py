"""Publishing: an identifier (an Ed25519 key) that leads to one DAG after another.

Source: "DAG Replication & Publishing Protocol", sections "Publishing Protocol" and "Convergence".

Theory of operation. The log of an identifier is made of replicas whose changes are `Publish`; each
continues the one that its publisher took for the last. Peers that publish at once make branches,
which are merged into one order: of the replicas that could come next (their prior is placed, or
they have none), the one whose CID sorts first as base32 text. The last in this order says what the
identifier leads to.

A `PublishLog` takes replicas in any order; one that comes before its prior waits for it. The order
is found when it is asked for, with a heap of those that could come next.

A publish is permitted by its proof, a UCAN. The protocol leaves it open what ties a proof to the
publish that shows it: anyone could take the proof of one and attach it to another link. So it is
asked here that the outermost UCAN names link and origin among its facts. The clock is asked only
when a replica is first accepted here (`check_publish`), never by the log: the order of what was
accepted is the same for ever.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import ed25519_did
from recon_node.dag.protocol.operations import Publish, ReplicaError
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.protocol.ucan import Capability, UcanError, check_ucan, issue_ucan, parse_ucan
from recon_node.ipld import CID

ABILITY: Final = "dag/PUBLISH"


class PublishLog:
    """The publishes of one identifier, in the order that all nodes agree on.

    It depends on the set of replicas alone, not on the order in which they were added.
    """

    def __init__(self, identifier: bytes) -> None:
        self.identifier = identifier
        self._replicas: dict[CID, Replica] = {}
        self._next: defaultdict[CID | None, list[CID]] = defaultdict(list)  # by their prior
        self._order: tuple[CID, ...] | None = None

    def __contains__(self, replica: CID) -> bool:
        return replica in self._replicas

    def __len__(self) -> int:
        """How many replicas have their place."""
        return len(self.order)

    @property
    def order(self) -> Sequence[CID]:
        """The replicas whose whole history is here, in order."""
        if self._order is None:
            self._order = tuple(self._merge())
        return self._order

    @property
    def last(self) -> CID | None:
        """The last replica: `prior` of the next one."""
        return self.order[-1] if self.order else None

    @property
    def waiting_for(self) -> frozenset[CID]:
        """The priors that are not here."""
        return frozenset(prior for prior in self._next if prior and prior not in self._replicas)

    def latest(self) -> Iterator[tuple[CID, Publish]]:
        """The publishes that have their place, the last one first. The identifier leads to the
        first of these whose link is contained by its origin, which the log cannot tell."""
        for cid in reversed(self.order):
            yield cid, _publish_of(self._replicas[cid])

    def add(self, replica: Replica) -> bool:
        """Take a replica, checked already; False when it is here.

        Raises:
            ReplicaError: it is no publish of this identifier.
        """
        publish, cid = _publish_of(replica), replica.cid
        if publish.id != self.identifier:
            raise ReplicaError(
                f"{cid} is a publish of {ed25519_did(publish.id)}, not of "
                f"{ed25519_did(self.identifier)}"
            )
        if cid in self._replicas:
            return False
        self._replicas[cid] = replica
        self._next[replica.prior].append(cid)
        self._order = None
        return True

    def _merge(self) -> Iterator[CID]:
        ready = [(str(cid), cid) for cid in self._next.get(None, ())]
        heapq.heapify(ready)
        while ready:
            _, placed = heapq.heappop(ready)
            yield placed
            for cid in self._next.get(placed, ()):
                heapq.heappush(ready, (str(cid), cid))


def check_publish(publish: Publish, now: int | None = None) -> None:
    """Check that the proof of a publish permits it, and that it was made for it.

    Args:
        publish: the operation.
        now: Unix seconds when it is first accepted; None when it is replayed.

    Raises:
        UcanError: it does not, and why.
    """
    proof = parse_ucan(publish.proof)
    if _binding(publish.link, publish.origin) not in proof.facts:
        raise UcanError(
            "the proof was not made for this publish: its facts do not name this link and origin"
        )
    check_ucan(proof, Capability(ed25519_did(publish.id), ABILITY), now)


def make_publish(
    key: SigningKey,
    identifier: bytes,
    link: CID,
    origin: CID,
    *,
    expires: int | None,
    shard: CID | None = None,
    proofs: Sequence[str] = (),
) -> Publish:
    """Publish a DAG under an identifier, by the key itself or by one that it granted this to.

    `proofs` are the UCANs that grant it; the key of the identifier needs none.
    """
    owner = ed25519_did(identifier)
    proof = issue_ucan(
        key,
        owner,
        [Capability(owner, ABILITY)],
        expires,
        facts=[_binding(link, origin)],
        proofs=proofs,
    )
    return Publish(identifier, link, origin, proof, shard)


def _binding(link: CID, origin: CID) -> dict[str, str]:
    return {"link": str(link), "origin": str(origin)}


def _publish_of(replica: Replica) -> Publish:
    if not isinstance(replica.change, Publish):
        raise ReplicaError(f"{replica.cid} is not a publish, so that it cannot stand in such a log")
    return replica.change
