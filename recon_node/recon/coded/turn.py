"""The peer's turn: its messages so far, each of which has to be one that is due."""

from __future__ import annotations

from typing import Final, NamedTuple

from recon_node.recon.coded.messages import END, MIB, Gaps, Message, MessageFlag, weight_of
from recon_node.recon.side import RemoteProtocolError, Side

_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (``weight_of``), as a multiple of a frame of a
MiB, or of our own messages if they may be larger: 1.5 times that of MAX_TURN honest frames."""


class Due(NamedTuple):
    """What the peer may send beside gaps and closings."""

    estimate: bool
    """Symbols with an estimate, and none without: our last turn had an opening or closing."""
    symbols: bool
    """Symbols: our last turn had some."""
    salt: bool
    """Salted fingerprints: enough closings were wrong."""


class PeerTurn:
    """What has been received of the peer's turn."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._weight = 0
        """About how many bytes of memory its bounds and keys take."""
        self.messages: list[Message] = []

    def add(self, message: Message, due: Due) -> list[bytes]:
        """Take a message, and settle the session's range or end by it; return the keys it lists.

        Raises:
            RemoteProtocolError: it is not due, or not about the range.
        """
        self._check_coded(message, due)
        keys = self._read(message)
        self.messages.append(message)
        return keys

    def _read(self, message: Message) -> list[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""
        side = self._side
        if message.left_out is not None:
            side.left_out_by_peer = message.left_out.number
        if message.verdict is MessageFlag.AGREED and (side.initiates or side.rounds > 1):
            side.finish()
            return []
        if message.verdict is MessageFlag.REFUSED and side.initiates and side.rounds == 1:
            side.finish_refused()
            return []
        if message.verdict is not None:
            raise RemoteProtocolError(f"peer said {message.verdict.name} to nothing")
        if message.key_range is not None:
            if side.rounds > 1 or self.messages:
                raise RemoteProtocolError("peer changed the range in the middle of the session")
            side.settle_range(message.key_range)
        elif side.asked is None:
            raise RemoteProtocolError("the first message does not say what range it is about")
        return self._keys_of(message.gaps)

    def _keys_of(self, gaps: Gaps) -> list[bytes]:
        """Check that gaps lie in the range, above those before; return their keys.

        Decoding has checked that they ascend, and that no key lies above its gap.
        """
        keys, uppers, key_range = gaps.keys(), gaps.uppers, self._side.key_range
        self._weight += weight_of(uppers) + weight_of(keys)
        if self._weight > _TURN_WEIGHT * max(MIB, self._side.settings.message_bytes):
            raise RemoteProtocolError(f"a turn of {self._weight:,} bytes, written out")
        if key_range is None or not uppers:
            return []
        reached = self.messages[-1].gaps.uppers[-1] if self.messages else key_range.lower
        for upper in (uppers[0], uppers[-1]):
            if upper != END and not reached < upper < key_range.upper:
                raise RemoteProtocolError(f"gap ends outside the range: {upper.hex()}")
        if keys and keys[0] < reached:
            raise RemoteProtocolError(f"key below its gap: {keys[0].hex()}")
        for key in (keys[0], keys[-1]) if keys else ():
            if not key_range.covers(key):
                raise RemoteProtocolError(f"key outside the range: {key.hex()}")
        return keys

    def _check_coded(self, message: Message, due: Due) -> None:
        """Check that a salt, an estimate or symbols come where they are due, and alone.

        Raises:
            RemoteProtocolError: they do not.
        """
        if message.salt is not None and not due.salt:
            raise RemoteProtocolError("peer sent salted fingerprints where none were due")
        if not message.is_coded:
            return
        if self.messages or message.has_gaps_or_ends:
            raise RemoteProtocolError("peer sent symbols beside something else")
        if message.symbols is None or (message.estimate is not None) != due.estimate:
            raise RemoteProtocolError("peer sent symbols, or an estimate, where none was due")
        if message.estimate is None:
            if not due.symbols:
                raise RemoteProtocolError("peer sent symbols where none were due")
            return
        key_range, bounds = self._side.key_range, message.estimate.bounds
        assert key_range is not None
        if bounds and not (key_range.lower < bounds[0] and bounds[-1] < key_range.upper):
            raise RemoteProtocolError("peer divides what is not in the range")
