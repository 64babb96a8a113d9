"""A session on `/ceramic/recon/1.2.0`: coded symbols, and ranges where these do not help.

Theory of operation
-------------------
It opens and closes as a session of 1.1.0 does: with a fingerprint of the whole range. A closing
that is wrong is answered with an *estimate*: a table that tells how many keys differ, hints that
tell where, and the first few symbols of a sketch (sketch.py)::

    initiator   range, closing, count
    responder   estimate: table, hints, 8 symbols
    initiator   as many symbols as that many differences need
    responder   the ids of what the initiator lacks; closing
    initiator   agreed

Whoever can decode the difference learns the ids of all keys that the other side lacks, and of all
that it lacks itself. If the 8 symbols are enough, that is the initiator, one turn earlier. A side
fetches the events of ids before it answers; only where that fails, or where it wants to see keys
before events, it asks for them in full (``wanted``). If the symbols are too few after all, the
other side sends half as many again, of its own.

Ranges are cheaper where differences lie close together, which the hints show, where there are few
keys, and where so many differ that it is best to list them. Then the turns are those of 1.1.0, with
ids in the place of keys.

Two keys may have the same id, by chance or because somebody searched for them. They do not decode,
and between ranges they look like one key. So the third closing that is wrong is reconciled with
keys in full, and what ends a session well is a hash of whole keys, as in all versions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np

from recon_node.recon.keys.finger import Finger
from recon_node.recon.keys.ids import find, not_held
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.keys.sketch import (
    ID_SIZE,
    MAX_SYMBOLS,
    Difference,
    Ids,
    Sketch,
    Symbols,
    among,
    decode,
    distinct,
    estimate,
    id_of,
    symbols_for,
)
from recon_node.recon.session import GAPS_A_STEP, Missing, Session, Steps
from recon_node.recon.side import RemoteProtocolError, Side
from recon_node.recon.v1_1.codec import END, FINGERPRINT, Say, fingerprint
from recon_node.recon.v1_1.codec import Message as Message11
from recon_node.recon.v1_1.session import Session11, columns_of
from recon_node.recon.v1_2.codec import (
    HINT_SIZE,
    NO_IDS,
    NOTHING_LISTED,
    SYMBOL_SIZE,
    Estimate,
    Listed,
    Message,
    lists_of,
)
from recon_node.recon.v1_2.reply import FEW, Reply

FIRST_SYMBOLS: Final = 8
"""Symbols beside an estimate: they decode up to about four differences."""
PARTS: Final = 16
"""Parts of the range that an estimate has hints of."""
_MAX_TRIES: Final = 3
"""Openings and closings, of both sides together, up to which a wrong one gets an estimate."""
_MAX_SKETCHED: Final = 1 << 17
"""Maximum keys of a range that is sketched for a peer's sake, if it is not an interest of ours."""
_CLUSTERED: Final = PARTS // 4
"""If at most so many parts differ, although many keys do, these lie close together."""
_MANY: Final = 64
"""From so many differences on it matters whether they lie close together."""
_MORE_SYMBOLS: Final = 1.5
_HASHES_A_STEP: Final = 2000
"""Keys that are hashed between two yields."""
_RESERVE: Final = 1024
"""Bytes of a message that symbols leave to the rest."""


NO_KEYS: Final[tuple[bytes, ...]] = ()


@dataclass(slots=True)
class _Found:
    """What a turn of the peer's tells about ids."""

    difference: Difference | None = None
    """What the symbols told, if they did."""
    lacking: list[Ids] = field(default_factory=list)
    """What we lack, for each list; or, of the whole range, what the symbols told."""
    told: list[tuple[bytes, ...]] = field(default_factory=list)
    """The keys that the peer wants in full, for each list."""
    where: KeyRange = KeyRange(b"", b"")  # noqa: RUF009
    """Where what differs lies, as far as the peer's turn tells."""
    failed: Ids = field(default_factory=lambda: NO_IDS)
    """What we lack and could not fetch by its id."""

    def wanted(self, index: int) -> Ids:
        """Return what we lack of a list, by its index, and could not fetch."""
        return self.lacking[index][among(self.lacking[index], self.failed)]


