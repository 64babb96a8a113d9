"""What pages show of a single stream or event: its blocks, its content, its drawing, its tail."""

from typing import Any
from xml.etree import ElementTree

from api_samples import INIT, KEY, Api, admit, change, hand_over, read
from support.time_events import time_event

from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event
from recon_node.ipld import CID, car, dag_cbor
from recon_node.store import Store


def from_dag_json(value: Any) -> Any:
    """The inverse of what the API does; only links are needed here."""
    if isinstance(value, dict):
        if set(value) == {"/"} and isinstance(value["/"], str):
            return CID.parse(value["/"])
        return {key: from_dag_json(member) for key, member in value.items()}
    return [from_dag_json(item) for item in value] if isinstance(value, list) else value


async def test_the_blocks_of_events(api: Api, store: Store) -> None:
    first, anchored = change(INIT), time_event(INIT, INIT.cid)
    waiting = change(change(first, n=2), n=3)
    await admit(store, INIT, first, anchored)
    await hand_over(store, waiting, 3)
    for event, signer in (
        (INIT, controller_of(KEY)),
        (first, controller_of(KEY)),
        (anchored, None),
        (waiting, controller_of(KEY)),
    ):
        answer = await read(api, f"events/{event.cid}/blocks")
        assert (answer["id"], answer["init"]) == (str(event.cid), str(INIT.cid))
        assert (answer["kind"], answer["signer"]) == (event.kind.value, signer)
        assert answer["prev"] == [str(prev) for prev in event.prevs]
        assert answer["size"] == len(event.car)
        blocks = car.decode(event.car).blocks
        assert {block["cid"]: block["size"] for block in answer["blocks"]} == {
            str(cid): len(block) for cid, block in blocks.items()
        }
        assert answer["blocks"][0]["cid"] == str(event.cid)
        roles = {block["role"]: block for block in answer["blocks"]}
        if signer is None:
            assert set(roles) == {"event", "proof"}
            assert dag_cbor.encode(from_dag_json(roles["event"]["value"])) == blocks[event.cid]
        else:
            assert set(roles) == {"envelope", "payload"}
            payload = CID.parse(roles["payload"]["cid"])
            assert from_dag_json(roles["payload"]["value"])["data"] == event.data
            assert blocks[payload]


async def test_the_content_after_each_event(api: Api, store: Store) -> None:
    first = change(INIT, n=1)
    wrong = data_event(KEY, INIT, [first.cid], [{"op": "remove", "path": "/nothing"}])
    left, right = change(wrong, n=2), change(first, n=3)
    anchored = time_event(INIT, right.cid)
    await admit(store, INIT, first, wrong, left, right, anchored)
    heights, contents = (0, 1, 2, 3, 2), (0, 1, 1, 2, 3)
    events = (INIT, first, wrong, left, right)
    for event, height, n in zip(events, heights, contents, strict=True):
        for name in (INIT.stream_id(), INIT.cid):
            state = await read(api, f"streams/{name}/events/{event.cid}")
            assert (state["event_cid"], state["height"]) == (str(event.cid), height)
            assert state["content"] == {"n": n}
            assert bool(state["errors"]) is (event is wrong)
            assert state["metadata"]["shouldIndex"] is True
    await read(api, f"streams/{INIT.cid}/events/{anchored.cid}", 404)  # it is pending
    await read(api, f"streams/{first.cid}/events/{first.cid}", 404)


async def test_a_drawing_and_why_the_tip_is_the_tip(api: Api, store: Store) -> None:
    left, right = change(INIT, n=1), change(INIT, n=2)
    anchored = time_event(INIT, right.cid)
    await admit(store, INIT, left, right, anchored)
    [pending] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(pending.cid, 1_700_000_000)])
    picture = await read(api, f"streams/{INIT.stream_id()}/picture")
    assert (picture["tip"], picture["diverged"]) == (str(anchored.cid), True)
    assert picture["pruned"] == [str(left.cid)]
    assert picture["decisions"] == [
        {"rule": "earliest time", "winner": str(right.cid), "rivals": [str(left.cid)]}
    ]
    assert "wins over" in picture["notes"][0]
    assert set(picture["merge"]) == {str(anchored.cid), str(left.cid)}
    drawn = ElementTree.fromstring(picture["svg"])
    titles = [
        group.findtext("{http://www.w3.org/2000/svg}title")
        for group in drawn.iter("{http://www.w3.org/2000/svg}g")
        if group.get("class", "").startswith("node")
    ]
    assert set(titles) == {str(event.cid) for event in (INIT, left, right, anchored)}


async def test_a_long_run_is_folded_unless_all_is_asked_for(api: Api, store: Store) -> None:
    events = [INIT]
    for n in range(12):
        events.append(change(events[-1], n=n))
    await admit(store, *events)
    folded = await read(api, f"streams/{INIT.cid}/picture")
    whole = await read(api, f"streams/{INIT.cid}/picture", all="true")
    short = await read(api, f"streams/{INIT.cid}/picture", all="true", limit=2)
    rows = [drawing["svg"].count('class="node') for drawing in (folded, whole, short)]
    assert rows[1:] == [13, 2]
    assert rows[0] < 13


async def test_details_of_the_feed(api: Api, store: Store) -> None:
    first, anchored = change(INIT), time_event(INIT, INIT.cid)
    await admit(store, INIT, first, anchored)
    [pending] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(pending.cid, 1_700_000_000)])
    feed = await read(api, "feed/events", details="true", resumeAt=1)
    common = {"init": str(INIT.cid), "height": 1, "fault": None}
    assert all(event.pop("deliveredAt") for event in feed["events"])
    assert feed["events"] == [
        {**common, "id": str(event.cid), "kind": kind, "size": len(event.car), **rest}
        for event, kind, rest in (
            (first, "data", {"position": 2, "time": None}),
            (anchored, "time", {"position": 3, "time": 1_700_000_000}),
        )
    ]
    plain = await read(api, "feed/events", resumeAt=1)
    assert plain["events"] == [{"id": str(first.cid)}, {"id": str(anchored.cid)}]
