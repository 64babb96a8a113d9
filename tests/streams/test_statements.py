"""Copies of a statement change nothing that is decided, whichever are here and in any order."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import coincurve
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from support.forging import forged, other_form
from support.time_events import time_event

from recon_node.ceramic import Event, parse_event, verify_signature
from recon_node.ceramic.auth.did import PrivateKey, has_low_s
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.streams import Stream, Tip, statements_of

ED25519 = SigningKey(bytes(32))
SECP256K1 = coincurve.PrivateKey(b"\x01" * 32)
P256 = ec.derive_private_key(7, ec.SECP256R1())
MODEL = model_event(ED25519, {"version": "1.0", "name": "Any", "accountRelation": {"type": "list"}})


def tree_of(leaf: CID, other: CID, width: int) -> tuple[CID, dict[CID, bytes]]:
    """A node of a Merkle tree that holds the leaf many times."""
    block = dag_cbor.encode([leaf] * width + [other])
    cid = CID.of(DAG_CBOR, block)
    return cid, {cid: block}


def anchors(init: Event, prev: CID, time: int, width: int) -> list[Event]:
    """Time events of one transaction for one event, by different paths."""
    root, blocks = tree_of(prev, init.cid, width)
    single = time_event(init, root, tx_hash=time.to_bytes(32))
    proof = single.payload["proof"]
    proof_block = car.decode(single.car).blocks[proof]
    events = []
    for path in range(width):
        body = {"id": init.cid, "prev": prev, "proof": proof, "path": str(path)}
        block = dag_cbor.encode(body)
        cid = CID.of(DAG_CBOR, block)
        events.append(parse_event(car.encode([cid], {cid: block, proof: proof_block, **blocks})))
    return events


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], list[Event], dict[CID, int]]:
    """A stream in causal order, copies of its events, and the times of its time events."""
    key: PrivateKey = draw(st.sampled_from([ED25519, SECP256K1, P256]))
    init = init_event(key, MODEL.stream_id(), {"n": 0}, unique=b"u")
    events, copies, times = [init], list[Event](), dict[CID, int]()
    for number in range(draw(st.integers(1, 7))):
        known = [event.cid for event in (*events, *copies)]
        prevs = draw(st.sets(st.sampled_from(known), min_size=1, max_size=2))
        if draw(st.integers(0, 3)):
            patch = [{"op": "replace", "path": "/n", "value": draw(st.integers(0, 2))}]
            event = data_event(key, init, sorted(prevs), patch)
            same = [data_event(key, init, sorted(prevs), patch)]  # with another nonce, by P-256
            if key is not ED25519:
                same += [other_form(event), other_form(same[0])]
        else:
            time = draw(st.integers(1, 3))
            first = min(prevs, key=known.index)  # not by CID: those of P-256 are never the same
            event, *same = anchors(init, first, number * 4 + time, 3)
            times |= {copy.cid: time for copy in (event, *same)}
        if event.cid in {event.cid for event in (*events, *copies)}:
            continue
        events.append(event)
        copies += [copy for copy in same if copy.cid != event.cid]
    return events, copies, times


def decided(events: Sequence[Event], times: dict[CID, int]) -> tuple[Any, ...]:
    """All that is decided about a stream, with the shown CIDs replaced by what they state."""
    stream = Stream.of(events, times)
    tip, proposal, ranks = stream.accepted_tip, stream.propose_merge(), stream.statements.ranks
    contents = {ranks[s.event_cid]: (s.height, s.data.content) for s in stream.states.all()}
    merged = (
        None
        if proposal is None
        else (ranks[proposal.prevs[0]], {ranks[p] for p in proposal.prevs}, proposal.content)
    )
    return _stated(tip, ranks), contents, merged


def _stated(tip: Tip[CID], ranks: Any) -> tuple[Any, ...]:
    def of(cids: Sequence[CID]) -> set[bytes]:
        return {ranks[cid] for cid in cids}

    return (
        ranks[tip.event],
        tip.height,
        of(tip.data_tip),
        of(tip.anchored_at),
        of(tip.candidates),
        of(tip.pruned),
        tip.diverged,
        [(r.rule, ranks[r.winner], of(r.rivals)) for r in tip.reasons],
    )


def causally(events: Sequence[Event], rng: random.Random) -> list[Event]:
    """The events in a random causal order."""
    left, order, here = list(events), list[Event](), set[CID]()
    while left:
        ready = [event for event in left if here.issuperset(event.prevs)]
        event = rng.choice(ready)
        left.remove(event)
        order.append(event)
        here.add(event.cid)
    return order


@given(streams(), st.randoms(use_true_random=False))
def test_copies_in_any_order_change_nothing_that_is_decided(stream, rng):
    events, copies, times = stream
    named = {prev for event in (*events, *copies) for prev in event.prevs}
    fewest = [*events, *(copy for copy in copies if copy.cid in named)]
    expected = decided(causally(fewest, rng), times)
    every = [*events, *copies]
    assert decided(causally(every, rng), times) == expected
    shown = statements_of(causally(every, rng))
    again = statements_of(causally(every, rng))
    assert {e.cid for e in shown.events} == {e.cid for e in again.events}
    assert shown.copies == again.copies
    assert len(shown.events) + len(shown.copies) == len({e.cid for e in every})


@pytest.mark.parametrize("key", [SECP256K1, P256], ids=["secp256k1", "P-256"])
def test_both_forms_of_a_signature_are_valid_and_the_canonical_one_is_shown(key):
    init = init_event(key, MODEL.stream_id(), {"n": 0}, unique=b"u")
    event = data_event(key, init, [init.cid], [{"op": "add", "path": "/m", "value": 1}])
    other = other_form(event)
    assert other.cid != event.cid
    verify_signature(other, None)
    assert has_low_s(event.envelope.header["alg"], event.envelope.signature)
    assert not has_low_s(other.envelope.header["alg"], other.envelope.signature)
    for order in ([init, event, other], [init, other, event]):
        statements = statements_of(order)
        assert [e.cid for e in statements.events] == [init.cid, event.cid]
        assert statements.copies == {other.cid: event.cid}
    first = statements_of([init, other, event], keep_first=True)
    assert first.copies == {event.cid: other.cid}


def test_a_prev_that_names_a_copy_names_the_statement() -> None:
    init = init_event(P256, MODEL.stream_id(), {"n": 0}, unique=b"u")
    event = data_event(P256, init, [init.cid], [])
    other = other_form(event)
    merge = data_event(P256, init, [event.cid, other.cid], [])
    assert statements_of([init, other, event, merge]).events[-1].prevs == (event.cid,)


def test_a_badly_signed_event_is_not_a_copy() -> None:
    init = init_event(P256, MODEL.stream_id(), {"n": 0}, unique=b"u")
    event = data_event(P256, init, [init.cid], [])
    bad = forged(event)
    statements = statements_of([init, event, bad], {bad.cid})
    assert not statements.copies
    assert statements.ranks[bad.cid] == statements.ranks[event.cid]


def test_ties_go_by_the_cid_where_signatures_are_deterministic() -> None:
    """Rule 5 of CIP-145, word for word."""
    init = init_event(ED25519, MODEL.stream_id(), {"n": 0}, unique=b"u")
    rivals = [
        data_event(ED25519, init, [init.cid], [{"op": "replace", "path": "/n", "value": n}])
        for n in range(5)
    ]
    tip = Stream.of([init, *rivals]).tip
    assert tip.event == min(event.cid for event in rivals)


def test_a_time_event_before_its_prev_is_a_statement() -> None:
    init = init_event(ED25519, MODEL.stream_id(), {"n": 0}, unique=b"u")
    event = data_event(ED25519, init, [init.cid], [])
    anchor = time_event(init, event.cid)
    assert len(statements_of([anchor, init, event]).events) == 3
    assert len(statements_of([replace(anchor), init]).events) == 2
