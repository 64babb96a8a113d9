"""Publishing: an identifier (an Ed25519 key) that leads to one DAG after another.

Source: "DAG Replication & Publishing Protocol", sections "Publishing Protocol" and "Convergence".

Theory of operation. The log of an identifier is made of replicas whose changes are `Publish`; each
continues the one that its publisher took for the last. Peers that publish at once make branches,
which are merged into one order: of the replicas that could come next (their prior is placed, or
they have none), the one whose CID sorts first as base32 text. The last in this order says what the
identifier leads to.

A `PublishLog` takes replicas one by one; one that comes before its prior waits for it. Placing one
is cheap: nothing builds on a new replica yet, so the others keep their order, and the new one goes,
after its prior, before the first that sorts after it. What builds on the last in the order is just
put at the end.

A publish is permitted by its proof, a UCAN. The protocol leaves it open what ties a proof to the
publish that shows it: anyone could take the proof of one and attach it to another link. So it is
asked here that the outermost UCAN names link and origin among its facts. The clock is asked only
when a replica is first accepted here (`check_publish`), never by the log: the order of what was
accepted is the same for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from nacl.signing import SigningKey

from recon_node.ceramic.did import ed25519_did
from recon_node.ipld import CID
from recon_node.lattice.operations import Publish, ReplicaError
from recon_node.lattice.replica import Replica
from recon_node.lattice.ucan import Capability, UcanError, check_ucan, issue_ucan, parse_ucan

ABILITY: Final = "dag/PUBLISH"


class PublishLog:
    """The publishes of one identifier, in the order that all nodes agree on.

    It depends on the set of replicas alone, not on the order in which they were added.
    """

    def __init__(self, identifier: bytes) -> None:
        self.identifier = identifier
        self._order: list[CID] = []
        self._texts: list[str] = []  # of the CIDs in `_order`
        self._placed: set[CID] = set()
        self._replicas: dict[CID, Replica] = {}
        self._waiting: defaultdict[CID, list[CID]] = defaultdict(list)

    def __contains__(self, replica: CID) -> bool:
        return replica in self._replicas

    def __len__(self) -> int:
        """How many replicas have their place."""
        return len(self._order)

    @property
    def order(self) -> Sequence[CID]:
        """The replicas whose whole history is here, in order."""
        return tuple(self._order)

    @property
    def last(self) -> CID | None:
        """The last replica: `prior` of the next one."""
        return self._order[-1] if self._order else None

    @property
    def waiting_for(self) -> frozenset[CID]:
        """The priors that are not here."""
        return frozenset(prior for prior in self._waiting if prior not in self._replicas)

    def latest(self) -> Iterator[tuple[CID, Publish]]:
        """The publishes that have their place, the last one first. The identifier leads to the
        first of these whose link is contained by its origin, which the log cannot tell."""
        for cid in reversed(self._order):
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
        if replica.prior is None or replica.prior in self._placed:
            self._place(cid)
        else:
            self._waiting[replica.prior].append(cid)
        return True

    def _place(self, cid: CID) -> None:
        """Place a replica whose prior is placed, and all that waited for it."""
        ready = [cid]
        while ready:
            placed = ready.pop()
            self._insert(placed)
            ready.extend(self._waiting.pop(placed, ()))

    def _insert(self, cid: CID) -> None:
        prior, text = self._replicas[cid].prior, str(cid)
        if prior is None:
            at = 0
        elif prior == self.last:
            at = len(self._order)
        else:
            at = self._order.index(prior) + 1
        while at < len(self._order) and self._texts[at] < text:
            at += 1
        self._order.insert(at, cid)
        self._texts.insert(at, text)
        self._placed.add(cid)


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
