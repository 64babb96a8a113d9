"""Data events with a wrong signature that valid ones cover: in tips, in states, in summaries."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from stream_samples import FAULT, KEY, MODEL, Writer, put

from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.builder import init_event, signed_event
from recon_node.ipld import CID, DAG_CBOR, dag_cbor
from recon_node.streams import (
    EventShape,
    EventState,
    ForgottenError,
    Stream,
    StreamSummary,
    Tip,
    definitions_of,
    shape_of,
)


def test_figures_5_and_6_with_a_badly_signed_event() -> None:
    """C over A: as long as only A is invalid, B is the tip; the merge C is the tip afterwards."""
    stream = Writer({"n": 0})
    first = stream.anchor(stream.init, 1)
    a = stream.forged(put("a", 1), stream.init)
    second = stream.anchor(a, 2)
    b = stream.data(put("b", 1), first)
    assert stream.tip().event == stream.state_tip().event == b.cid
    assert stream.tip().pruned == tuple(sorted([a.cid, second.cid]))
    third = stream.anchor(b, 3)
    assert stream.tip().event == stream.state_tip().event == third.cid
    assert stream.stream().propose_merge() is None

    c = stream.data(put("c", 1), b, second)
    for tip in (stream.tip(), stream.state_tip()):
        assert (tip.event, tip.data_tip, tip.candidates) == (c.cid, (c.cid,), (c.cid,))
        assert (tip.pruned, tip.diverged) == ((third.cid,), False)
        assert tip.anchored_at == (b.cid,)
    states = stream.states()
    assert states.at(c.cid).data.content == {"n": 0, "b": 1, "c": 1}
    assert states.at(a.cid).data.content == {"n": 0}
    assert states.rejected == {
        a.cid: (FAULT,),
        second.cid: ("the event that it anchors was rejected",),
    }
    assert states.at(a.cid).height == 1


def test_a_valid_event_on_a_badly_signed_one_changes_the_content_before_it() -> None:
    stream = Writer({"n": 0})
    a = stream.forged([{"op": "remove", "path": "/n"}], stream.init)
    c = stream.data(put("c", 1), a)
    assert stream.state_tip().event == stream.tip().event == c.cid
    assert stream.states().at(c.cid).data.content == {"n": 0, "c": 1}


def test_a_badly_signed_event_defines_no_version_of_a_model() -> None:
    stream = Writer({"name": "Note"}, StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"m")))
    a = stream.forged(put("name", "Forged"), stream.init)
    c = stream.data(put("views", {}), a)
    versions = {a.cid, c.cid}
    definitions = definitions_of(stream.states().all(), stream.init.cid, versions)
    assert definitions == {stream.init.cid: {"name": "Note"}, c.cid: {"name": "Note", "views": {}}}


def test_a_capability_of_a_badly_signed_event_may_be_anything() -> None:
    init = init_event(KEY, MODEL, {})
    payload = {"id": init.cid, "prev": init.cid, "data": []}
    event = signed_event(KEY, payload, capability=dag_cbor.encode("not a capability"))
    assert shape_of(event, valid=False) == EventShape(
        event.cid, "data", (init.cid,), valid=False, expires=None
    )


# --- streams from their summaries ---


def write(rng: random.Random, size: int) -> Writer:
    """A stream with forks, merges, late anchors, patches that fail, and badly signed events."""
    stream = Writer({"n": 0})
    for number in range(size):
        recent = rng.choice([1, 1, 1, 3, 5, 40])
        prevs = [rng.choice(stream.events[-recent:])]
        if rng.random() < 0.25:
            prevs = list({prev.cid: prev for prev in (*prevs, *stream.events[-3:])}.values())
        if rng.random() < 0.3:
            stream.anchor(prevs[0], rng.choice([None, number, rng.randrange(size)]))
            continue
        patch = f"not a patch {number}" if rng.random() < 0.1 else put(rng.choice("abc"), number)
        write_one = stream.forged if rng.random() < 0.3 else stream.data
        write_one(patch, *prevs)
    return stream


def answers(stream: Stream) -> tuple[Tip[CID], Tip[CID], EventState, list[EventState]]:
    tip = stream.accepted_tip
    return stream.tip, tip, stream.at(tip.event), [*stream.states.all()]


def go_through(written: Writer, rng: random.Random) -> int:
    """Take the stream in pieces, each from the summary of what came before; return how often that
    was enough."""
    summary: StreamSummary | None = None
    upto = answered = 0
    while upto < len(written.events):
        done, upto = upto, min(len(written.events), upto + rng.choice([1, 1, 2, 5]))
        whole = Stream.of(written.events[:upto], written.times, written.faults)
        expected = answers(whole)
        try:
            statements = replace(whole.statements, events=whole.statements.events[done:])
            later = Stream(statements, written.times, written.faults, summary=summary)
            if summary is not None:
                tip, accepted, state, states = answers(later)
                assert (tip, accepted, state.data) == (*expected[:2], expected[2].data)
                assert states == expected[3][done:]
                assert (later.count, later.pending) == (whole.count, whole.pending)
                assert later.kind_of(tip.event) == whole.kind_of(tip.event)
                assert not {tip.event, accepted.event} & written.faults.keys()
                answered += 1
                summary = later.summary()
                continue
        except ForgottenError:
            pass
        summary = whole.summary()
    return answered


@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_stream_from_its_summary_is_the_whole_stream(size: int, rng: random.Random) -> None:
    go_through(write(rng, size), rng)


def test_a_chain_goes_on_from_its_end_but_for_events_on_rejected_ones() -> None:
    stream = Writer({"n": 0})
    last = stream.init
    for number in range(100):
        last = stream.data(put("n", number), last)
        if number % 5 == 2:
            last = stream.anchor(last, number)
    assert go_through(stream, random.Random(3)) > 30
