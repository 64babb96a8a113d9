"""Publishing: an identifier (an Ed25519 key) that resolves to the DAG last published under it.

Source: "DAG Replication & Publishing Protocol", sections "Publishing Protocol" and "Convergence".

Theory of operation. The log of an identifier consists of replicas whose changes are `Publish`; each
continues the last one that its publisher knew. Concurrent publishes make branches, which are merged
into one order: of the replicas that could come next (their prior is placed, or they have none), the
one whose CID sorts first as base32 text. The identifier resolves to the last one in this order.

A publish is permitted by its proof, a UCAN. The protocol does not say what ties a proof to its
publish: anyone could take a proof and attach it to another link, or publish an old link once more,
at the end of the log. So the outermost UCAN must name link, origin, shard and prior among its
facts: then it is *bound* to its position. Earlier versions named link and origin alone. Such
publishes still count, until one of the identifier is bound: from then on, only bound ones do. (One
that is not bound, wherever it is placed, changes nothing in the order of the others.)

Only the first acceptance of a replica (`check_publish`) looks at the clock, never the log: the
order of what was accepted never changes. What came too late for its proof does not count, but has
its position, so that what others publish after it, who saw it in time, is not lost.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace
from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import ed25519_did
from recon_node.dag.protocol.dag_operations import Publish, ReplicaError
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.protocol.ucan import (
    UcanCapability,
    UcanError,
    check_ucan,
    issue_ucan,
    parse_ucan,
)
from recon_node.ipld import CID

ABILITY: Final = "dag/PUBLISH"


@dataclass(frozen=True, slots=True)
class PublishStatement:
    """What a publish says, whatever the signature that proves it.

    By ECDSA, anybody can make a second signature of each, and so a copy of the replica, which comes
    at another position. The proof, which may be long, is not kept.
    """

    prior: CID | None
    link: CID
    origin: CID
    shard: CID | None


class PublishOrder(NamedTuple):
    """The publishes of one identifier, in the order that all nodes agree on.

    Attributes:
        statements: what the replicas say whose whole history is here, in order: one replica of each
            statement, and only bound ones, if any is. The identifier resolves to the last one whose
            origin contains its link, which the log cannot know.
        waiting_for: the priors that are not here.
    """

    statements: dict[CID, PublishStatement]
    waiting_for: frozenset[CID]


def publish_order(publishes: Iterable[tuple[Replica, bool, bool]]) -> PublishOrder:
    """Return the order of some publishes, which depends on their set alone.

    Args:
        publishes: replicas of one identifier that have been checked, each once; whether its proof
            is bound to its position; and whether it came too late for it: then the replica has a
            position but does not count.
    """
    statements: dict[CID, PublishStatement] = {}
    following: defaultdict[CID | None, list[CID]] = defaultdict(list)
    bound: set[CID] = set()
    late: set[CID] = set()
    for replica, is_bound, is_late in publishes:
        statements[cid := replica.cid] = statement_of(replica)
        following[replica.prior].append(cid)
        if is_late:
            late.add(cid)
        elif is_bound:
            bound.add(cid)
    counting = bound or statements.keys() - late
    placed: dict[PublishStatement, CID] = {}
    ready = [(str(cid), cid) for cid in following.get(None, ())]
    heapq.heapify(ready)
    while ready:
        _, cid = heapq.heappop(ready)
        if cid in counting:
            placed.setdefault(statements[cid], cid)
        for after in following.get(cid, ()):
            heapq.heappush(ready, (str(after), after))
    waiting_for = frozenset(
        prior
        for prior, above in following.items()
        if prior and prior not in statements and not (counting | late).isdisjoint(above)
    )
    return PublishOrder({cid: statement for statement, cid in placed.items()}, waiting_for)


def check_publish(replica: Replica, now: int | None = None) -> None:
    """Check that the proof of a publish permits it, and was made for it.

    `now` is the Unix time when it is first accepted; None when it is replayed.

    Raises:
        ReplicaError: the replica is not a publish.
        UcanError: the proof does not permit it; says why.
    """
    publish = publish_of(replica)
    proof, owner = parse_ucan(publish.proof), ed25519_did(publish.id)
    if proof.audience != owner:
        # A token for somebody else must not be used here, even by whom it was issued to.
        raise UcanError(f"the proof is addressed to {proof.audience}, not to {owner}")
    by_position, by_link = _binding(publish, replica.prior), _link_of(publish)
    if by_position not in proof.facts and by_link not in proof.facts:
        raise UcanError(
            "the proof was not made for this publish: its facts do not name this link and origin, "
            "and the publish before it"
        )
    check_ucan(proof, UcanCapability(owner, ABILITY), now)


def make_publish(
    key: SigningKey,
    identifier: bytes,
    link: CID,
    origin: CID,
    *,
    prior: CID | None,
    expires: int | None,
    shard: CID | None = None,
    proofs: Sequence[str] = (),
) -> Replica:
    """Publish a DAG under an identifier, signed by its own key or by one with a grant.

    Args:
        key: that signs.
        identifier: an Ed25519 public key.
        link: the block that it resolves to.
        origin: a replica whose DAG contains the block.
        prior: the last publish of the identifier; None: this is the first.
        expires: Unix seconds until which nodes accept the publish; None: as long as the proofs
            are valid, or forever. It never outlasts its proofs.
        shard: that has the block, if known.
        proofs: the UCANs that grant this to `key`; the identifier's own key needs none.
    """
    owner = ed25519_did(identifier)
    unsigned = Publish(identifier, link, origin, "", shard)
    granted, facts = [UcanCapability(owner, ABILITY)], [_binding(unsigned, prior)]
    proof = issue_ucan(key, owner, granted, expires, facts=facts, proofs=proofs)
    return Replica(prior, replace(unsigned, proof=proof))


def _binding(publish: Publish, prior: CID | None) -> dict[str, str | None]:
    shard = publish.shard
    return _link_of(publish) | {
        "shard": None if shard is None else str(shard),
        "prior": None if prior is None else str(prior),
    }


def _link_of(publish: Publish) -> dict[str, str | None]:
    """What earlier versions bound a proof to."""
    return {"link": str(publish.link), "origin": str(publish.origin)}


def is_bound_to_position(replica: Replica) -> bool:
    """Return whether the proof of a publish names what it was made for, and its prior.

    Raises:
        ReplicaError: the replica is not a publish.
    """
    publish = publish_of(replica)
    try:
        facts = parse_ucan(publish.proof).facts
    except UcanError:
        return False
    return _binding(publish, replica.prior) in facts


def statement_of(replica: Replica) -> PublishStatement:
    """Return what the publish in a replica says.

    Raises:
        ReplicaError: it has none.
    """
    publish = publish_of(replica)
    return PublishStatement(replica.prior, publish.link, publish.origin, publish.shard)


def publish_of(replica: Replica) -> Publish:
    """Return the publish in a replica.

    Raises:
        ReplicaError: it has none.
    """
    if not isinstance(replica.change, Publish):
        raise ReplicaError(f"{replica.cid} is not a publish, so it cannot be in such a log")
    return replica.change
