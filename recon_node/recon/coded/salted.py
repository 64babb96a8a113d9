"""Fingerprints that are salted: of hashes that nobody could know when the keys were made.

So nobody could prepare sets whose sums of these hashes are equal. The tree does not have such
hashes: each fingerprint takes a walk over the keys. coded_session.py says when they are used.
"""

from hashlib import sha256
from typing import Final

from recon_node.base.steps import Steps
from recon_node.recon.coded.coded_reply import CodedReply
from recon_node.recon.coded.messages import SALT_SIZE, fingerprint
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.session import HASHED_PER_STEP, RemoteProtocolError, Side

_MAX_HASHED: Final = 16
"""How many times over all keys are hashed in a session: an honest peer asks for six at most."""


def salt_of(ours: bytes, theirs: bytes) -> bytes:
    """Return a salt that depends on all keys of both sides, given the digests of these."""
    return sha256(ours + theirs).digest()[:SALT_SIZE]


class SaltedFingerprints:
    """The salted fingerprints of one side of a session."""

    def __init__(self, side: Side, held: int) -> None:
        self._side = side
        self._most = _MAX_HASHED * (held + HASHED_PER_STEP)
        self.hashed = 0
        """Keys that were hashed so far."""
        self.salt = b""
        """What precedes each key: the latest salt of either side."""

    def answer(self, reply: CodedReply, upper: bytes, theirs: bytes) -> Steps[None]:
        """Answer a fingerprint of the peer's."""
        if (yield from self._differs(reply, upper, theirs)):
            yield from self.narrow_down(reply, upper)
        else:
            reply.skip(upper)

    def narrow_down(self, reply: CodedReply, upper: bytes) -> Steps[None]:
        """Answer a wrong fingerprint: list our keys, or write the fingerprints of equal parts."""
        lower, with_lower = reply.gap_to(upper).lower, reply.has_lower
        parts = []
        for bound, _ in reply.list_or_cut(upper):
            gap = KeyRange(lower, bound or reply.gap_to(upper).upper)
            lanes = yield from self._lanes(gap, with_lower=with_lower)
            parts.append((bound, fingerprint(lanes)))
            lower, with_lower = bound, True
        if parts:
            reply.forget_position()  # the store may have changed
            reply.ask_by_fingerprints(parts)

    def _differs(self, reply: CodedReply, upper: bytes, theirs: bytes) -> Steps[bool]:
        lanes = yield from self._lanes(reply.gap_to(upper), with_lower=reply.has_lower)
        reply.forget_position()
        if theirs == fingerprint(lanes):
            return False
        return not (yield from reply.counts_left_out(upper, theirs, lanes, self.salt))

    def _lanes(self, gap: KeyRange, *, with_lower: bool) -> Steps[int]:
        """Return the salted lanes of our keys in a gap, in steps.

        Raises:
            RemoteProtocolError: the peer has asked for too many of them.
        """
        keys = self._side.keys
        self.hashed += keys.count(gap)
        if self.hashed > self._most:
            raise RemoteProtocolError("the peer asks for salted fingerprints again and again")
        return (yield from keys.salted_lanes(gap, self.salt, with_lower=with_lower))
