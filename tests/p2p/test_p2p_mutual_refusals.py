"""Two nodes by whose rules different events are valid, as versions of this program may be.

Each holds events that the other refuses, all over the range and more than one session may bring.
"""

import hashlib

from nacl.signing import SigningKey
from p2p_support import NETWORK, Node, eventually, sessions, two_nodes
from support.forging import forged

from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import CID, DAG_CBOR
from recon_node.p2p.peers import book
from recon_node.p2p.sync import fetch
from recon_node.p2p.sync.rings import RingRun
from recon_node.recon import RECON_1_2
from recon_node.store import StoreSettings, open_store
from recon_node.verification import facts

MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
GOOD = 20
"""Events of each side that both accept."""
MAX_INVALID = 50
REFUSED = 2 * MAX_INVALID + GOOD + 10
"""Events of each side that the other refuses: more than two sessions may bring. Both sides start
one, and two sessions at once share the events, in any proportion."""


def totals(*nodes: Node) -> list[tuple[int, int]]:
    """How many sessions failed at each, and how many bytes of events it fetched."""
    counters = [node.p2p.counters for node in nodes]
    return [(sessions(counts, "failed"), counts.event_bytes_received) for counts in counters]


async def further_sessions(number: int, *nodes: Node) -> None:
    """Wait until they have begun so many more."""

    def begun() -> int:
        return sum(sessions(node.p2p.counters, "initiator") for node in nodes)

    until = begun() + number
    await eventually(lambda: begun() >= until)


def events(name: str, count: int) -> list:
    keys = (
        SigningKey(hashlib.sha256(b"%s %d" % (name.encode(), n)).digest()) for n in range(count)
    )
    return [init_event(key, MODEL, None) for key in keys]


async def fill(data_dir, cars: list[bytes], monkeypatch) -> None:
    """Make a log by rules of its own, by which no signature is wrong."""
    with monkeypatch.context() as patch:
        patch.setattr(facts, "_verify", lambda event: (facts.ALWAYS, None))
        settings = StoreSettings(verifiers=0)
        async with open_store(data_dir, NETWORK, settings=settings) as store:
            verdicts = await store.admit_local(cars)
            assert {verdict.status for verdict in verdicts} == {"new"}


async def test_all_others_arrive_and_nothing_is_asked_for_again(tmp_path, version, monkeypatch):
    monkeypatch.setattr(book, "AFTER_FAILURE", Backoff(first=0.05, longest=0.2))
    monkeypatch.setattr(fetch, "MAX_INVALID", MAX_INVALID)
    good = {side: [event.car for event in events(side, GOOD)] for side in "ab"}
    bad = {side: [forged(event).car for event in events(f"bad {side}", REFUSED)] for side in "ab"}
    for side in "ab":
        await fill(tmp_path / side, good[side] + bad[side], monkeypatch)
    options = {"versions": [version], "sync_interval": 0.1, "ceramic_one": False}
    async with two_nodes(tmp_path, **options) as (a, b):
        both = 2 * GOOD + REFUSED
        await eventually(lambda: len(a.store.keys) == len(b.store.keys) == both)
        left_out = f"{REFUSED:,} keys left out"
        ends = f"agreed but for {left_out} here and {left_out} by the peer"
        await eventually(lambda: a.outcomes()[-1:] == b.outcomes()[-1:] == [ends])
        assert sessions(a.p2p.counters, "failed"), "it went on in further sessions"
        reports = [side.p2p.sync_reports[-1] for side in (a, b)]
        counts = {(report.keys_left_out, report.keys_left_out_by_peer) for report in reports}
        assert counts == {(REFUSED, REFUSED)}
        # From now on all sessions end well, nothing is fetched, and nobody is to blame.
        await further_sessions(4, a, b)  # those that were under way
        before = totals(a, b)
        await further_sessions(10, a, b)
        assert totals(a, b) == before
        assert {a.outcomes()[-1], b.outcomes()[-1]} == {ends}
        await eventually(lambda: a.failures(b.p2p.peer_id) == b.failures(a.p2p.peer_id) == 0)
        if version is RECON_1_2:  # which need not be told again
            assert a.p2p.sync_reports[-1].bytes_received < 20 * REFUSED
        late = [event.car for event in events("late", 3)]
        await a.store.admit_local(late)
        await eventually(lambda: len(b.store.keys) == both + len(late))


async def test_a_session_of_the_ring_that_we_end_says_nothing_of_what_the_peer_refuses(
    tmp_path, monkeypatch
):
    """Although the peer is still connected: it may not have read all that we had sent it."""
    monkeypatch.setattr(fetch, "MAX_INVALID", MAX_INVALID)
    endings, end = [], RingRun.end

    def noted(run, outcome, *, hung_up):
        endings.append((outcome, hung_up))
        return end(run, outcome, hung_up=hung_up)

    monkeypatch.setattr(RingRun, "end", noted)
    bad = [forged(event).car for event in events("bad", REFUSED)]
    await fill(tmp_path / "a", bad, monkeypatch)
    good = [event.car for event in events("good", GOOD)]
    async with two_nodes(tmp_path, of_b=good, versions=()):
        await eventually(lambda: any("invalid here" in outcome for outcome, _ in endings))
        assert {hung_up for outcome, hung_up in endings if "invalid here" in outcome} == {False}