class Session12(Session[Message]):
    """One side of a session on `/ceramic/recon/1.2.0`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._plain = Session11(side)
        """Checks and keeps what 1.1.0 says as well, and knows when the session ends."""
        self._turn: list[Message] = []
        """What has been heard of the peer's turn."""
        self._found: _Found | None = None
        self._tries = 0
        """Openings and closings of both sides."""
        self._has_closed = False
        """Whether our last turn had one of them."""
        self._symbols_sent = 0
        """Symbols in our last turn."""
        self._keys_then = -1
        """The lanes of all our keys at the time of our last turn."""
        self._dense = False
        """Whether differences are known to lie close together."""
        self._list_up_to = 0
        """Keys of a gap that are listed because symbols would take more bytes."""
        self._undelivered = 0
        """Ids that the peer named, and whose events could not be fetched."""

    def start(self) -> Message:
        """Return the initiator's first message."""
        return self._note_sent([self._with_count(self._plain.start())])[0]

    def receive(self, message: Message) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold."""
        keys = self._plain.receive(message.plain)
        self._check_coded(message)
        self._tries += message.plain.closing is not None
        self._turn.append(message)
        return keys

    def find_missing(self) -> Generator[None, None, Missing | None]:
        """Return what the peer holds and we lack, once its turn is over, in steps."""
        found = self._found = _Found()
        key_range = self.side.key_range
        if key_range is None or not self.side.answer_due:
            return None
        found.where, last = key_range, self._turn[-1]
        if last.symbols is not None:
            found.difference = yield from self._decode(key_range, last.symbols)
            if found.difference is not None:
                found.lacking = [found.difference.theirs]
                if last.estimate is not None:
                    found.where = self._where_they_differ(key_range, last.estimate)
        else:
            yield from self._look_up_lists(found, key_range)
        left_out = yield from self._ids_left_out()
        found.lacking = [each[~among(each, left_out)] for each in found.lacking]
        found.failed = distinct(np.concatenate([NO_IDS, *found.lacking]))
        joined = found.failed.astype("<u8").tobytes()
        ids = [joined[at : at + ID_SIZE] for at in range(0, len(joined), ID_SIZE)]
        return Missing(found.where, ids) if ids else None

    def give_up_ids(self, ids: list[bytes]) -> None:
        """Take note of which ids of ``find_missing`` could not be fetched: ask for their keys.

        Raises:
            RemoteProtocolError: the peer named too many of them.
        """
        assert self._found is not None
        if len(ids) < len(self._found.failed):
            self.side.note_progress()
        self._found.failed = np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)
        self._undelivered += len(ids)
        if self._undelivered > self.side.settings.max_given_up:
            raise RemoteProtocolError(
                f"peer named {self._undelivered} ids for which it delivered no event"
            )

    def respond(self) -> Steps[Message]:
        """Answer the peer's turn."""
        if self.side.answer_due and self._found is None:  # the driver does not fetch by id
            yield from self.find_missing()
        plain_turn = self._plain.take_turn()
        if not plain_turn:
            return []
        answer = self._plain.end_or_trim(plain_turn)
        if answer is not None:
            self._turn, self._found = [], None
            return self._note_sent([self._with_count(answer)])
        messages = yield from self._answer()
        return self._note_sent(messages)

    def _answer(self) -> Steps[Message]:
        turn, self._turn = self._turn, []
        found, self._found = self._found or _Found(), None
        key_range = self.side.key_range
        assert key_range is not None
        last = turn[-1]
        if last.plain.closing is not None and self._may_estimate(key_range, last.count):
            sketch = yield from self.side.keys.sketch(key_range)
            if sketch is not None:
                self._dense = False
                return [_make_estimate(self.side, key_range, sketch)]
        elif last.symbols is not None and found.difference is None:
            symbols = yield from self._more_symbols(key_range, last)
            if symbols is not None:
                return [Message(Message11(), symbols=symbols)]
        elif last.symbols is None and self._symbols_sent:
            self._dense = True  # the peer has seen our estimate, and goes by ranges
        in_full = self._tries > _MAX_TRIES
        reply = Reply(self.side, key_range, self._list_up_to, dense=self._dense, in_full=in_full)
        self._list_up_to = 0
        if found.difference is not None:
            if found.where.lower != key_range.lower:
                reply.agree(found.where.lower)
            end = END if found.where.upper == key_range.upper else found.where.upper
            reply.exchange(end, found.difference.ours, found.wanted(0))
        elif last.estimate is not None:
            self._answer_hints(reply, key_range, last.estimate)
        elif last.symbols is not None:
            reply.narrow_down(END)
        else:
            yield from self._answer_gaps(reply, turn, found)
        return reply.finish()

    def _answer_gaps(self, reply: Reply, turn: list[Message], found: _Found) -> Iterator[None]:
        """Answer what the peer says of gaps, one after the other."""
        at = 0
        lists = [each for message in turn for each in _lists(message)]
        plain_turn = [message.plain for message in turn]
        count = turn[-1].count
        if plain_turn[-1].closing is not None and count == 0:
            reply.answer_list(END, NO_KEYS, NOTHING_LISTED, NO_IDS)
            return
        if plain_turn[-1].closing is not None and count is not None and count <= self._few:
            reply.ask(END)  # so that the peer lists the few keys that it has
            return
        for index, (upper, say, body) in enumerate(columns_of(plain_turn)):
            if reply.is_full:
                reply.ask(END)
                return
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_place()  # the store may have changed
            if say is Say.KEYS:
                reply.answer_list(upper, body, lists[at], found.wanted(at))
            elif say is Say.MORE:
                reply.exchange(upper, NO_IDS, found.wanted(at), found.told[at])
            elif say is FINGERPRINT and isinstance(body, bytes) and reply.differs(upper, body):
                reply.narrow_down(upper)
            else:
                reply.agree(upper)
            at += say is Say.KEYS or say is Say.MORE

    def _answer_hints(self, reply: Reply, key_range: KeyRange, estimate: Estimate) -> None:
        """Answer the hints of an estimate like the fingerprints of its parts."""
        for (upper, differs), _ in self._compare(key_range, estimate):
            if differs:
                reply.narrow_down(upper)
            else:
                reply.agree(upper)

    def _ids_left_out(self) -> Generator[None, None, Ids]:
        """Return the ids of the keys that we leave out: there is no point in asking for them."""
        ids = []
        for number, key in enumerate(self.side.given_up):
            if number % _HASHES_A_STEP == _HASHES_A_STEP - 1:
                yield
            ids.append(id_of(key))
        return np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)

    def _look_up_lists(self, found: _Found, key_range: KeyRange) -> Iterator[None]:
        """Find which ids of the peer's lists we lack, and the keys that it wants in full."""
        lower, with_lower, first = key_range.lower, False, key_range.lower
        for message in self._turn:
            lists = iter(_lists(message))
            for index, (upper, say, _) in enumerate(message.plain.gaps.columns()):
                if index % GAPS_A_STEP == 0:
                    yield
                gap = KeyRange(lower, upper or key_range.upper)
                if say is Say.KEYS or say is Say.MORE:
                    listed = next(lists)
                    if say is Say.KEYS:
                        lacking = yield from not_held(
                            self.side.keys, gap, listed.ids, with_lower=with_lower
                        )
                        looked_up = lacking, NO_KEYS
                    else:
                        looked_up = yield from self._look_up(gap, listed, with_lower=with_lower)
                    found.lacking.append(looked_up[0])
                    found.told.append(looked_up[1])
                    if len(found.told) == 1:  # the first list
                        # A gap has its lower bound, and a range has not. A prefix is less.
                        first = lower[:-1] if with_lower else lower
                    found.where = KeyRange(max(first, key_range.lower), gap.upper)
                lower, with_lower = gap.upper, True

    def _look_up(
        self, gap: KeyRange, listed: Listed, *, with_lower: bool
    ) -> Generator[None, None, tuple[Ids, tuple[bytes, ...]]]:
        """Return the ids that we lack of those told, and the keys that the peer wants in full."""
        # If nothing has come, we lack what we lacked in our last turn.
        ids = NO_IDS if self._keys_then == self.side.keys.total else listed.ids
        sought = np.concatenate([ids, listed.wanted])
        held = yield from find(self.side.keys, gap, sought, with_lower=with_lower)
        wanted = set(listed.wanted.tolist())
        told = tuple(key for each, key in held if each in wanted)
        return listed.ids[~among(listed.ids, np.array([each for each, _ in held], np.uint64))], told

    def _decode(
        self, key_range: KeyRange, theirs: Symbols
    ) -> Generator[None, None, Difference | None]:
        """Return the difference that the peer's symbols tell, if they do."""
        sketch = yield from self.side.keys.sketch(key_range)
        if sketch is None:
            return None
        for difference in decode(sketch.symbols.first(len(theirs)) - theirs):
            if difference is not None:
                return difference
            yield
        return None

    def _more_symbols(
        self, key_range: KeyRange, heard: Message
    ) -> Generator[None, None, Symbols | None]:
        """Return as many of our symbols as it takes, or None if ranges are better."""
        sketch = yield from self.side.keys.sketch(key_range)
        if sketch is None or heard.symbols is None:
            return None
        if heard.estimate is not None:
            number = self._symbols_needed(key_range, heard, sketch)
        elif self._symbols_sent == FIRST_SYMBOLS:  # else the peer's were the second attempt
            number = ceil(len(heard.symbols) * _MORE_SYMBOLS)
        else:
            return None
        most = (self.side.settings.message_bytes - _RESERVE) // SYMBOL_SIZE
        if not FIRST_SYMBOLS < number <= min(MAX_SYMBOLS, most):
            return None
        return sketch.symbols.first(number).copy()

    def _symbols_needed(self, key_range: KeyRange, heard: Message, sketch: Sketch) -> int:
        """Return how many symbols to send after the peer's estimate; 0 if ranges are better."""
        assert heard.estimate is not None
        differences = estimate(sketch.table, heard.estimate.table)
        if heard.count is not None:
            differences = max(differences, abs(heard.count - self.side.keys.count(key_range)))
        number = symbols_for(differences)
        parts = [keys for (_, differs), keys in self._compare(key_range, heard.estimate) if differs]
        lies_close = len(parts) <= _CLUSTERED and differences >= _MANY
        self._dense = lies_close or number > MAX_SYMBOLS
        if sum(parts) * ID_SIZE <= number * SYMBOL_SIZE:
            self._list_up_to = sum(parts)
            return 0
        return 0 if self._dense else number

    def _compare(
        self, key_range: KeyRange, theirs: Estimate
    ) -> Iterator[tuple[tuple[bytes, bool], int]]:
        """Yield the upper bound of each part, whether it differs, and the number of our keys."""
        finger = Finger(self.side.keys)
        start = finger.up_to(key_range.lower)
        for upper, hint in zip((*theirs.bounds, END), theirs.hints, strict=True):
            end = finger.left_of(upper or key_range.upper)
            differs = fingerprint(end - start)[:HINT_SIZE] != hint
            yield (upper, differs), end - start >> COUNT_SHIFT
            start = end

    def _where_they_differ(self, key_range: KeyRange, theirs: Estimate) -> KeyRange:
        """Return the smallest range with all parts that differ."""
        lower, first, last = key_range.lower, None, key_range.upper
        for (upper, differs), _ in self._compare(key_range, theirs):
            if differs:
                first = lower if first is None else first
                last = upper or key_range.upper
            lower = upper
        return key_range if first is None else KeyRange(first, last)

    def _may_estimate(self, key_range: KeyRange, theirs: int | None) -> bool:
        """Return whether to answer a wrong closing with an estimate."""
        ours = self.side.keys.count(key_range)
        few = min(ours, ours if theirs is None else theirs)
        many = 0 if theirs is None else abs(ours - theirs)
        return (
            self._tries <= _MAX_TRIES
            and few > self._few
            and symbols_for(many) <= MAX_SYMBOLS
            and (ours <= _MAX_SKETCHED or key_range in self.side.interests)
        )

    @property
    def _few(self) -> int:
        """Keys that are listed at once."""
        return FEW * max(1, self.side.settings.list_threshold)

    def _with_count(self, plain: Message11) -> Message:
        """Put the number of our keys beside an opening."""
        if plain.key_range is None:
            return Message(plain)
        return Message(plain, count=self.side.keys.count(plain.key_range))

    def _note_sent(self, turn: list[Message]) -> list[Message]:
        """Take note of what our turn is about."""
        last = turn[-1]
        self._keys_then = self.side.keys.total
        self._has_closed = last.plain.closing is not None
        self._tries += self._has_closed
        self._symbols_sent = 0 if last.symbols is None else len(last.symbols)
        return turn

    def _check_coded(self, message: Message) -> None:
        """Check that an estimate or symbols come where they are due, and alone.

        Raises:
            RemoteProtocolError: they do not.
        """
        if message.estimate is None and message.symbols is None:
            return
        plain = message.plain
        if self._turn or plain != Message11():
            raise RemoteProtocolError("peer sent symbols beside something else")
        if message.symbols is None or (message.estimate is not None) != self._has_closed:
            raise RemoteProtocolError("peer sent symbols, or an estimate, where none was due")
        if message.estimate is None:
            if not self._symbols_sent:
                raise RemoteProtocolError("peer sent symbols where none were due")
            return
        key_range, bounds = self.side.key_range, message.estimate.bounds
        assert key_range is not None
        if bounds and not (key_range.lower < bounds[0] and bounds[-1] < key_range.upper):
            raise RemoteProtocolError("peer divides what is not in the range")


def _make_estimate(side: Side, key_range: KeyRange, sketch: Sketch) -> Message:
    finger = Finger(side.keys)
    first = start = finger.up_to(key_range.lower)
    last = finger.left_of(key_range.upper)
    bounds, hints = [], []
    for bound, end in finger.cuts(start, last, PARTS):
        bounds.append(bound)
        hints.append(fingerprint(end - start)[:HINT_SIZE])
        start = end
    hints.append(fingerprint(last - start)[:HINT_SIZE])
    return Message(
        Message11(),
        count=last - first >> COUNT_SHIFT,
        estimate=Estimate(sketch.table, tuple(bounds), tuple(hints)),
        symbols=sketch.symbols.first(FIRST_SYMBOLS).copy(),
    )


def _lists(message: Message) -> Sequence[Listed]:
    """Return what each list of a message has beside keys in full."""
    return message.listed or [NOTHING_LISTED] * lists_of(message.plain.gaps)
