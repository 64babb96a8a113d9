"""What the feed does not have, and why, over HTTP."""

from types import SimpleNamespace
from typing import Any

from api_samples import INIT, KEY, MODEL, Api, api_of, change, hand_over, read
from support.time_events import time_event

from recon_node.ceramic.builder import init_event
from recon_node.store import Store

CHAIN = "eip155:11155111"
NOT_HERE = init_event(KEY, MODEL, {"n": 0}, unique=b"not here")


async def test_nothing(api: Api, store: Store) -> None:
    await store.admit_local([INIT.car])
    counts = dict.fromkeys(("waiting", "pending", "refused"), 0)
    assert await read(api, "undelivered") == {**counts, "chains": []}
    for count in counts:
        assert await read(api, f"undelivered/{count}") == {"events": [], "next": None}


async def test_what_waits_and_for_what(api: Api, store: Store) -> None:
    missing = change(INIT)
    waiting = change(missing, n=2)
    later = change(waiting, INIT, n=3)
    orphan = change(NOT_HERE, init=NOT_HERE)
    await store.admit_local([INIT.car])
    await hand_over(store, waiting, 2)
    await hand_over(store, later, 3)
    await hand_over(store, orphan, 1, NOT_HERE)
    assert (await read(api, "undelivered"))["waiting"] == 3
    answer = await read(api, "undelivered/waiting")
    assert answer["next"] is None
    assert answer["events"] == [
        {
            "cid": str(event.cid),
            "kind": "data",
            "height": height,
            "stream": stream,
            "init": str(event.init),
            "builds_on": [{"cid": str(prev.cid), "state": state}],
            "lookup": None,
            "fault": None,
        }
        for event, height, stream, prev, state in (
            (orphan, 1, None, NOT_HERE, "missing"),
            (later, 3, str(INIT.stream_id()), waiting, "waiting"),
            (waiting, 2, str(INIT.stream_id()), missing, "missing"),
        )
    ]
    pages = [await read(api, "undelivered/waiting", limit=2)]
    pages.append(await read(api, "undelivered/waiting", limit=2, after=pages[0]["next"]))
    assert [event for page in pages for event in page["events"]] == answer["events"]
    assert pages[1]["next"] is None
    await store.admit_local([missing.car])
    assert [event["cid"] for event in (await read(api, "undelivered/waiting"))["events"]] == [
        str(orphan.cid)
    ]


async def test_what_is_pending_and_on_which_chain(store: Store) -> None:
    anchored = time_event(INIT, INIT.cid, tx_hash=bytes([1]) * 32)
    behind = change(anchored)
    await store.admit_local([INIT.car, anchored.car, behind.car])
    [proof] = await store.reader.pending_proofs(10)
    due = proof.due + 60
    await store.postpone_proofs([(proof.cid, due)], [proof.cid])
    anchors: Any = [SimpleNamespace(chain_id=CHAIN)]
    for side, has_provider in ((None, False), (anchors, True)):
        async with api_of(store, anchors=side) as api:
            assert (await read(api, "undelivered"))["chains"] == [
                {"chain_id": CHAIN, "has_provider": has_provider, "proofs": 1, "next_due": due}
            ]
            events = (await read(api, "undelivered/pending"))["events"]
            by_cid = {event["cid"]: event for event in events}
            assert by_cid[str(behind.cid)]["lookup"] is None
            assert by_cid[str(behind.cid)]["builds_on"] == [
                {"cid": str(anchored.cid), "state": "pending"}
            ]
            assert by_cid[str(anchored.cid)]["builds_on"] == []
            assert by_cid[str(anchored.cid)]["lookup"] == {
                "proof": str(proof.cid),
                "chain_id": CHAIN,
                "transaction": "0x" + "01" * 32,
                "has_provider": has_provider,
                "tries": 1,
                "not_found": 1,
                "due": due,
            }


async def test_what_was_refused_and_why(api: Api, store: Store) -> None:
    anchored = time_event(INIT, INIT.cid, tx_hash=bytes([1]) * 32)
    behind = change(anchored)
    await store.admit_local([INIT.car, anchored.car, behind.car])
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, "the transaction says something else")])
    assert (await read(api, "undelivered"))["refused"] == 2
    assert (await read(api, "undelivered/pending"))["events"] == []
    first = await read(api, "undelivered/refused", limit=1)
    second = await read(api, "undelivered/refused", limit=1, after=first["next"])
    assert second["next"] is None
    [refused] = second["events"]
    assert refused["cid"] == str(anchored.cid)
    assert refused["reason"] == "the transaction says something else"
    assert (refused["inherent"], refused["height"]) == (True, 1)
    [refused] = first["events"]
    assert refused["reason"].startswith(f"it builds on {anchored.cid}, which was refused")
