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

An opening of a range with a handful of keys lists their ids. So where these are all that is new, as
when a key has just been added and is pushed, the answer is AGREED: one round trip.

Two keys may have the same id, by chance or because somebody searched for them. They do not decode,
and between ranges they look like one key. So the third closing that is wrong is reconciled with
keys in full, and what ends a session well is a hash of whole keys, as in all versions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from math import ceil
from typing import Final

import numpy as np

from recon_node.recon.keys.decoding import Difference, decode
from recon_node.recon.keys.ids import groups, in_key_order
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sketch import (
    ID_SIZE,
    MAX_SYMBOLS,
    NO_IDS,
    Symbols,
    at_least,
    symbols_for,
)
from recon_node.recon.session import GAPS_A_STEP, Missing, Session, Steps
from recon_node.recon.side import RemoteProtocolError, Side
from recon_node.recon.v1_1.codec import END, FINGERPRINT, KEYS, MORE, Gaps
from recon_node.recon.v1_1.codec import Message as Message11
from recon_node.recon.v1_1.reply import columns_of
from recon_node.recon.v1_1.session import Session11
from recon_node.recon.v1_2.codec import (
    NOTHING_LISTED,
    SYMBOL_SIZE,
    Listed,
    Message,
)
from recon_node.recon.v1_2.estimates import (
    FIRST_SYMBOLS,
    compare,
    make_estimate,
    plan,
    where_they_differ,
)
from recon_node.recon.v1_2.lists import NO_KEYS, Found, ids_of_keys, lists_in, look_up_lists
from recon_node.recon.v1_2.reply import FEW, Reply

_MAX_TRIES: Final = 3
"""Openings and closings, of both sides together, up to which a wrong one gets an estimate."""
_MAX_SKETCHED: Final = 1 << 17
"""Maximum keys of a range that is sketched for a peer's sake, if it is not an interest of ours."""
_LISTED_AT_ONCE: Final = 16
"""Keys up to which an opening lists them."""
_MORE_SYMBOLS: Final = 1.5
_RESERVE: Final = 1024
"""Bytes of a message that symbols leave to the rest."""


