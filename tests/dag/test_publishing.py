"""Publishing: one order for all nodes, against a merge by brute force; proofs of one publish."""

import base64
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nacl.signing import SigningKey
from support import vectors

from recon_node.ceramic.auth.did import controller_of, ed25519_did
from recon_node.dag.protocol import publishing
from recon_node.dag.protocol.dag_operations import Append, Publish, ReplicaError
from recon_node.dag.protocol.publishing import (
    PublishOrder,
    check_publish,
    is_bound_to_position,
    make_publish,
    publish_of,
    publish_order,
    statement_of,
)
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.protocol.ucan import UcanCapability, UcanError, issue_ucan
from recon_node.ipld import CID, RAW

FACTS = vectors.load("replica")
WRITER = ec.derive_private_key(7, ec.SECP256R1())
KEY, OTHER = SigningKey(bytes(32)), SigningKey(bytes([1]) * 32)
ID, OTHER_ID = bytes(KEY.verify_key), bytes(OTHER.verify_key)
LINK, ORIGIN = CID.of(RAW, b"link"), CID.of(RAW, b"origin")


def _replica(prior: CID | None, number: int) -> Replica:
    """A replica without proofs: the log does not look at them."""
    return Replica(prior, Publish(ID, CID.of(RAW, b"%d" % number), ORIGIN, ""))


def _order(replicas: Iterable[Replica]) -> PublishOrder:
    return publish_order((replica, is_bound_to_position(replica), False) for replica in replicas)


@st.composite
def _replicas(draw: st.DrawFn) -> list[Replica]:
    """Each continues any of those before it, or nothing."""
    made: list[Replica] = []
    for number in range(draw(st.integers(1, 14))):
        prior = draw(st.none() | st.sampled_from(made)) if made else None
        made.append(_replica(prior.cid if prior else None, number))
    return made


def _merged(replicas: list[Replica]) -> list[CID]:
    """The definition: always the smallest head."""
    left = {replica.cid: replica.prior for replica in replicas}
    order: list[CID] = []
    while left:
        head = min((c for c, prior in left.items() if prior is None or prior in order), key=str)
        order.append(head)
        del left[head]
    return order


@given(_replicas(), st.data(), st.randoms())
def test_all_nodes_agree_on_the_order_and_what_lacks_its_prior_waits(replicas, data, rng):
    gone = data.draw(st.none() | st.sampled_from(replicas))
    without = {gone.cid} if gone else set()
    for replica in replicas:
        if replica.prior in without:
            without.add(replica.cid)
    here = [replica for replica in replicas if replica != gone]
    rng.shuffle(here)
    order = _order(here)
    whole = {replica.cid: statement_of(replica) for replica in here if replica.cid not in without}
    assert order.statements == whole
    assert list(order.statements) == _merged([each for each in here if each.cid in whole])
    builds_on_it = gone is not None and len(without) > 1
    assert order.waiting_for == ({gone.cid} if builds_on_it else set())


def test_the_work_grows_with_the_publishes_and_not_with_their_square() -> None:
    """Counted in lines of code that run, for branches that come in the worst order."""

    def work(count: int) -> int:
        first = _replica(None, 0)
        branches = sorted(
            (_replica(first.cid, number) for number in range(1, count)), key=lambda r: str(r.cid)
        )
        lines = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            lines += event == "line" and frame.f_code.co_filename == publishing.__file__
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            order = _order([first, *branches]).statements
        finally:
            sys.settrace(before)
        assert len(order) == count
        return lines

    assert work(400) < 5 * work(100)


