"""The peer's turn: which messages are due, and what they tell of the difference.

It tells it by an estimate, and by lists of ids. An estimate comes with hints, which tell parts of
the range that differ from parts that do not. So they show whether differences lie close together.
Then ranges take fewer bytes than symbols, and the search for keys by their ids need not go through
the whole range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from recon_node.recon.coded.messages import (
    END,
    HINT_SIZE,
    KEYS,
    LACKING,
    MIB,
    NO_KEYS,
    SYMBOL_SIZE,
    Estimate,
    Gaps,
    Message,
    MessageFlag,
    fingerprint,
    weight_of,
)
from recon_node.recon.keys.lookups import Finger, find, not_held
from recon_node.recon.keys.ordered_keys import KeyRange, OrderedKeys
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.keys.sums import (
    ID_SIZE,
    MAX_SYMBOLS,
    NO_IDS,
    Difference,
    Ids,
    Sketch,
    among,
    at_least,
    distinct,
    estimate,
    id_of,
    symbols_for,
)
from recon_node.recon.session import GAPS_A_STEP, RemoteProtocolError, Side, Steps

_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (`weight_of`), as a multiple of a frame of a
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
            raise RemoteProtocolError("peer's bounds lie outside the range")


FIRST_SYMBOLS: Final = 8
"""Symbols beside an estimate: they decode up to about four differences."""
HINTED_PARTS: Final = 12
"""Parts of the range that an estimate has hints of."""
_CLUSTERED: Final = HINTED_PARTS // 4
"""If at most this many parts differ, although many keys do, these lie close together."""
_MANY_BITS: Final = 48
"""Differing bits in the tables from which that matters: about 64 keys differ."""


class Part(NamedTuple):
    """A part of the range that the peer gave a hint of."""

    lower: bytes
    upper: bytes
    start: int
    end: int
    """The positions of its bounds among our keys (lookups.py)."""
    differs: bool

    @property
    def held(self) -> int:
        """The number of our keys in it."""
        return self.end - self.start >> COUNT_SHIFT


class Plan(NamedTuple):
    """How to answer an estimate that its own symbols do not settle."""

    symbols: int
    """Symbols to send; 0 if ranges are better."""
    dense: bool
    """Whether the differences are known to lie close together."""
    list_up_to: int
    """Keys of a gap that are to be listed because symbols would take more bytes."""


def make_estimate(keys: OrderedKeys, key_range: KeyRange, sketch: Sketch) -> Message:
    """Return an estimate of a range, with the first symbols of its sketch."""
    finger = Finger(keys)
    first = start = finger.up_to(key_range.lower)
    last = finger.left_of(key_range.upper)
    bounds, hints = [], []
    for bound, end in finger.cuts(start, last, HINTED_PARTS):
        bounds.append(bound)
        hints.append(fingerprint(end - start)[:HINT_SIZE])
        start = end
    hints.append(fingerprint(last - start)[:HINT_SIZE])
    return Message(
        count=last - first >> COUNT_SHIFT,
        estimate=Estimate(sketch.table, tuple(bounds), tuple(hints)),
        symbols=sketch.symbols.first(FIRST_SYMBOLS).copy(),
    )


def compare(keys: OrderedKeys, key_range: KeyRange, theirs: Estimate) -> list[Part]:
    """Compare the peer's hints with our keys."""
    finger = Finger(keys)
    parts, lower, start = [], key_range.lower, finger.up_to(key_range.lower)
    for upper, hint in zip((*theirs.bounds, key_range.upper), theirs.hints, strict=True):
        end = finger.left_of(upper)
        differs = fingerprint(end - start)[:HINT_SIZE] != hint
        parts.append(Part(lower, upper, start, end, differs))
        lower, start = upper, end
    return parts


def where_they_differ(key_range: KeyRange, parts: list[Part]) -> KeyRange:
    """Return the smallest range with all parts that differ."""
    differing = [part for part in parts if part.differs]
    if not differing:
        return key_range
    lower = differing[0].lower
    # A part has its lower bound, and a range has not. A prefix is less.
    first = lower if lower == key_range.lower else max(lower[:-1], key_range.lower)
    return KeyRange(first, differing[-1].upper)