class Session12(Session[Message]):
    """One side of a session on `/ceramic/recon/1.2.0`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._plain = Session11(side)
        """Checks and keeps what 1.1.0 says as well, and knows when the session ends."""
        self._turn: list[Message] = []
        """What has been heard of the peer's turn."""
        self._found: Found | None = None
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
        return self._note_sent([self._open(self._plain.start())])[0]

    def receive(self, message: Message) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold."""
        keys = self._plain.receive(message.plain)
        self._check_coded(message)
        self._tries += message.plain.closing is not None
        self._turn.append(message)
        return keys

    def find_missing(self) -> Generator[None, None, Missing | None]:
        """Return what the peer holds and we lack, once its turn is over, in steps."""
        found = self._found = Found()
        key_range, keys = self.side.key_range, self.side.keys
        if key_range is None or not self.side.answer_due:
            return None
        found.where, last = key_range, self._turn[-1]
        if self._turn[0].plain.key_range not in (None, key_range):
            return None  # to be trimmed: what it lists may lie elsewhere
        if last.symbols is not None:
            found.difference = yield from self._decode(key_range, last)
            if last.estimate is not None:
                found.parts = compare(keys, key_range, last.estimate)
                found.compared_at = keys.total
            if found.difference is not None:
                ours, theirs = found.difference
                ours = yield from in_key_order(keys, key_range, ours)  # symbols have no order
                found.difference = Difference(ours, theirs)
                found.lacking = [theirs]
                found.where = where_they_differ(key_range, found.parts)
        else:
            unchanged = self._keys_then == keys.total
            yield from look_up_lists(found, keys, self._turn, unchanged=unchanged)
        if not found.lacking:
            return None
        found.failed = found.all_lacking((yield from ids_of_keys(self.side.given_up)))
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
        failed = np.frombuffer(b"".join(ids), "<u8").astype(np.uint64) if ids else NO_IDS
        self._found.failed = failed
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
            return self._note_sent([self._open(answer)])
        messages = yield from self._answer()
        return self._note_sent(messages)

    def _answer(self) -> Steps[Message]:
        turn, self._turn = self._turn, []
        found, self._found = self._found or Found(), None
        key_range = self.side.key_range
        assert key_range is not None
        last = turn[-1]
        has_closed = last.plain.closing is not None and not _opens_with_list(last)
        if has_closed and self._may_estimate(key_range, last.count):
            sketch = yield from self.side.keys.sketch(key_range)
            if sketch is not None:
                self._dense = False
                return [make_estimate(self.side.keys, key_range, sketch)]
        elif last.symbols is not None and found.difference is None:
            symbols = yield from self._more_symbols(key_range, last, found)
            if symbols is not None:
                return [Message(Message11(), symbols=symbols)]
        elif last.symbols is None and self._symbols_sent:
            self._dense = True  # the peer has seen our estimate, and goes by ranges
        in_full = self._tries > _MAX_TRIES
        reply = Reply(self.side, key_range, self._list_up_to, dense=self._dense, in_full=in_full)
        self._list_up_to = 0
        if found.difference is not None:
            differing = [part for part in found.parts if part.differs]
            if differing and differing[0].lower != key_range.lower:
                reply.agree(differing[0].lower)
            end = END if found.where.upper == key_range.upper else found.where.upper
            reply.exchange(end, found.difference.ours, found.wanted(0))
        elif last.estimate is not None:
            keys = self.side.keys
            unchanged = found.compared_at == keys.total
            parts = found.parts if unchanged else compare(keys, key_range, last.estimate)
            reply.answer_hints(parts)
        elif last.symbols is not None:
            reply.narrow_down(END)
        else:
            yield from self._answer_gaps(reply, turn, found)
        return reply.finish()

    def _answer_gaps(self, reply: Reply, turn: list[Message], found: Found) -> Iterator[None]:
        """Answer what the peer says of gaps, one after the other."""
        at = 0
        lists = [each for message in turn for each in lists_in(message)]
        last, count = turn[-1], turn[-1].count
        if _opens_with_list(last):
            columns = last.plain.gaps.columns()
        elif last.plain.closing is not None and count == 0:
            reply.answer_list(END, NO_KEYS, NOTHING_LISTED, NO_IDS)
            return
        elif last.plain.closing is not None and count is not None and count <= self._few:
            reply.ask(END)  # so that the peer lists the few keys that it has
            return
        else:
            columns = columns_of([message.plain for message in turn])
        for index, (upper, say, body) in enumerate(columns):
            if reply.is_full:
                reply.ask(END)
                return
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_place()  # the store may have changed
            if say is KEYS:
                reply.answer_list(upper, body, lists[at], found.wanted(at))
            elif say is MORE:
                reply.exchange(upper, NO_IDS, found.wanted(at), found.told[at])
            elif say is FINGERPRINT and isinstance(body, bytes) and reply.differs(upper, body):
                reply.narrow_down(upper)
            else:
                reply.agree(upper)
            at += say is KEYS or say is MORE

    def _decode(
        self, key_range: KeyRange, heard: Message
    ) -> Generator[None, None, Difference | None]:
        """Return the difference that the peer's symbols tell, if they do."""
        sketch, theirs = (yield from self.side.keys.sketch(key_range)), heard.symbols
        if sketch is None or theirs is None:
            return None
        if heard.estimate and at_least(sketch.table, heard.estimate.table) > len(theirs):
            return None  # a symbol tells one key at most
        for difference in decode(sketch.symbols.first(len(theirs)) - theirs):
            if difference is not None:
                return difference
            yield
        return None

    def _more_symbols(
        self, key_range: KeyRange, heard: Message, found: Found
    ) -> Generator[None, None, Symbols | None]:
        """Return as many of our symbols as it takes, or None if ranges are better."""
        sketch = yield from self.side.keys.sketch(key_range)
        if sketch is None or heard.symbols is None:
            return None
        if heard.estimate is not None:
            chosen = plan(sketch, found.parts, heard)
            number, self._dense = chosen.symbols, chosen.dense
            self._list_up_to = chosen.list_up_to
        elif self._symbols_sent == FIRST_SYMBOLS:  # else the peer's were the second attempt
            number = ceil(len(heard.symbols) * _MORE_SYMBOLS)
        else:
            return None
        most = (self.side.settings.message_bytes - _RESERVE) // SYMBOL_SIZE
        if not FIRST_SYMBOLS < number <= min(MAX_SYMBOLS, most):
            return None
        return sketch.symbols.first(number).copy()

    def _may_estimate(self, key_range: KeyRange, theirs: int | None) -> bool:
        """Return whether to answer a wrong closing with an estimate."""
        ours = self._plain.held
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

    def _open(self, plain: Message11) -> Message:
        """Put the number of our keys beside an opening, and their ids if they are few."""
        if plain.key_range is None:
            return Message(plain)
        count = self._plain.held
        if not 0 < count <= _LISTED_AT_ONCE:
            return Message(plain, count=count)
        ids = [group.ids for group in groups(self.side.keys, plain.key_range)]
        with_list = replace(plain, gaps=Gaps([END], [KEYS], [NO_KEYS]))
        return Message(with_list, count=count, listed=[Listed(np.concatenate(ids), NO_IDS)])

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


def _opens_with_list(message: Message) -> bool:
    """Return whether a message is an opening that lists keys beside its fingerprint."""
    return message.plain.key_range is not None and bool(message.plain.gaps.uppers)