@pytest.mark.parametrize("picture", FACTS["publish_order"], ids=lambda _: "")
def test_the_illustrations_of_the_protocol(picture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name replicas g1, k2 ... and compare the letters instead of CIDs."""
    names: dict[CID, str] = {}
    replicas: dict[str, Replica] = {}
    left = dict(picture["prior"])
    while left:
        name = next(n for n, prior in left.items() if prior is None or prior in replicas)
        prior = left.pop(name)
        replica = _replica(replicas[prior].cid if prior else None, len(replicas))
        replicas[name] = replica
        names[replica.cid] = name
    monkeypatch.setattr(CID, "__str__", lambda cid: names[cid])
    assert [names[cid] for cid in _order(replicas.values()).statements] == picture["order"]


def test_only_a_publish_says_what_an_identifier_resolves_to() -> None:
    with pytest.raises(ReplicaError, match="is not a publish"):
        statement_of(Replica(None, Append(())))


OWN = UcanCapability(ed25519_did(ID), "dag/PUBLISH")


def test_the_owner_publishes_and_so_does_whom_it_permits() -> None:
    check_publish(publish(KEY, expires=200), 100)
    grant = issue_ucan(KEY, ed25519_did(OTHER_ID), [OWN], 300)
    check_publish(publish(OTHER, expires=200, proofs=[grant]), 100)


def publish(key: SigningKey, prior: CID | None = None, **options: Any) -> Replica:
    return make_publish(key, ID, LINK, ORIGIN, prior=prior, **{"expires": None, **options})


def test_a_proof_cannot_be_attached_to_another_publish() -> None:
    proof = publish_of(publish(KEY)).proof
    for stolen in (
        Replica(None, Publish(ID, ORIGIN, ORIGIN, proof)),
        Replica(None, Publish(ID, LINK, LINK, proof)),
        Replica(None, Publish(ID, LINK, ORIGIN, proof, shard=LINK)),
        Replica(LINK, Publish(ID, LINK, ORIGIN, proof)),
    ):
        with pytest.raises(UcanError, match="was not made for this publish"):
            check_publish(stolen)
    with pytest.raises(UcanError, match="is addressed to"):
        check_publish(Replica(None, Publish(OTHER_ID, LINK, ORIGIN, proof)))


def test_who_was_not_permitted_cannot_publish() -> None:
    with pytest.raises(UcanError, match="shows no proof"):
        check_publish(publish(OTHER))


def test_the_clock_counts_when_a_publish_is_accepted_and_never_again() -> None:
    expiring = publish(KEY, expires=100)
    check_publish(expiring, 99)
    check_publish(expiring)
    with pytest.raises(UcanError, match="expired at 100; it is 100"):
        check_publish(expiring, 100)


def by_an_earlier_version(link: CID, prior: CID | None) -> Replica:
    """Its proof names neither its prior nor its shard."""
    facts = [{"link": str(link), "origin": str(ORIGIN)}]
    token = issue_ucan(KEY, ed25519_did(ID), [OWN], None, facts=facts)
    return Replica(prior, Publish(ID, link, ORIGIN, token))


@given(st.data())
def test_nobody_else_can_publish_again_what_was_published(data: st.DataObject) -> None:
    """Whatever replicas a stranger makes of the owner's publishes, and in whatever order they come:
    those that nodes take change nothing of what the identifier resolves to."""
    links = [CID.of(RAW, bytes([number])) for number in range(6)]
    owners: list[Replica] = []
    earlier = data.draw(st.integers(0, 3), "published by an earlier version")
    for number in range(earlier + data.draw(st.integers(1, 3), "publishes since then")):
        prior = owners[-1].cid if owners else None
        if number < earlier:
            owners.append(by_an_earlier_version(links[number], prior))
        else:
            owners.append(make_publish(KEY, ID, links[number], ORIGIN, prior=prior, expires=None))
    forged: list[Replica] = []
    for _ in range(data.draw(st.integers(0, 6), "replicas of the stranger")):
        stolen = publish_of(data.draw(st.sampled_from(owners)))
        place = data.draw(st.none() | st.sampled_from(owners + forged))
        made = Replica(None if place is None else place.cid, stolen)
        if made not in owners:
            forged.append(made)
    taken = []
    for replica in data.draw(st.permutations(owners + forged)):
        try:
            check_publish(replica)
        except UcanError:
            assert replica in forged
        else:
            taken.append(replica)
    order = _order(taken)
    assert list(order.statements) == [replica.cid for replica in owners[earlier:]]
    assert not order.waiting_for


ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256: (r, ORDER - s) is a signature, too."""


def with_the_other_signature(replica: Replica) -> Replica:
    published = publish_of(replica)
    signed, _, signature = published.proof.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    other = raw[:32] + (ORDER - int.from_bytes(raw[32:])).to_bytes(32)
    proof = f"{signed}.{base64.urlsafe_b64encode(other).decode().rstrip('=')}"
    return Replica(replica.prior, replace(published, proof=proof))


@given(st.data())
def test_copies_of_proofs_change_nothing_of_what_an_identifier_resolves_to(data):
    grant = issue_ucan(KEY, controller_of(WRITER), [OWN], None)
    made: list[Replica] = []
    for number in range(3):
        prior = made[-1].cid if made else None
        link = CID.of(RAW, bytes([number]))
        made.append(
            make_publish(WRITER, ID, link, ORIGIN, prior=prior, expires=None, proofs=[grant])
        )
    chosen = data.draw(st.lists(st.sampled_from(made), unique=True))
    copies = list(map(with_the_other_signature, chosen))
    for replica in copies:
        check_publish(replica)
    statements = _order(data.draw(st.permutations(made + copies))).statements.values()
    assert [publish.link for publish in statements] == [publish_of(r).link for r in made]


def test_what_an_earlier_version_published_counts_until_the_next_publish() -> None:
    one = by_an_earlier_version(LINK, None)
    two = by_an_earlier_version(ORIGIN, one.cid)
    for replica in (one, two):
        check_publish(replica)
    assert list(_order([two, one]).statements) == [one.cid, two.cid]
    three = publish(KEY, prior=two.cid)
    assert list(_order([two, one, three]).statements) == [three.cid]