def plan(sketch: Sketch, parts: list[Part], heard: Message) -> Plan:
    """Choose between symbols and ranges, given the peer's estimate and what its hints tell."""
    assert heard.estimate is not None
    differing = [part.held for part in parts if part.differs]
    bits = at_least(sketch.table, heard.estimate.table)
    # If no part differs although the range does, somebody has made keys with equal sums of hashes.
    if 0 < len(differing) <= _CLUSTERED and bits >= _MANY_BITS:
        return Plan(0, dense=True, list_up_to=0)
    differences = estimate(sketch.table, heard.estimate.table)
    if heard.count is not None:
        differences = max(differences, abs(heard.count - sum(part.held for part in parts)))
    number = symbols_for(differences)
    dense, in_parts = number > MAX_SYMBOLS, sum(differing)
    if differing and in_parts * ID_SIZE <= number * SYMBOL_SIZE:
        return Plan(0, dense, in_parts)
    return Plan(0 if dense else number, dense, 0)


_HASHES_A_STEP: Final = 2000
"""Keys that are hashed between two yields."""


@dataclass(slots=True)
class TurnFindings:
    """What a turn of the peer's tells about ids."""

    where: KeyRange = KeyRange(b"", b"")  # noqa: RUF009
    """Where what differs lies, as far as the peer's turn tells."""
    difference: Difference | None = None
    """What the symbols told, if they did."""
    parts: list[Part] = field(default_factory=list)
    """What the hints told."""
    compared_at: int = -1
    """The lanes of all our keys when they were compared."""
    we_lack: list[Ids] = field(default_factory=list)
    """What we lack, for each list; or, of the whole range, what the symbols told. Each id once."""
    asked_in_full: list[tuple[bytes, ...]] = field(default_factory=list)
    """The keys that the peer asks for in full, for each list."""
    failed: Ids = field(default_factory=lambda: NO_IDS)
    """What we lack and could not fetch by its id."""

    def still_lacking(self, index: int) -> Ids:
        """Return what we lack of a list, by its index, and could not fetch."""
        if not len(self.failed):  # the usual case
            return NO_IDS
        return self.we_lack[index][among(self.we_lack[index], self.failed)]

    def leave_out(self, ids: Ids) -> None:
        """Do not lack what we leave out."""
        if len(ids):
            self.we_lack = [lacking[~among(lacking, ids)] for lacking in self.we_lack]


def look_up_lists(
    findings: TurnFindings, keys: OrderedKeys, turn: Iterable[Message], *, unchanged: bool
) -> Iterator[None]:
    """Find which ids of the peer's lists we lack, and the keys that it asks for in full.

    `findings.where` is the session's range before. If `unchanged`, our keys are those of our last
    turn.
    """
    key_range = findings.where
    lower, with_lower, first = key_range.lower, False, key_range.lower
    for message in turn:
        lists = iter(message.lists())
        for index, (upper, say, _) in enumerate(message.gaps.columns()):
            if index % GAPS_A_STEP == 0:
                yield
            upper = upper or key_range.upper
            if say is KEYS or say is LACKING:
                gap, listed = KeyRange(lower, upper), next(lists)
                if say is KEYS:
                    we_lack = yield from not_held(keys, gap, listed.ids, with_lower=with_lower)
                    asked_in_full = NO_KEYS
                else:
                    # If nothing has come, we lack what we lacked in our last turn.
                    check = NO_IDS if unchanged else listed.ids
                    held = yield from find(
                        keys, gap, np.concatenate([check, listed.wanted]), with_lower=with_lower
                    )
                    we_lack, asked_in_full = _split(held, distinct(listed.ids), listed.wanted)
                findings.we_lack.append(we_lack)
                findings.asked_in_full.append(asked_in_full)
                if len(findings.asked_in_full) == 1:  # the first list
                    # A gap has its lower bound, and a range has not. A prefix is less.
                    first = lower[:-1] if with_lower else lower
                findings.where = KeyRange(max(first, key_range.lower), upper)
            lower, with_lower = upper, True


def _split(held: list[tuple[int, bytes]], ids: Ids, wanted: Ids) -> tuple[Ids, tuple[bytes, ...]]:
    """Return the ids of those listed that we lack, and the keys that the peer asks for in full."""
    if not held:
        return ids, NO_KEYS
    sought = set(wanted.tolist())
    asked_in_full = tuple(key for id_, key in held if id_ in sought)
    return ids[~among(ids, np.array([id_ for id_, _ in held], np.uint64))], asked_in_full


def ids_of_keys(keys: Sequence[bytes]) -> Steps[Ids]:
    """Return the ids of some keys, in steps."""
    if not keys:  # the usual case
        return NO_IDS
    ids = []
    for number, key in enumerate(keys):
        if number % _HASHES_A_STEP == _HASHES_A_STEP - 1:
            yield
        ids.append(id_of(key))
    return np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)
