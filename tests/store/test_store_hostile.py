"""Events that a hostile peer crafts, to keep those of others out or to wear a node down."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from bare_log import BareLog
from capabilities import SESSION, capability
from store_helpers import KEYS, MODEL, NETWORK, World, controller, feed_of

from recon_node.ceramic import EventId
from recon_node.ceramic.auth.did import sign
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.builder import controller_of, data_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor
from recon_node.store import StoreSettings, open_store
from recon_node.store.admission.ladder import Ladder


def signed_with(more: str, payload: object, blocks: dict[CID, bytes]) -> tuple[CID, bytes]:
    """An event of the session's whose protected header goes on with `more`; its CID and its CAR."""
    payload_block = dag_cbor.encode(payload)
    payload_cid = CID.of(DAG_CBOR, payload_block)
    header = json.dumps({"alg": "EdDSA", "kid": controller_of(SESSION)})
    protected = f"{header[:-1]},{more}}}".encode()
    text = Envelope(payload_cid, protected, {}, b"", None).signing_input
    signature = {"protected": protected, "signature": sign(SESSION, text)}
    root = dag_cbor.encode({"payload": bytes(payload_cid), "signatures": [signature]})
    cid = CID.of(DAG_JOSE, root)
    return cid, car.encode([cid], {cid: root, payload_cid: payload_block, **blocks})


async def test_an_event_that_is_here_is_offered_again_for_little(tmp_path: Path) -> None:
    """Under any number of wrong EventIds: the events that wait for it are not walked through."""
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    missing = [world.extend(init.cid, [init.cid], n) for n in range(10)]
    waiting = [world.extend(init.cid, [event.cid for event in missing], n) for n in range(50)]
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        await store.admit_remote([world.offer(event) for event in (init, *waiting)])
        asked: list[str] = []
        connection = store._writer.log.connection
        connection.set_trace_callback(asked.append)
        [verdict] = await store.admit_remote([world.offer(init, height=3)])
        connection.set_trace_callback(None)
        assert verdict.status == "refused"
        assert not any("event FROM waits" in sql for sql in asked)
        await store.admit_remote([world.offer(event) for event in missing])
        assert store.waiting == 0
        assert len(await feed_of(store)) == 61


def test_what_waits_for_many_events_is_seldom_looked_at(tmp_path, monkeypatch):
    """These come one by one. A waiting event watches one of them, and nobody knows which."""
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    missing = [world.extend(init.cid, [init.cid], n) for n in range(100)]
    waiting = [world.extend(init.cid, [event.cid for event in missing], n) for n in range(20)]
    orphans = [data_event(KEYS[1], waiting[0].cid, waiting[0].prevs, n) for n in range(20)]
    looked_at = []
    move = Ladder._move_held
    monkeypatch.setattr(
        Ladder, "_move_held", lambda self, record: looked_at.append(record) or move(self, record)
    )
    with closing(BareLog(tmp_path)) as log:
        named = [
            EventId.build(NETWORK, "any", controller(1), orphan.init, 1, orphan.cid)
            for orphan in orphans
        ]
        log.admit([(name, orphan.car) for name, orphan in zip(named, orphans, strict=True)])
        log.admit([world.offer(event) for event in (init, *waiting)])
        for event in missing:
            log.admit([world.offer(event)])
        assert (len(log.feed), log.marks.waiting) == (121, 0)
    assert len(looked_at) < 40 * len(waiting), "five times each, not a hundred times"


@pytest.mark.parametrize("depth", [90, 970, 975, 980])
async def test_what_one_thread_can_read_and_another_cannot_keeps_no_stream_out(tmp_path, depth):
    """Nested so deep that a verifier may have stack enough to read it, and the writer may not."""
    world, others = World(0, streams=0, events=0), World(1, streams=20, events=0)
    init = world.start(KEYS[0], b"u")
    assert init.header is not None
    block = capability(MODEL)
    named = CID.of(DAG_CBOR, block)
    cid, crafted = signed_with(
        f'"cap":"ipfs://{named}","x":{"[" * depth}{"]" * depth}',
        {"id": init.cid, "prev": init.cid, "data": []},
        {named: block},
    )
    claim = EventId.build(NETWORK, init.header.sep_value, init.header.controller, init.cid, 1, cid)
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=1)) as store:
        await store.admit_remote([(claim, crafted), *others.offers()])
        [verdict] = await store.admit_remote([world.offer(init)])
        assert (verdict.status, verdict.position) == ("new", 21)
        assert init.cid in {row.event_cid for row in await feed_of(store)}
