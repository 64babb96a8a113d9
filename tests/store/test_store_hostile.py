"""Events that a hostile peer crafts, to keep those of others out or to wear a node down."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from bare_log import BareLog
from capabilities import SESSION, capability
from store_helpers import KEYS, MODEL, NETWORK, World, controller, feed_of
from support.time_events import time_event

from recon_node.ceramic import Event, EventId
from recon_node.ceramic.auth.did import controller_of, sign
from recon_node.ceramic.auth.envelope import Envelope
from recon_node.ceramic.builder import data_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor
from recon_node.store import StoreSettings, open_store
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.shares import Share
from recon_node.store.db.settling import commit_proofs, note_chains, postpone_proofs


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
    block = capability(MODEL)
    named = CID.of(DAG_CBOR, block)
    cid, crafted = signed_with(
        f'"cap":"ipfs://{named}","x":{"[" * depth}{"]" * depth}',
        {"id": init.cid, "prev": init.cid, "data": []},
        {named: block},
    )
    claim = EventId.build(NETWORK, init.header.sort_value, init.header.controller, init.cid, 1, cid)
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=1)) as store:
        await store.admit_remote([(claim, crafted), *others.offers()])
        [verdict] = await store.admit_remote([world.offer(init)])
        assert (verdict.status, verdict.position) == ("new", 21)
        assert init.cid in {row.event_cid for row in await feed_of(store)}


ASKED = "eip155:11155111"


def looked_up(log: BareLog) -> None:
    """The chain that is asked has none of the transactions."""
    sql = "SELECT proof FROM proofs WHERE due NOTNULL AND chain_id = ?"
    unknown = [CID(proof) for (proof,) in log.connection.execute(sql, (ASKED,))]
    postpone_proofs(log, [(proof, 1_700_000_100.0) for proof in unknown], unknown)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize(
    "on_top",
    [
        "nothing",
        "a missing prev below",
        "another chain",
        "a signed event",
        "a signed event that came first",
        "a signed event that waits",
        "a signed event on a time event",
        "a time event on another chain",
        "an orphan",
        "a badly signed event",
    ],
)
def test_made_up_time_events_keep_none_out_for_good(tmp_path: Path, on_top: str, guarded: bool):
    """Whatever they are about, and whatever builds on them."""
    world = World(0, streams=0, events=0)
    theirs, own = world.start(KEYS[0], b"theirs"), world.start(KEYS[1], b"own")
    few = StoreSettings(synchronous="normal", verifiers=0, max_waiting=8)
    count = iter(range(1_000))

    def made_up(prev: CID = theirs.cid, chain_id: str = ASKED) -> Event:
        tx_hash = next(count).to_bytes(32, "big")
        return world.add(time_event(theirs, prev, tx_hash=tx_hash, chain_id=chain_id))

    def offers() -> list[list[tuple[EventId, bytes]]]:
        """What a stranger sends, in batches."""
        event = made_up(chain_id="eip155:1" if on_top == "another chain" else ASKED)
        offer = world.offer(event)
        match on_top:
            case "a missing prev below":
                missing = world.extend(theirs.cid, [theirs.cid], next(count))
                return [[world.offer(made_up(missing.cid))]]
            case "a signed event":
                return [[offer, world.offer(world.extend(theirs.cid, [event.cid], 0))]]
            case "a signed event that came first":
                return [[world.offer(world.extend(theirs.cid, [event.cid], 0))], [offer]]
            case "a signed event that waits":
                missing = world.extend(theirs.cid, [theirs.cid], next(count))
                above = world.extend(theirs.cid, [event.cid, missing.cid], 0)
                return [[world.offer(above)], [offer]]
            case "a signed event on a time event":
                second = made_up(event.cid)
                above = world.extend(theirs.cid, [second.cid], 0)
                return [[offer, world.offer(second), world.offer(above)]]
            case "a time event on another chain":
                return [[offer, world.offer(made_up(event.cid, "eip155:1"))]]
            case "an orphan":
                orphan = data_event(KEYS[2], missing_init, [event.cid], 0)
                name = EventId.build(NETWORK, "any", controller(2), missing_init, 2, orphan.cid)
                return [[offer], [(name, orphan.car)]]
            case "a badly signed event":
                forged = world.add(data_event(KEYS[2], theirs, [event.cid], 0))
                return [[offer], [world.offer(forged)]]
        return [[offer]]

    missing_init = CID.of(DAG_CBOR, b"nowhere")
    with closing(BareLog(tmp_path, few, guarded=guarded)) as log:
        note_chains(log, [ASKED])
        log.admit([world.offer(theirs), world.offer(own)])
        for _ in range(12):
            for batch in offers():
                log.admit(batch)
        looked_up(log)
        anchor = world.add(time_event(own, own.cid, tx_hash=b"own " * 8))
        verdicts = [log.admit([world.offer(anchor)])[0].status for _ in range(9)]
        assert "new" in verdicts
        assert log.marks.shares[Share.UNPROVEN].events <= 8
    with closing(BareLog(tmp_path, few, guarded=guarded)) as log:
        assert log.admit([world.offer(anchor)])[0].status == "known"


def test_time_events_of_a_chain_that_is_not_asked_take_no_place_of_others(tmp_path: Path) -> None:
    """Nor do others give way before it is known which chains are asked, or if none is."""
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    few = StoreSettings(synchronous="normal", verifiers=0, max_waiting=1)
    first, second, third = (
        world.add(time_event(init, init.cid, tx_hash=bytes([n]) * 32, chain_id=f"eip155:{n}"))
        for n in (1, 2, 3)
    )
    with closing(BareLog(tmp_path, few)) as log:
        assert [v.status for v in log.admit(map(world.offer, (init, first)))] == ["new", "new"]
        for chains in [], ["eip155:1"], [], ["eip155:3"]:
            note_chains(log, chains)
            assert [v.status for v in log.admit([world.offer(second)])] == ["refused"]
        for chains, status in (["eip155:1", "eip155:3"], "refused"), (["eip155:3"], "new"):
            note_chains(log, chains)
            assert [v.status for v in log.admit([world.offer(third)])] == [status]
        assert log.keys == sorted(map(world.event_id, (init, third)))


def test_what_an_event_builds_on_is_not_followed_any_further(tmp_path: Path) -> None:
    """256 prevs that each wait for 256 others took 70 ms, and a batch of such events minutes."""
    steps = []
    for missing in 1, 64:
        world = World(0, streams=0, events=0)
        init = world.start(KEYS[0], b"u")
        waiting = []
        for n in range(64):
            prevs = [world.extend(init.cid, [init.cid], [n, m]).cid for m in range(missing)]
            waiting.append(world.extend(init.cid, prevs, n))
        above = world.extend(init.cid, [event.cid for event in waiting], {})
        directory = tmp_path / str(missing)
        directory.mkdir()
        with closing(BareLog(directory)) as log:
            log.admit([world.offer(event) for event in (init, *waiting)])
            ticks: list[None] = []
            log.connection.set_progress_handler(partial(ticks.append, None), 10)
            log.offer([world.offer(above)])
            log.connection.set_progress_handler(None, 0)
            steps.append(len(ticks))
            log.admit(world.offers())
            assert log.marks.waiting == 0
    assert steps[1] < 1.2 * steps[0], "steps of SQLite"


def test_what_builds_on_many_doubted_proofs_is_walked_through_once(tmp_path: Path) -> None:
    """A tower of a million signed events on made-up anchors took seconds for each 32 of these."""
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    anchors = [world.add(time_event(init, init.cid, tx_hash=bytes([n]) * 32)) for n in range(8)]
    base = world.extend(init.cid, [anchor.cid for anchor in anchors], {})
    for n in range(300):
        world.extend(init.cid, [base.cid], n)
    ticks: list[None] = []
    with closing(BareLog(tmp_path)) as log:
        log.admit(world.offers())
        log.connection.set_progress_handler(partial(ticks.append, None), 10)
        counts = []
        for proof in log.unsettled:
            for _ in range(2):
                ticks.clear()
                postpone_proofs(log, [(proof, 1_700_000_100.0)], [proof])
            counts.append(len(ticks))
        assert max(counts[1:]) < counts[0] / 5


def test_what_was_trusted_again_is_left_out_for_the_next_doubted_proof(tmp_path: Path) -> None:
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    anchors = [world.add(time_event(init, init.cid, tx_hash=bytes([n]) * 32)) for n in range(2)]
    last = world.event_id(world.extend(init.cid, [anchor.cid for anchor in anchors], {}))
    with closing(BareLog(tmp_path)) as log:
        log.admit(world.offers())
        first, second = log.unsettled
        for proof in (first, second):
            for _ in range(2):
                left_out = postpone_proofs(log, [(proof, 1_700_000_100.0)], [proof]).doubted
            assert last in left_out
            if proof == first:
                assert last in commit_proofs(log, [(first, 7)]).trusted
