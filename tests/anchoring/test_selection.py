"""What waits for an anchor: the events on which nothing builds, wherever the feed's pages end."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from recon_node.anchoring.feed_follower import FeedEvent, select
from recon_node.anchoring.journal import Journal, RequestState
from recon_node.ceramic import EventKind
from recon_node.ipld import CID, DAG_CBOR


@st.composite
def feeds(draw: st.DrawFn) -> list[FeedEvent]:
    """Some streams, each event after its prevs."""
    feed: list[FeedEvent] = []
    for number in range(draw(st.integers(1, 25))):
        cid = CID.of(DAG_CBOR, number.to_bytes(2, "big"))
        stream = draw(st.sampled_from([*{event.init for event in feed}, cid]))
        if stream == cid:
            feed.append(FeedEvent(cid, cid, EventKind.INIT, (), draw(st.booleans())))
            continue
        below = [event.cid for event in feed if event.init == stream]
        kind = draw(st.sampled_from([EventKind.DATA, EventKind.DATA, EventKind.TIME]))
        most = 1 if kind is EventKind.TIME else 3
        prevs = draw(st.lists(st.sampled_from(below), min_size=1, max_size=most, unique=True))
        feed.append(FeedEvent(cid, stream, kind, tuple(prevs), is_wanted=True))
    return feed


@given(feeds(), st.sets(st.integers(1, 24)))
@settings(deadline=None)
def test_the_uncovered_events_wait(feed: list[FeedEvent], cuts: set[int]) -> None:
    ends = sorted({cut for cut in cuts if cut < len(feed)} | {len(feed)})
    with TemporaryDirectory() as directory:
        journal = Journal(Path(directory))
        start = 0
        for end in ends:
            journal.note_feed("epoch", end, select(feed[start:end]), now=float(end))
            start = end
        covered = {prev for event in feed for prev in event.prevs}
        expected = {
            event.cid
            for event in feed
            if event.kind is not EventKind.TIME and event.is_wanted and event.cid not in covered
        }
        assert set(journal.waiting(100)) == expected
        assert journal.counts(tuple(RequestState))[RequestState.WAITING] == len(expected)
        assert journal.position("epoch") == len(feed)
        assert journal.position("another epoch") == 0
        journal.close()
