"""One reconciliation of one key range with one peer (CIP-124, "Interactive Sync Algorithm").

Theory of operation
-------------------
Two sides take turns in sending a message that covers the session's range. For each gap between two
bounds of a message they compare what it says with their own keys in that gap: where the hashes are
equal they agree; where they differ, the answer splits the gap, lists its keys, or asks for them.
The answers for all gaps go into one message. What messages look like is up to the protocol version,
a folder beside this file. `Side` here is what each version's session is built on. It knows whose
turn it is, which range is being reconciled, and what the peer may not do. It is pure bookkeeping,
as h11's connection state is: a session reports each message to it, and it raises LocalProtocolError
for what this side may not do, RemoteProtocolError for what the peer may not do.

A key that a peer lists is not ours until its event is here and valid. So before a session answers,
it has the events of new keys fetched. A key whose event does not arrive is *left out*. The peer is
to blame if it did not supply the event (*not supplied*), and is not if this node refuses it or does
not want it (*unwanted*).

A turn may be too long for one message. Then the peer says that its turn continues, and the answer
is due only after the last message (`Side.answer_due`). It may be several messages as well.

A side states only what it holds, so its hashes of gaps never count a key that it left out. It
remembers these keys to fetch none of them again, and to see that a gap in which the peer holds
exactly our keys and these has nothing left to learn. How a session over such keys ends, and what it
says about them, is up to the version.

Why a session ends: a gap that differs is answered by a split into smaller gaps, by a list, or by a
request for a list. So after O(log n) messages without a listed key, every difference is inside a
gap that gets listed, and each listed key is one more key that both sides hold. A peer that keeps a
session going without either is stopped after `max_idle_rounds`. The store may change under the
session: a key added meanwhile makes its gap differ, and is either sent in this session or left for
the next one.

Why both sides then hold the same keys: a session ends well only when both have stated the same hash
of the whole range, or when each knows that they differ only in keys that one of them left out. Two
different sets with the same hash (a sum of sha256 hashes in 1.0.0, an LtHash in 1.2.0) are not to
be expected. So the two agree on every other key that either held when the other's last list was
answered. Keys that arrive later are left for the next session. Fan-out, threshold and page size
decide how soon a session ends, not with what result, so the two sides' settings may differ. (1.2.0
allows one more end, described there, for a node that receives keys faster than its sessions
finish.)

Trimming: an initiator asks for one range of its interests. The responder answers for its first
overlap with that range, or refuses if there is none. `Side.remaining` is then the part above the
overlap, for the next session.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import ceil, log
from typing import Final, Generic, Protocol, Self, TypeVar

from recon_node.base.steps import Steps
from recon_node.recon.actions import Failed, Fetch, Session
from recon_node.recon.keys.kept_sums import HASH_COST
from recon_node.recon.keys.key_store import KeyView
from recon_node.recon.keys.lookups import KeyCursor
from recon_node.recon.keys.ordered_keys import KeyRange, intersect_ranges, merge_ranges
from recon_node.recon.keys.sha256a import lanes_of

M = TypeVar("M")
GAPS_PER_STEP: Final = 32
"""Gaps answered between two yields."""
HASHED_PER_STEP: Final = 1000
"""Keys that are hashed between two yields."""


class LocalProtocolError(Exception):
    """This side used a session in a way that the protocol does not allow: a bug of ours."""


class RemoteProtocolError(Exception):
    """The other side broke the protocol; the text says what it sent and where. The session ends."""


class _State(Enum):
    __hash__ = object.__hash__  # Enum's is slow, and each message takes several

    START = "the first message is to be sent"
    LISTENING = "the peer's message is due"
    RESPONDING = "the answer to the peer's turn is due"
    DONE = "the session has ended well"


_OUT_OF_TURN: Final = {
    _State.START: "the peer spoke first in a session that it did not start",
    _State.RESPONDING: "the peer spoke again before its turn was answered",
    _State.DONE: "the peer sent a message after the end of the session",
}


_MIN_PARTS: Final = 2
_ROUNDING: Final = 1e-9
"""Slack for logarithms that are whole numbers but for their last bits."""
_MARGIN: Final = 0.5
"""Parts are not quite equal: we aim at gaps of half the threshold, so that nearly all are below it.
"""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session splits and lists, and what bounds it. The two sides' settings may differ."""

    fan_out: int = 8
    """Maximum parts that a differing gap is split into: see `parts`."""
    list_threshold: int = 8
    """A differing gap with at most this many keys is listed instead of split."""
    page_keys: int = 4096
    """Maximum keys listed for one gap in one message."""
    page_ids: int = 32_768
    """Maximum ids listed for one gap in one message, where the version lists ids: they take a
    twelfth of the bytes of keys."""
    message_bytes: int = 1 << 20
    """Maximum bytes of a message: what does not fit is covered by one hash, for a later round."""
    max_idle_rounds: int = 64
    """Maximum rounds in a row in which no key is sent or learned; then the peer is cut off."""
    max_not_supplied: int = 1000
    """Maximum keys that a peer may list without delivering events for them."""

    def parts(self, count: int) -> int:
        """Return how many parts a gap of `count` keys, above the threshold, is split into.

        `fan_out` decides how many rounds it takes until gaps are short enough to be listed. We
        split no finer than that number of rounds requires, because fewer parts are fewer bytes. So
        a fan-out of 8 takes fewer rounds than a constant 4, for about the same bytes.
        """
        return _parts(count, self.fan_out, self.list_threshold)


