"""Messages of 1.2.0 drawn at random, without anything coded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from peers import gaps_of

from recon_node.ceramic import IN_MEMORY, EventId, network_range
from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import KeyRange
from recon_node.recon.coded.messages import END, Message, MessageFlag, Say
from recon_node.recon.keys.ranges import separator

RANGE = KeyRange(*network_range(IN_MEMORY))
DIGEST = bytes(range(32))
PRINT = DIGEST[:16]


def event_id(number: int, height: int = 0) -> EventId:
    cid = CID.of(DAG_CBOR, b"%d" % number)
    return EventId.build(IN_MEMORY, "sort value", f"did:key:{number % 7}", cid, height, cid)


KEYS = sorted(event_id(number, number % 3) for number in range(60))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that a session could write: gaps cut by separators, keys inside their gaps."""
    if draw(st.booleans()) and draw(st.booleans()):
        return Message(verdict=draw(st.sampled_from([MessageFlag.AGREED, MessageFlag.REFUSED])))
    cuts = sorted(draw(st.sets(st.integers(1, len(KEYS) - 1), max_size=6)))
    gaps = []
    for start, end in pairwise([0, *cuts, len(KEYS)]):
        upper = END if end == len(KEYS) else separator(KEYS[end - 1], KEYS[end])
        say = draw(st.sampled_from(Say))
        listed = draw(st.sets(st.sampled_from(KEYS[start:end]))) if say >= Say.KEYS else ()
        digest = draw(st.binary(min_size=16, max_size=16)) if say is Say.FINGERPRINT else b""
        gaps.append((upper, say, tuple(sorted(listed)) if say >= Say.KEYS else digest))
    gaps = gaps[: draw(st.integers(0, len(gaps)))]
    goes_on = draw(st.booleans()) and bool(gaps) and gaps[-1][0] != END
    closing = draw(st.none() | st.just(DIGEST)) if not goes_on else None
    return Message(draw(st.none() | st.just(RANGE)), gaps_of(*gaps), closing, None, goes_on)
