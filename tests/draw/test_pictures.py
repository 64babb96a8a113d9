"""Pictures of streams, tangles, feeds and replicas: what is marked, and what is told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors
from support.dag_logs import join
from support.tangle_samples import AUTHOR, feed_message

from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.replica import Replica, replica_picture
from recon_node.draw.layout import NodeShape, Picture, PictureNode, Tone, lay_out
from recon_node.ipld import CID, RAW
from recon_node.streams import EventShape
from recon_node.streams.picture import HeldEvent, Progress, stream_picture
from recon_node.tangles.classic_feed import classic_feed, message_id
from recon_node.tangles.pictures import feed_picture, tangle_picture
from recon_node.tangles.tangle import weave


def nodes_of(picture: Picture) -> dict[Any, PictureNode]:
    lay_out(picture.nodes)  # it can be drawn
    return {node.id: node for node in picture.nodes}


# --- streams ---


def event(
    id_: str,
    prev: str = "",
    state: Progress = "delivered",
    time: int | None = None,
    expires: int | None = None,
) -> HeldEvent:
    kind: Any = "time" if id_.startswith("T") else "data" if prev else "init"
    shape = EventShape(id_, kind, tuple(prev.split()), time, expires=expires)
    return HeldEvent(shape, 0, state, "eip155:1" if kind == "time" else None)


FORK = [event("I"), event("A", "I"), event("T1", "A", time=86_400), event("B", "I")]


def test_the_decision_and_the_merge_are_reported() -> None:
    drawn = stream_picture("S", FORK)
    assert drawn.picture.title == "S"
    assert drawn.picture.summary == "4 events, diverged, 1 pruned"
    assert drawn.picture.notes == (
        "A (anchored 1970-01-02 00:00:00 UTC) wins over B (not anchored): after a fork, the data "
        "that was anchored first (CIP-145, rule 4).",
        "A data event with these prevs would merge it (`recon-node stream merge`):\nT1\nB",
    )
    assert drawn.merge == ("T1", "B")
    assert nodes_of(drawn.picture)["A"].details == ("data", "0", "anchored 1970-01-02 00:00:00 UTC")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event("I"), event("A", "I"), event("B", "I")], "so the lowest CID (CIP-145, rule 5)"),
        (
            [event("I"), event("T1", "I", time=5), event("T2", "I", time=4)],
            "the same data on each branch, so the earliest anchor",
        ),
        ([event("I"), event("A", "I")], "There is one candidate"),
    ],
)
def test_each_rule_has_its_words(events: list[HeldEvent], words: str) -> None:
    assert words in stream_picture("", events).picture.notes[0]


def test_of_many_branches_the_first_are_named() -> None:
    drawn = stream_picture("", [event("I"), *(event(f"B{n:03}", "I") for n in range(500))])
    why, merge = drawn.picture.notes
    assert why.count(" and ") == 10
    assert " and 489 more: no time" in why
    assert merge.endswith("\nB009\n490 more")
    assert len(drawn.merge) == 500
    assert stream_picture("", [event("I")]).picture.summary == "1 event, converged, nothing pruned"


def test_what_is_not_delivered_is_drawn_and_does_not_count() -> None:
    late = [
        event("T3", "B", "pending"),
        event("C", "gone A", "waiting"),
        event("D", "C", "waiting"),
    ]
    drawn = stream_picture("", FORK + late)
    assert drawn.tip == stream_picture("", FORK).tip
    assert drawn.picture.summary == ("7 events, 3 of them not delivered yet, diverged, 1 pruned")
    nodes = nodes_of(drawn.picture)
    assert nodes["gone"].shape is NodeShape.MISSING
    assert (nodes["C"].marks, nodes["C"].tone) == (("waiting",), Tone.WAITING)
    assert nodes["T3"].details[-1] == "anchor on eip155:1 not looked up"


def test_an_expired_capability_is_marked_and_reported() -> None:
    events = [event("I"), event("A", "I", expires=99), event("T1", "I", time=50)]
    before = stream_picture("", events, now=99)
    assert before.tip.event == "A"
    after = stream_picture("", events, now=100)
    assert after.tip.event == "T1"
    assert nodes_of(after.picture)["A"].marks == ("pruned", "expired")
    assert after.picture.notes[-1] == "A capability has expired: if it held, A would be the tip."
    anchored = [*events, event("T2", "A", time=99)]
    still = stream_picture("", anchored, now=1000)
    assert still.tip.event == "T2"
    assert "expired" not in nodes_of(still.picture)["A"].marks


def test_cids_are_compared_as_bytes_and_not_as_text() -> None:
    """In base32 the digits stand for more than the letters, and sort before them."""
    cids = [CID.of(RAW, bytes([number])) for number in range(200)]
    init, *rivals = cids
    assert min(rivals) != min(rivals, key=str)
    held = [HeldEvent(EventShape(init, "init"), 0)]
    held += [HeldEvent(EventShape(rival, "data", (init,)), 1) for rival in rivals]
    drawn = stream_picture("", held)
    assert drawn.tip.event == min(rivals)
    [node] = [node for node in drawn.picture.nodes if "TIP" in node.marks]
    assert node.name == f"…{str(min(rivals))[-8:]}"


def test_a_stream_without_valid_data_has_no_tip() -> None:
    invalid = HeldEvent(EventShape("I", "init", valid=False), 0)
    drawn = stream_picture("", [invalid])
    assert (drawn.tip, drawn.merge, drawn.picture.notes) == (None, (), ())
    assert "no tip: no data event of the stream is valid" in drawn.picture.summary
    assert nodes_of(drawn.picture)["I"].marks == ("invalid",)


def test_long_ids_are_cut_from_the_left_unless_asked_for() -> None:
    id_ = "bagcqcera7urxxusdyfpezjnquz36tpowx35eem4cyklrb5sxfu4myn2dg7na"
    names = [stream_picture("", [event(id_)], full=full).picture.nodes[0].name for full in (0, 1)]
    assert names == ["…yn2dg7na", id_]


# --- tangles and feeds ---

ORACLE = vectors.load("tangle")


def test_every_tangle_can_be_drawn() -> None:
    graphs = [*ORACLE["hand"].values(), *ORACLE["random"]]
    for nodes in [graph["nodes"] for graph in graphs if "error" not in graph["expect"]]:
        links = {n["key"]: None if n["previous"] is None else (*n["previous"],) for n in nodes}
        woven = weave(links)
        drawn = nodes_of(tangle_picture("T", woven))
        assert {n.id for n in drawn.values() if n.tone is Tone.WRONG} == set(woven.excluded)
        assert {n.id for n in drawn.values() if "tip" in n.marks} == set(woven.tips)
        assert all(drawn[message].prev == woven.previous[message] for message in woven.order)
        missing = {n.id for n in drawn.values() if n.shape is NodeShape.MISSING}
        assert missing.isdisjoint(links)


def test_who_breaks_a_rule_says_which() -> None:
    woven = weave({"A": None, "B": ("A", "ghost"), "C": ("D",), "D": ("C",), "E": ()})
    nodes = nodes_of(tangle_picture("T", woven, {"B": ("bob",)}))
    assert nodes["B"].marks == ("left out: all previous messages must be here",)
    assert (nodes["B"].prev, nodes["B"].details) == (("ghost",), ("bob",))
    assert nodes["C"].prev == ()
    assert nodes["E"].tone is Tone.WRONG
    summary = tangle_picture("T", woven).summary
    assert summary == "1 message, 1 tip, 4 left out"


def test_a_feed_and_what_is_left_out_of_it() -> None:
    post = {"type": "post", "text": ""}
    first = feed_message(1, None, post)
    second = feed_message(2, message_id(first), post)
    forks = [feed_message(3, message_id(second), {**post, "text": text}) for text in "ab"]
    after_gap = feed_message(7, "%" + "A" * 43 + "=.sha256", post)
    messages = [first, second, *forks, after_gap]
    picture = feed_picture("F", classic_feed(messages, AUTHOR), messages)
    nodes = nodes_of(picture)
    assert picture.summary == "2 messages in the feed, 3 left out"
    assert nodes[message_id(second)].marks == ("tip",)
    assert nodes[message_id(second)].prev == (message_id(first),)
    assert nodes[message_id(first)].shape is NodeShape.ROOT
    for fork in forks:
        assert nodes[message_id(fork)].prev == (message_id(second),)
        assert "one message for each sequence number" in nodes[message_id(fork)].marks[0]
    assert nodes[after_gap["previous"]].shape is NodeShape.MISSING


# --- replicas ---


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 12))
def test_a_replica_s_history_and_what_is_missing_of_it(bases: list[int], lost: int) -> None:
    log: list[Replica] = []
    replicas: dict[CID, Replica] = {}
    for number, base in enumerate(bases):
        shard = CID.of(RAW, bytes([number]))
        prior = log[base % len(log)].cid if log and base else None
        log.append(Replica(prior, Append((shard,))))
        replicas[log[-1].cid] = log[-1]
    head = join(replicas, replicas)
    replicas[head.cid] = head
    whole = nodes_of(replica_picture("R", [head.cid], replicas))
    assert set(whole) == {str(cid) for cid in replicas}
    assert whole[str(head.cid)].marks == ("head",)
    for cid, replica in replicas.items():
        assert whole[str(cid)].prev == tuple(map(str, replica.bases))
    gone = list(replicas)[lost % len(replicas)]
    del replicas[gone]
    part = nodes_of(replica_picture("R", [head.cid], replicas))
    assert part[str(gone)].shape is NodeShape.MISSING
    assert {n.id for n in part.values() if n.shape is NodeShape.MISSING} == {str(gone)}


def test_operations_are_named() -> None:
    shards = [CID.of(RAW, bytes([n])) for n in range(2)]
    first = Replica(None, Append.of(shards))
    second = Replica(None, Append.of(shards[:1]))
    replicas = {replica.cid: replica for replica in (first, second)}
    both = join(replicas, replicas)
    replicas[both.cid] = both
    picture = replica_picture("R", [both.cid], replicas)
    details = {node.details for node in picture.nodes}
    assert details == {("append", "2 shards"), ("append", "1 shard"), ("join", "2 replicas")}
    assert picture.summary == "3 operations, 1 head"
