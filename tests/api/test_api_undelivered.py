"""What the feed does not have, and why, over HTTP."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import httpx
from nacl.signing import SigningKey

from recon_node.api import Services, create_app
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, time_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import Store

KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"elsewhere"))
INIT = init_event(KEY, MODEL, {"n": 0}, unique=b"u")
ABSENT = init_event(KEY, MODEL, {"n": 0}, unique=b"not here")
CHAIN = "eip155:11155111"


def change(*prevs: Event, init: Event = INIT, n: int = 1) -> Event:
    patch = [{"op": "replace", "path": "/n", "value": n}]
    return data_event(KEY, init, [prev.cid for prev in prevs], patch)


async def hand_over(store: Store, event: Event, height: int, init: Event = INIT) -> None:
    """As a peer does."""
    assert init.header is not None
    event_id = event.event_id(store.network, init.header, height)
    [verdict] = await store.admit_remote([(event_id, event.car)])
    assert verdict.status == "new"


async def read(api: httpx.AsyncClient, path: str = "", **params: int) -> dict[str, Any]:
    answer = await api.get(f"/ceramic/undelivered{path}", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_nothing(api: httpx.AsyncClient, store: Store) -> None:
    await store.admit_local([INIT.car])
    assert await read(api) == {"waiting": 0, "pending": 0, "refused": 0, "chains": []}
    for path in ("/waiting", "/pending", "/refused"):
        assert await read(api, path) == {"events": [], "next": None}


async def test_what_waits_and_for_what(api: httpx.AsyncClient, store: Store) -> None:
    missing = change(INIT)
    waiting = change(missing, n=2)
    later = change(waiting, INIT, n=3)
    orphan = change(ABSENT, init=ABSENT)
    await store.admit_local([INIT.car])
    await hand_over(store, waiting, 2)
    await hand_over(store, later, 3)
    await hand_over(store, orphan, 1, ABSENT)
    assert (await read(api))["waiting"] == 3
    answer = await read(api, "/waiting")
    stream = str(INIT.stream_id())
    common = {"kind": "data", "lookup": None, "fault": None}
    assert answer["next"] is None
    assert answer["events"] == [
        {
            **common,
            "cid": str(orphan.cid),
            "height": 1,
            "stream": None,
            "init": str(ABSENT.cid),
            "builds_on": [{"cid": str(ABSENT.cid), "state": "missing"}],
        },
        {
            **common,
            "cid": str(later.cid),
            "height": 3,
            "stream": stream,
            "init": str(INIT.cid),
            "builds_on": [{"cid": str(waiting.cid), "state": "waiting"}],
        },
        {
            **common,
            "cid": str(waiting.cid),
            "height": 2,
            "stream": stream,
            "init": str(INIT.cid),
            "builds_on": [{"cid": str(missing.cid), "state": "missing"}],
        },
    ]
    pages = [await read(api, "/waiting", limit=2)]
    pages.append(await read(api, "/waiting", limit=2, after=pages[0]["next"]))
    assert [each for page in pages for each in page["events"]] == answer["events"]
    assert pages[1]["next"] is None
    await store.admit_local([missing.car])
    assert [each["cid"] for each in (await read(api, "/waiting"))["events"]] == [str(orphan.cid)]


async def test_what_is_pending_and_on_which_chain(services: Services, store: Store) -> None:
    anchored = time_event(INIT, INIT.cid, tx_hash=bytes([1]) * 32)
    behind = change(anchored)
    await store.admit_local([INIT.car, anchored.car, behind.car])
    [proof] = await store.reader.pending_proofs(10)
    due = proof.due + 60
    await store.postpone_proofs([(proof.cid, due)], [proof.cid])
    reports = [SimpleNamespace(chain_id=CHAIN)]
    anchors: Any = SimpleNamespace(reports=reports)
    for side, has_provider in ((None, False), (anchors, True)):
        app = create_app(dataclasses.replace(services, anchors=side))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as api:
            assert (await read(api))["chains"] == [
                {"chain_id": CHAIN, "has_provider": has_provider, "proofs": 1, "next_due": due}
            ]
            found = (await read(api, "/pending"))["events"]
            by_cid = {each["cid"]: each for each in found}
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


async def test_what_was_refused_and_why(api: httpx.AsyncClient, store: Store) -> None:
    anchored = time_event(INIT, INIT.cid, tx_hash=bytes([1]) * 32)
    behind = change(anchored)
    await store.admit_local([INIT.car, anchored.car, behind.car])
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, "the transaction says something else")])
    assert (await read(api))["refused"] == 2
    assert (await read(api, "/pending"))["events"] == []
    first = await read(api, "/refused", limit=1)
    second = await read(api, "/refused", limit=1, after=first["next"])
    assert second["next"] is None
    [told] = second["events"]
    assert told["cid"] == str(anchored.cid)
    assert told["reason"] == "the transaction says something else"
    assert (told["inherent"], told["height"]) == (True, 1)
    [told] = first["events"]
    assert told["reason"].startswith(f"it builds on {anchored.cid}, which was refused")
