"""Writing an answer on `/ceramic/recon/1.0.0`, from its lower bound up."""

from __future__ import annotations

from recon_node.recon.key_range import KeyRange
from recon_node.recon.messages_1_0 import AHASH_SIZE, Message
from recon_node.recon.settings import SessionSettings
from recon_node.recon.sha256a import Sha256a
from recon_node.recon.view import View

# Bounds of one range differ in length by their height and CID; the lower one may be a short
# fencepost.
_BOUND_SLACK = 64


class Reply:
    """A message being written from its lower bound up. Matches are held back, to be merged."""

    def __init__(self, view: View, lower: bytes, settings: SessionSettings) -> None:
        self._view = view
        self._bounds = [lower]
        self._hashes: list[Sha256a] = []
        self._matched_to: bytes | None = None
        # In reserve: one more split, and the hash of the rest.
        in_reserve = (settings.fan_out + 3) * (len(lower) + _BOUND_SLACK + AHASH_SIZE)
        self._budget = settings.message_bytes - in_reserve

    @property
    def last_bound(self) -> bytes:
        """The last bound written."""
        return self._bounds[-1]

    @property
    def reach(self) -> bytes:
        """How far the message goes, the match held back included."""
        return self._matched_to or self._bounds[-1]

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit: the rest is then covered by one hash.

        Never before something was told, so that every message makes progress.
        """
        return self._budget <= 0 and bool(self._hashes)

    def room(self) -> int:
        """Return how many more keys can be listed, at least one."""
        return max(1, self._budget // (len(self._bounds[0]) + _BOUND_SLACK + AHASH_SIZE))

    def match(self, upper: bytes) -> None:
        """Cover everything up to a bound as matching."""
        self._matched_to = upper

    def close_match(self) -> None:
        """Write the match that is held back, so that its upper bound is told."""
        if self._matched_to is not None:
            upper, self._matched_to = self._matched_to, None
            self._append(self._view.summarize(KeyRange(self._bounds[-1], upper)).hash, upper)

    def tell(self, upper: bytes, ahash: Sha256a | None = None) -> None:
        """Write a hash (by default that of our keys) up to a bound that the peer shall see."""
        self.close_match()
        if ahash is None:
            ahash = self._view.summarize(KeyRange(self._bounds[-1], upper)).hash
        self._append(ahash, upper)

    def message(self) -> Message:
        """Finish the message."""
        self.close_match()
        return Message(tuple(self._bounds), tuple(self._hashes))

    def _append(self, ahash: Sha256a, upper: bytes) -> None:
        self._hashes.append(ahash)
        self._bounds.append(upper)
        self._budget -= len(upper) + AHASH_SIZE
