"""The events of a stream over HTTP: the delivered, the pending and the waiting ones."""

from typing import Any

from api_samples import INIT, KEY, MODEL, Api, admit, api_of, change, hand_over, read
from support.forging import forged
from support.time_events import time_event
from support.wallets import EthereumWallet

from recon_node.api.settings import Limits
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import signed_event
from recon_node.ipld import multibase
from recon_node.store import Store

STREAM = f"streams/{INIT.stream_id()}"


async def listed(api: Api) -> dict[str, dict[str, Any]]:
    """The events of the stream, by their CIDs."""
    return {event["cid"]: event for event in (await read(api, f"{STREAM}/events"))["events"]}


async def test_how_far_each_event_has_come(api: Api, store: Store) -> None:
    anchored, first = time_event(INIT, INIT.cid), change(INIT)
    looked_for = time_event(INIT, first.cid, tx_hash=bytes([1]) * 32)
    behind = change(looked_for, n=2)
    missing = change(behind, n=3)
    waiting = change(missing, n=4)
    later = change(waiting, n=5)
    await admit(store, INIT, anchored, first)
    [pending] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(pending.cid, 1_700_000_000)])
    await admit(store, looked_for, behind)
    await hand_over(store, waiting, 5)
    await hand_over(store, later, 6)
    answer = await read(api, f"{STREAM}/events")
    assert (answer["id"], answer["init"]) == (str(INIT.stream_id()), str(INIT.cid))
    assert answer == await read(api, f"streams/{INIT.cid}/events")
    listed_events = {event["cid"]: event for event in answer["events"]}
    events = (INIT, anchored, first, looked_for, behind, waiting, later)
    states = ["delivered"] * 3 + ["pending"] * 2 + ["waiting"] * 2
    assert {cid: event["state"] for cid, event in listed_events.items()} == dict(
        zip([str(event.cid) for event in events], states, strict=True)
    )
    assert [event["position"] for event in answer["events"]][:3] == [1, 2, 3]
    assert listed_events[str(anchored.cid)] == {
        "cid": str(anchored.cid),
        "kind": "time",
        "prev": [str(INIT.cid)],
        "height": 1,
        "state": "delivered",
        "position": listed_events[str(anchored.cid)]["position"],
        "time": 1_700_000_000,
        "chain_id": "eip155:11155111",
        "expires": None,
        "fault": None,
        "copy_of": None,
        "rank": listed_events[str(anchored.cid)]["rank"],
    }
    assert listed_events[str(looked_for.cid)]["time"] is None
    assert (listed_events[str(later.cid)]["height"], listed_events[str(later.cid)]["position"]) == (
        6,
        None,
    )


async def test_a_badly_signed_event_waits_until_it_is_covered(api: Api, store: Store) -> None:
    first = change(INIT)
    bad = forged(change(first, n=2))
    anchored = time_event(INIT, bad.cid)
    await admit(store, INIT, first)
    await hand_over(store, bad, 2)
    await hand_over(store, anchored, 3)
    events = await listed(api)
    assert [events[str(event.cid)]["state"] for event in (bad, anchored)] == ["waiting"] * 2
    assert "is wrong" in events[str(bad.cid)]["fault"]
    assert events[str(anchored.cid)]["fault"] is None
    waiting = (await read(api, "undelivered/waiting"))["events"]
    assert [(event["cid"], event["fault"] is None) for event in waiting] == [
        (str(anchored.cid), True),
        (str(bad.cid), False),
    ]
    known = await api.post("/ceramic/events", json={"data": multibase.encode(bad.car)})
    assert known.status_code == 204, "it is here, from a peer"
    assert (await read(api, STREAM))["event_cid"] == str(first.cid)
    merge = change(first, anchored, n=3)
    await admit(store, merge)
    states = {cid: event["state"] for cid, event in (await listed(api)).items()}
    delivered = dict.fromkeys((str(event.cid) for event in (INIT, first, bad)), "delivered")
    assert states == delivered | {str(anchored.cid): "pending", str(merge.cid): "pending"}
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, 1_700_000_000)])
    at_tip = await read(api, STREAM)
    assert at_tip["event_cid"] == str(merge.cid)
    rejected = {error["event_cid"]: error["errors"] for error in at_tip["validation_errors"]}
    assert rejected.keys() == {str(bad.cid), str(anchored.cid)}
    assert "is wrong" in rejected[str(bad.cid)][0]
    assert (await read(api, f"{STREAM}/events/{bad.cid}"))["content"] == {"n": 1}
    details = (await read(api, "feed/events", details="true"))["events"]
    assert [detail["id"] for detail in details if detail["fault"]] == [str(bad.cid)]


async def test_a_stream_that_is_too_long(store: Store) -> None:
    """Events on the way count, too."""
    first = change(INIT)
    await admit(store, INIT, first)
    await hand_over(store, change(change(first, n=2), n=3), 3)
    async with api_of(store, limits=Limits(stream_listed=2)) as api:
        assert len(await listed(api)) == 2
    for limits in (Limits(stream_listed=1), Limits(stream_bytes=100)):
        async with api_of(store, limits=limits) as api:
            message = (await read(api, f"{STREAM}/events", 400))["message"]
            assert "read its events from the feed" in message


async def test_what_waits_is_bounded_by_its_size(store: Store) -> None:
    await admit(store, INIT)
    for n in range(70):
        await hand_over(store, forged(change(INIT, n=n)), 1)
    async with api_of(store, limits=Limits(stream_bytes=len(INIT.car) + 1)) as api:
        assert 1 < len(await listed(api)) < 71


async def test_until_when_a_capability_holds(api: Api, store: Store) -> None:
    """An account lets a session's key act for it, until a time far from now."""
    wallet = EthereumWallet()
    header = {"controllers": [wallet.issuer], "model": MODEL.to_bytes(), "sep": "model"}
    capability = wallet.issue(aud=controller_of(KEY))
    event = signed_event(KEY, {"header": header, "data": {}}, capability=capability)
    await admit(store, event)
    [row] = (await read(api, f"streams/{event.cid}/events"))["events"]
    assert row["expires"] == 4_102_444_800
