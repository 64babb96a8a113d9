"""Events that a session signs for an account by a capability, on their way through the store."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from capabilities import ACCOUNT, SESSION, capability, change, init_of
from nacl.signing import SigningKey
from store_helpers import MODEL, NETWORK, OTHER_MODEL, feed_of, offer
from support.time_events import time_event

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import signed_event
from recon_node.ipld import DAG_JOSE, car
from recon_node.store import DamagedEventError, Store, open_store
from recon_node.store.maintenance import import_history
from recon_node.streams import select_tip, shape_of

EXPIRY = "2024-02-01T00:00:00Z"
LATER = 1_800_000_000
"""Unix seconds, after that."""


@pytest.mark.parametrize("controller", [ACCOUNT, controller_of(SESSION)])
@pytest.mark.parametrize("init_first", [True, False])
async def test_a_session_writes_for_an_account(store, controller, init_first):
    """From peers in either order, under the EventIds of the account and not of the session."""
    init = init_of(controller)
    events = [(0, init), (1, change(init))]
    offers = [offer(event, init, height) for height, event in events]
    for each in offers if init_first else reversed(offers):
        [verdict] = await store.admit_remote([each])
        assert verdict.status == "new"
    assert [row.event_cid for row in await feed_of(store)] == [event.cid for _, event in events]


@pytest.mark.parametrize("controller", [ACCOUNT, controller_of(SESSION)])
async def test_a_capability_for_another_model_opens_no_stream(store, controller):
    init = init_of(controller)
    await store.admit_local([init.car])
    [verdict] = await store.admit_local([change(init, OTHER_MODEL).car])
    assert verdict.status == "refused"
    assert "which is not this stream" in str(verdict.reason)
    [right] = await store.admit_local([change(init).car])
    assert (right.status, right.position) == ("new", 2)


@pytest.mark.parametrize(
    ("issued", "expires", "reason"),
    [
        (240, None, None),
        (-600, -240, None),
        (600, None, "compare the clocks"),
        (-1200, -600, "sign the event under a new one"),
    ],
)
async def test_clocks_may_differ_by_five_minutes(tmp_path, issued, expires, reason):
    """As with @didtools/cacao and ceramic-one. The seconds are from now."""

    def text(seconds: int) -> str:
        return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"

    header = {"controllers": [ACCOUNT], "model": MODEL.to_bytes(), "sep": "model"}
    expiry = None if expires is None else text(expires)
    cap = capability(MODEL, expiry, text(issued))
    event = signed_event(SESSION, {"header": header, "data": {"title": "x"}}, capability=cap)
    async with open_store(tmp_path, NETWORK) as store:
        [verdict] = await store.admit_local([event.car])
    if reason is None:
        assert verdict.status == "new", verdict.reason
    else:
        assert verdict.reason.endswith(reason)
        assert "the clock of this node says 2" in verdict.reason


async def test_a_merge_counts_on_top_of_an_expired_event(tmp_path: Path) -> None:
    """CIP-145, figure 6 with `A` expired: `C` is on top of `A` and `B`."""
    init = init_of(ACCOUNT)

    def on(*prevs: Event, expiry: str | None = None) -> Event:
        links = [prev.cid for prev in prevs]
        payload = {"id": init.cid, "prev": links if len(links) > 1 else links[0], "data": []}
        return signed_event(SESSION, payload, capability=capability(MODEL, expiry))

    a, b = on(init, expiry=EXPIRY), on(init)
    c = on(b, a)
    events = [(0, init), (1, a), (1, b), (2, c)]
    offers = [offer(event, init, height) for height, event in events]
    async with open_store(tmp_path, NETWORK) as store:
        [local] = await store.admit_local([init.car])
        [refused] = await store.admit_local([a.car])
        assert (local.status, refused.status) == ("new", "refused")
        assert "is not valid now" in str(refused.reason)
        verdicts = await store.admit_remote(offers)
        assert {verdict.status for verdict in verdicts} <= {"new", "known"}
        delivered = [parse_event(row.car) for row in await feed_of(store)]
    assert {event.cid for event in delivered} == {event.cid for _, event in events}
    shapes = [shape_of(event) for event in delivered]
    before = select_tip([shape for shape in shapes if shape.id != c.cid], LATER)
    assert (before.event, before.diverged) == (b.cid, False)
    tip = select_tip(shapes, LATER)
    assert (tip.event, tip.diverged, tip.pruned) == (c.cid, False, ())


async def test_an_event_that_is_repaired_with_what_it_waits_for_is_counted_once(
    store: Store,
) -> None:
    """It waits because its capability cannot be read, and is refused for its EventId."""
    init = init_of(ACCOUNT)
    late = change(init)
    elsewhere = init_of(ACCOUNT, OTHER_MODEL).header
    assert elsewhere is not None
    offers = [offer(init), (late.event_id(NETWORK, elsewhere, 1), late.car)]
    connection = store._writer.log.connection
    await store.admit_remote(offers[1:])
    connection.execute("UPDATE cars SET car = x'00'")
    await store.admit_remote(offers[:1])
    connection.execute("UPDATE cars SET car = x'00'")
    with pytest.raises(DamagedEventError):
        await store.reader.car(init.cid)
    assert (store.waiting, store.damage.count) == (1, 2)
    await store.admit_remote(offers)
    assert (store.waiting, store.damage.count) == (0, 0)
    assert list(store.keys) == [offers[0][0]]


async def test_history_is_imported_from_its_blocks_though_its_sessions_have_expired(tmp_path):
    header = {"controllers": [ACCOUNT], "model": MODEL.to_bytes(), "sep": "model"}
    cap = capability(MODEL, EXPIRY)
    init = signed_event(SESSION, {"header": header, "data": {"title": "x"}}, capability=cap)
    events = [init]
    for title in "abc":
        patch = [{"op": "replace", "path": "/title", "value": title}]
        payload = {"id": init.cid, "prev": events[-1].cid, "data": patch}
        events.append(signed_event(SESSION, payload, capability=cap))
    stranger = signed_event(SigningKey(b"x" * 32), {"id": init.cid, "prev": init.cid, "data": []})
    lost = change(init_of(ACCOUNT))
    time_of = time_event(init, events[-1].cid)
    anchored = [*events, time_of, stranger, lost]
    blocks = [block for event in anchored for block in car.decode(event.car).blocks.values()]
    lacking = car.decode(change(init, OTHER_MODEL).car).blocks
    blocks += [lacking[cid] for cid in lacking if cid.codec == DAG_JOSE]
    async with open_store(tmp_path, NETWORK) as store:
        [verdict] = await store.admit_local([init.car])
        assert "is not valid now" in str(verdict.reason)
    for new, known in ((5, 0), (0, 5)):
        blocks.sort(key=lambda block: sha256(block).digest())
        result = await import_history(tmp_path, NETWORK, [*blocks, b"", b"\xff", b"\x81"])
        assert (result.counts["new"], result.counts["known"]) == (new, known)
        reasons = dict(result.refused)
        assert reasons.keys() >= {stranger.cid, lost.cid}
        assert "signature" in reasons[stranger.cid] or "signed" in reasons[stranger.cid]
        assert "init" in reasons[lost.cid]
        assert sum("lacks the block" in reason for reason in reasons.values()) == 1
        assert len(reasons) == 3
    async with open_store(tmp_path, NETWORK) as store:
        assert [row.event_cid for row in await feed_of(store)] == [event.cid for event in events]