@lru_cache(maxsize=4096)  # a turn has thousands of gaps of about the same size
def _parts(count: int, fan_out: int, list_threshold: int) -> int:
    ratio = count / max(1, list_threshold * _MARGIN)
    levels = max(1, ceil(log(ratio, fan_out) - _ROUNDING))
    finest: int = ceil(ratio ** (1 / levels) - _ROUNDING)
    return min(fan_out, max(_MIN_PARTS, finest))


DEFAULT_SETTINGS = SessionSettings()


_NO_RANGE: Final = KeyRange(b"", b"")
_TIMES_LISTED: Final = 2
"""How many times over we list our keys before it no longer counts as progress."""


class Side:
    """What one side of a session knows, whatever the version: turns, range, keys and bounds.

    Made by `initiator` or `responder`. The keys that it holds may change meanwhile.
    """

    def __init__(
        self,
        keys: KeyView,
        ranges: Iterable[KeyRange],
        settings: SessionSettings = DEFAULT_SETTINGS,
        *,
        initiates: bool,
    ) -> None:
        self.keys = keys
        self.interests = merge_ranges(ranges)
        if initiates and not self.interests:
            raise LocalProtocolError("a session needs a range that can hold a key")
        self.settings = settings
        self.initiates = initiates
        """Whether this side speaks first."""
        self.key_range: KeyRange | None = self.interests[0] if initiates else None
        """The range being reconciled: first the one asked for, then the responder's overlap with
        it; None if the two sides have no interest in common."""
        self.asked: KeyRange | None = self.key_range
        """The range that the initiator asked for, which is one of its interests."""
        self.news: Sequence[KeyRange] = ()
        """Initiator: where its new keys are, which may be sent at once."""
        self.remaining: KeyRange | None = None
        """Initiator: what lies above the responder's overlap, for a separate session."""
        self.rounds = 0
        """Turns that the peer has taken."""
        self.learned = False
        """Whether the peer's turn listed keys that were new to us."""
        self.left_out_keys: list[bytes] = []
        """Keys of the peer whose events it did not supply, or are unwanted, ascending. Some may
        have arrived since."""
        self._unwanted = 0
        """How many of them are unwanted."""
        self._left_out: tuple[tuple[object, ...], int] = (), 0
        """How many of them there were when they were last counted, and what that depends on."""
        self.left_out_by_peer = 0
        """How many keys of ours the peer left out, as far as we know."""
        self._state = _State.START if initiates else _State.LISTENING
        self._messages_received = 0
        """Of the peer's current turn."""
        self._idle_rounds = 0
        self._keys_listed = 0
        self.listed_in_turn = 0
        """Keys that our last turn listed, or the one that is being written."""
        self._cursor = KeyCursor(keys)

    @classmethod
    def initiator(
        cls,
        keys: KeyView,
        key_range: KeyRange,
        settings: SessionSettings = DEFAULT_SETTINGS,
        news: Sequence[KeyRange] = (),
    ) -> Self:
        """Make the side that asks for a range and speaks first; it has new keys in `news`.

        Raises:
            LocalProtocolError: the range cannot hold a key.
        """
        side = cls(keys, [key_range], settings, initiates=True)
        side.news = news
        return side

    @classmethod
    def responder(
        cls,
        keys: KeyView,
        interests: Iterable[KeyRange],
        settings: SessionSettings = DEFAULT_SETTINGS,
    ) -> Self:
        """Make the side that answers, within its interests."""
        return cls(keys, interests, settings, initiates=False)

    @property
    def done(self) -> bool:
        """Whether the session has ended well: nothing more is sent or expected."""
        return self._state is _State.DONE

    @property
    def answer_due(self) -> bool:
        """Whether the peer has said all of its turn, so that it is ours."""
        return self._state is _State.RESPONDING

    @property
    def awaits_answer(self) -> bool:
        """Whether the peer's next message is the first of its answer to a turn of ours."""
        return not self._messages_received and (self.initiates or self.rounds > 0)

    def start(self) -> None:
        """Take the first turn; LocalProtocolError if it is not ours or was taken before."""
        self._advance("start", _State.LISTENING, _State.START)

    def receive(self, *, continues: bool = False, max_turn: int = 1) -> None:
        """Take note of a message, before it is read.

        Args:
            continues: whether the peer's turn continues in another message.
            max_turn: how many messages the version allows in a turn.

        Raises:
            RemoteProtocolError: it is not the peer's turn, or the turn is too long.
        """
        if self._state in _OUT_OF_TURN:
            raise RemoteProtocolError(_OUT_OF_TURN[self._state])
        if not self._messages_received:
            self.rounds += 1
            self._idle_rounds += 1
            self.learned = False
        self._messages_received += 1
        if continues and self._messages_received >= max_turn:
            raise RemoteProtocolError(f"the peer sent a turn of more than {max_turn} messages")
        if not continues:
            self._state = _State.RESPONDING

    def learn(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return which of the keys that a message lists are new, so that they are to be fetched.

        New keys count as progress. Ascending keys are looked up in less time.

        Raises:
            RemoteProtocolError: the peer has made no progress for too many rounds.
        """
        new = self._cursor.not_held(keys)
        if self.left_out_keys:
            new = [key for key in new if not self._is_left_out(key)]
        if new:
            self.note_progress()
        if self._idle_rounds > self.settings.max_idle_rounds:
            raise RemoteProtocolError(f"the peer made no progress in {self._idle_rounds} rounds")
        return new

    def note_progress(self) -> None:
        """Count the peer's turn as progress: it listed something new. `learn` does so for keys."""
        self.learned = True
        self._idle_rounds = 0

    def begin_without(self, unwanted: list[bytes]) -> None:
        """Leave out such keys before the session starts, so that the peer need not list them.

        Only in some versions (`reports_left_out`). `unwanted` are known to be at the peer, and
        ascend. They may be many, and cost the peer nothing: so none is looked at.
        """
        self.left_out_keys, self._unwanted = unwanted, len(unwanted)

    def leave_out_unwanted(self, keys: Iterable[bytes]) -> None:
        """Leave out keys whose events this side refuses or does not want: the peer may take them.

        The driver must limit their number.
        """
        new = [*dict.fromkeys(keys)]
        if self.left_out_keys:
            new = [key for key in new if not self._is_left_out(key)]
        self._unwanted += len(new)
        self.left_out_keys = sorted([*self.left_out_keys, *sorted(new)])  # merges two runs

    def leave_out_not_supplied(self, keys: Iterable[bytes]) -> None:
        """Leave out keys that the peer listed, and whose valid events it did not supply.

        Keys that are left out already, as unwanted, do not count here.

        Raises:
            RemoteProtocolError: the peer has listed too many of them.
        """
        for key in keys:
            if key not in self.keys and not self._is_left_out(key):
                insort(self.left_out_keys, key)
        not_supplied = len(self.left_out_keys) - self._unwanted
        if not_supplied > self.settings.max_not_supplied:
            raise RemoteProtocolError(
                f"the peer listed {not_supplied} keys for which it delivered no event"
            )

    def respond(self) -> bool:
        """Take our turn, or raise LocalProtocolError; return False if the session is done."""
        if self.done:
            return False
        self._advance("respond", _State.LISTENING, _State.RESPONDING)
        self._messages_received = 0
        self.listed_in_turn = 0
        return True

    def finish(self) -> None:
        """End the session well."""
        self._advance("finish", _State.DONE, _State.LISTENING, _State.RESPONDING)

    def finish_refused(self) -> None:
        """End an initiator's session because its range does not interest the peer."""
        self.key_range = None
        self.finish()

    def count_listed(self, keys: int) -> None:
        """Count listed keys as progress, unless the peer asks for the same ones again and again."""
        self._keys_listed += keys
        self.listed_in_turn += keys
        if keys and self._keys_listed <= _TIMES_LISTED * len(self.keys):
            self._idle_rounds = 0

    def settle_range(
        self, theirs: KeyRange, may_extend: Callable[[bytes], bool] = lambda bound: False
    ) -> None:
        """Fix the session's range by the range that a message is about, or check it.

        Args:
            theirs: the range of the message.
            may_extend: returns whether the peer may answer for more than was asked at a bound.

        Raises:
            RemoteProtocolError: the message is not about the session's range.
        """
        if theirs.is_empty:
            raise RemoteProtocolError("the peer ended the range in the middle of the session")
        if self.asked is None:
            self.asked = theirs
            self.key_range = next(iter(intersect_ranges(self.interests, [theirs])), None)
            return
        assert self.key_range is not None
        ours = self.key_range
        may_trim = self.initiates and self.rounds == 1
        lower_fits = theirs.lower == ours.lower or (
            may_trim if theirs.lower > ours.lower else may_extend(ours.lower)
        )
        upper_fits = theirs.upper == ours.upper or (
            may_trim if theirs.upper < ours.upper else may_extend(ours.upper)
        )
        if not (lower_fits and upper_fits):
            raise RemoteProtocolError(
                f"the peer answered for {_show(theirs)}, which is not within {_show(ours)}"
            )
        self.key_range = theirs
        if may_trim and theirs.upper < ours.upper:
            self.remaining = KeyRange(theirs.upper, ours.upper)

    @property
    def left_out(self) -> int:
        """Number of the keys left out of the session's range that have not arrived since."""
        if self._left_out[0] != self._left_out_depends_on:
            deque(self.left_out_parts(len(self.left_out_keys)), maxlen=0)
        return self._left_out[1]

    def left_out_parts(self, size: int) -> Iterator[list[bytes]]:
        """Yield the keys left out of the session's range that have not arrived since, in parts.

        There can be very many. Each part is of `size` keys, some of which may have arrived.
        """
        depends_on, number, keys = self._left_out_depends_on, 0, self.left_out_keys
        lower, upper = self.key_range or _NO_RANGE
        start, end = bisect_right(keys, lower), bisect_left(keys, upper)
        for at in range(start, end, max(1, size)):
            part = [key for key in keys[at : min(at + size, end)] if key not in self.keys]
            number += len(part)
            yield part
        self._left_out = depends_on, number

    @property
    def _left_out_depends_on(self) -> tuple[object, ...]:
        """What `left_out` depends on: it is counted again when this has changed."""
        return self.key_range, len(self.left_out_keys), self.keys.version

    def left_out_lanes(
        self, gap: KeyRange, *, with_lower: bool = False, salt: bytes = b""
    ) -> Steps[int]:
        """Return the lanes of the keys left out of a gap that have not arrived since, each preceded
        by a salt, in steps; 0 if there are none.

        Without a key that is the gap's lower bound, unless `with_lower`.
        """
        if not self.left_out_keys:
            return 0
        start = (bisect_left if with_lower else bisect_right)(self.left_out_keys, gap.lower)
        end = bisect_left(self.left_out_keys, gap.upper, start)
        keys = self.left_out_keys[start:end]
        return (yield from lanes_in_steps(self.keys, keys, salt, unless_held=True))

    def _is_left_out(self, key: bytes) -> bool:
        at = bisect_left(self.left_out_keys, key)
        return at < len(self.left_out_keys) and self.left_out_keys[at] == key

    def _advance(self, what: str, after: _State, *before: _State) -> None:
        """Go from one of some states to another, or raise LocalProtocolError."""
        if self._state not in before:
            raise LocalProtocolError(f"cannot {what} when {self._state.value}")
        self._state = after


def lanes_in_steps(
    store: KeyView, keys: Sequence[bytes], salt: bytes = b"", *, unless_held: bool = False
) -> Steps[int]:
    """Return the lanes of some keys, each preceded by a salt, in steps that the peer pays for."""
    lanes = 0
    for start in range(0, len(keys), HASHED_PER_STEP):
        if start:
            yield
        part = keys[start : start + HASHED_PER_STEP]
        store.session_cost += HASH_COST * len(part)
        lanes += sum(lanes_of(salt + key) for key in part if not (unless_held and key in store))
    return lanes


def _show(key_range: KeyRange) -> str:
    return f"({key_range.lower.hex()}, {key_range.upper.hex()})"


class TurnSession(Session[M], Protocol):
    """A session in which the sides take turns."""

    side: Side
    """Whose turn it is, the range, and what has been learned so far."""

    @property
    def initiates(self) -> bool:
        """Whether this side speaks first."""
        return self.side.initiates

    @property
    def done(self) -> bool:
        """Whether the session has ended well."""
        return self.side.done

    @property
    def rounds(self) -> int:
        """Turns that the peer has taken."""
        return self.side.rounds

    def end_of_stream(self) -> bool:
        """Return whether the session had ended; only some versions end so."""
        return self.side.done


@dataclass(frozen=True, slots=True)
class Version(Generic[M]):
    """A version of the protocol: its libp2p protocol id, its sessions, and its messages' codec."""

    id: str
    session: Callable[[Side], TurnSession[M]]
    encode: Callable[[M], bytes]
    """Encodes a message as the bytes of one frame."""
    decode: Callable[[bytes], M]
    """Decodes the bytes of one frame. Raises RemoteProtocolError."""
    weigh: Callable[[M], int]
    """Returns about how many bytes of memory a message takes."""
    keeps_stream: bool = False
    """Whether a stream may carry another session after one that ended well."""
    reports_left_out: bool = False
    """Whether a side reports that it left keys out, so that it may leave them out before they are
    listed. Otherwise only a peer that has listed a key understands that it is left out."""


FETCHED_AT_ONCE: Final = 32_768
"""Events of a list that are fetched together. The next ones are asked for when these are written:
the larger the part, the fewer the moments in which neither network nor disk has work."""
LEARNED_PER_STEP: Final = 4096
"""Keys of a list that are compared with our own between two yields."""


def fetch(side: Side, keys: list[bytes]) -> Generator[Fetch, Failed, None]:
    """Have the events of keys fetched that a peer listed; leave out those that could not be.

    They are fetched in parts of `FETCHED_AT_ONCE`: a short message can list very many keys, and a
    peer that does not have their events is cut off after the first part.
    """
    for start in range(0, len(keys), FETCHED_AT_ONCE):
        failed = yield Fetch(keys[start : start + FETCHED_AT_ONCE])
        side.leave_out_unwanted(failed.unwanted)
        side.leave_out_not_supplied(failed.keys)
