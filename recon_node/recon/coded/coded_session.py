"""A session on `/ceramic/recon/1.2.0`: coded symbols, and ranges where these do not help.

Theory of operation
-------------------
It opens with a range and the digest of an LtHash of all keys in it. A digest that is right is
answered with AGREED, so that two sides in sync say some 100 bytes and 2. One that is wrong is
answered with an *estimate*: a table that shows how many keys differ, hints that show where, and the
first few symbols of a sketch (sums.py)::

    initiator   range, closing, count
    responder   estimate: table, hints, 8 symbols
    initiator   as many symbols as that many differences need
    responder   the ids of what the initiator lacks; closing
    initiator   agreed

Whoever can decode the difference learns the ids of all keys that the other side lacks, and of all
that it lacks itself. If the 8 symbols are enough, that is the initiator, one turn earlier. A side
fetches the events of ids before it answers; only where that fails, or where it wants to see keys
before events, it asks for them in full (`wanted`). If the symbols are too few after all, the
other side sends half as many again, of its own.

Ranges are cheaper where differences lie close together, which the hints show, where there are few
keys, and where so many differ that it is best to list them:

===========================  ================================================================
what the peer says of a gap  the answer for that gap
===========================  ================================================================
AGREED                       agreed
FINGERPRINT, equal to ours   agreed; likewise one of our keys and those that we left out
FINGERPRINT, another         KEYS if there are few, else FINGERPRINTs of equal parts, divided
                             by the shortest strings that separate them
KEYS                         LACKING: keys of ours that the peer lacks; agreed if it lacks none
LACKING                      agreed
===========================  ================================================================

Neighbouring gaps that are agreed on are merged, and cost nothing at the end of a message. A side
that has nothing left to ask *closes* with the digest of the whole range, including all that it has
just sent. A closing can be wrong because a key arrived meanwhile, on either side. The sides then
reconcile the whole range again. A side does so for `_MAX_WRONG` openings and closings of its peer.
What is new after that is left for the next session, because a busy node would never end this one.

An opening of a range with a handful of keys lists their ids. So where these are all that is new, as
when a key has just been added and is pushed, the answer is AGREED: one round trip.

Every hash is of the sender's own keys. Keys of the peer whose events we did not get are
*left out*: gaps are agreed on without them, and their number, and the digest of our keys and them
together, accompany the closing. A closing is right if that union and ours are equal: then each side
knows what the other holds, and they differ only in keys that one of them left out. AGREED repeats
how many its sender left out. So refused keys take no extra turn.

What comes after what: a turn is of one of the kinds of `Turn`, as its last message shows, and
`_MAY_ANSWER` has the kinds that may answer it. So the kind of our last turn is the state of a
session. What also matters is how often digests were wrong: only then are fingerprints salted.

What a hostile author can make: two keys with the same id, which do not decode, and which between
ranges look like one; and sets with equal sums of hashes, whose fingerprints are equal, so that
ranges do not find their difference. Nobody can make an LtHash equal, so the closing is wrong. After
`_MAX_UNSALTED` openings and closings of both sides together, a wrong one is answered with
fingerprints that are *salted*: of hashes that nobody could know when the keys were made. They take
a walk over the keys, and what differs is listed in full.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from math import ceil
from typing import Final

import numpy as np

from recon_node.base.steps import Steps
from recon_node.recon.actions import Actions, Failed, FetchById, Send, SoughtIds
from recon_node.recon.coded.coded_reply import (
    IDS_PER_LISTED_KEY,
    MAX_TURN,
    CodedReply,
)
from recon_node.recon.coded.estimates import (
    FIRST_SYMBOLS,
    Part,
    compare,
    decode_difference,
    make_estimate,
    plan,
    where_they_differ,
)
from recon_node.recon.coded.messages import (
    END,
    FINGERPRINT,
    KEYS,
    LACKING,
    MIB,
    NO_KEYS,
    NOTHING_LISTED,
    SYMBOL_SIZE,
    Gaps,
    LeftOut,
    Listed,
    Message,
    Verdict,
    weight_of,
)
from recon_node.recon.coded.salted import Salted, salt_of
from recon_node.recon.keys.lookups import find, groups, in_key_order, not_held
from recon_node.recon.keys.ordered_keys import KeyRange, OrderedKeys
from recon_node.recon.keys.sums import (
    ID_SIZE,
    MAX_SYMBOLS,
    NO_IDS,
    Difference,
    Ids,
    LtHash,
    among,
    distinct,
    id_of,
    symbols_for,
)
from recon_node.recon.session import (
    FETCHED_AT_ONCE,
    GAPS_A_STEP,
    LEARNED_A_STEP,
    RemoteProtocolError,
    Side,
    TurnSession,
    fetch,
)

_MAX_WRONG: Final = 5
"""Wrong openings and closings of the peer that are reconciled; the next one is agreed to."""
_MAX_UNSALTED: Final = 3
"""Openings and closings of both sides, the wrong one included, up to which a wrong one may get an
estimate; a later one gets salted fingerprints."""
_MAX_SKETCHED: Final = 1 << 17
"""Maximum keys of a range that is sketched for a peer's sake, if it is not an interest of ours."""
_HASHED_A_STEP: Final = 1000
"""Keys that are hashed between two yields."""
_IDS_A_STEP: Final = 2000
"""Keys whose ids are made between two yields."""
_ASKED_AT_ONCE: Final = 256
"""Ids that a peer asks for in one request, at least: it gets their events in the keys' order."""
_LISTED_AT_ONCE: Final = 16
"""Keys up to which an opening lists them."""
_MORE_SYMBOLS: Final = 1.5
_RESERVE: Final = 1024
"""Bytes of a message that symbols leave to the rest."""
_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (`weight_of`), as a multiple of a frame of a
MiB, or of our own messages if they may be larger: 1.5 times that of MAX_TURN honest frames."""


class Turn(Enum):
    """What a turn is about. The values name it in errors."""

    __hash__ = object.__hash__  # Enum's is slow, and each message takes one

    NONE = "nothing"
    DIGEST = "a digest of the whole range"
    """An opening or a closing, perhaps with gaps."""
    ESTIMATE = "an estimate"
    """With the first symbols."""
    SYMBOLS = "symbols"
    """As many as the estimate asks for, or half as many again."""
    GAPS = "gaps"


_MAY_ANSWER: Final[Mapping[Turn, frozenset[Turn]]] = {
    Turn.NONE: frozenset({Turn.DIGEST, Turn.GAPS}),
    Turn.DIGEST: frozenset({Turn.DIGEST, Turn.GAPS, Turn.ESTIMATE}),
    Turn.ESTIMATE: frozenset({Turn.DIGEST, Turn.GAPS, Turn.SYMBOLS}),
    Turn.SYMBOLS: frozenset({Turn.DIGEST, Turn.GAPS, Turn.SYMBOLS}),
    Turn.GAPS: frozenset({Turn.DIGEST, Turn.GAPS}),
}
"""What may follow a turn, beside AGREED and REFUSED, which end the session."""


def kind_of(message: Message) -> Turn:
    """Return the kind of a turn that ends with this message."""
    if message.estimate is not None:
        return Turn.ESTIMATE
    if message.symbols is not None:
        return Turn.SYMBOLS
    return Turn.GAPS if message.closing is None else Turn.DIGEST


class CodedSession(TurnSession[Message]):
    """One side of a session on `/ceramic/recon/1.2.0`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._said = Turn.NONE
        """Our last turn."""
        self._keys_then = -1
        """The lanes of all our keys at that time."""
        self._turn = PeerTurn(side)
        self._wrong = 0
        """The peer's openings and closings that were wrong."""
        self._digests = 0
        """Openings and closings of both sides."""
        self._dense = False
        """Whether differences are known to lie close together."""
        self._salted: Salted | None = None
        """Of the fingerprints, once those without a salt have not helped."""
        self._not_supplied = 0
        """Ids that the peer named, and whose events could not be fetched."""

    def start(self) -> Actions[Message]:
        """Send the initiator's first message."""
        self.side.start()
        assert self.side.key_range is not None
        opening = yield from self._open(self.side.key_range)
        yield self._send([opening])

    def receive(self, message: Message) -> Actions[Message]:
        """Take the peer's message; once its turn is over, fetch what it names by id, and answer."""
        self.side.receive(goes_on=message.goes_on, max_turn=MAX_TURN)
        self._check_due(message)
        keys = self._turn.add(message)
        new_keys = self.side.learn(keys[:LEARNED_A_STEP])
        for start in range(LEARNED_A_STEP, len(keys), LEARNED_A_STEP):
            yield None
            new_keys += self.side.learn(keys[start : start + LEARNED_A_STEP])
        del keys
        self._digests += message.closing is not None
        del message  # what was answered takes no memory
        yield from fetch(self.side, new_keys)
        del new_keys
        if self.side.answer_due:
            yield self._send((yield from self._respond((yield from self._fetch_by_id()))))

    def _check_due(self, message: Message) -> None:
        """Check that a message may follow our last turn.

        Raises:
            RemoteProtocolError: it may not.
        """
        kind = kind_of(message)
        if kind not in _MAY_ANSWER[self._said]:
            raise RemoteProtocolError(f"peer sent {kind.value} where none was due")
        if message.salt is not None and not self._may_salt:
            raise RemoteProtocolError("peer sent salted fingerprints where none were due")

    @property
    def _may_salt(self) -> bool:
        """Whether so many digests were wrong that hashes may be steered, or ids alike."""
        return self._digests > _MAX_UNSALTED

    def _fetch_by_id(self) -> Generator[FetchById | None, Failed | None, TurnFindings]:
        """Have what the peer's turn names by id fetched; return what it names."""
        findings = yield from self._find_lacking()
        failed: list[bytes] = []
        in_order = findings.difference is None
        ids = np.concatenate([NO_IDS, *findings.we_lack])
        size = FETCHED_AT_ONCE if in_order else max(1, len(ids))  # symbols are few
        for start in range(0, len(ids), size):
            batch = ids[start : start + size]
            result = yield FetchById(SoughtIds(findings.where, _as_names(batch), in_order))
            if result is None:  # they are asked for in full
                findings.failed = ids
                return findings
            self.side.leave_out_unwanted(result.unwanted)
            self.side.leave_out_not_supplied(result.keys)
            self._note_not_supplied(len(result.ids), len(batch))
            failed += result.ids
        if failed:
            findings.failed = np.frombuffer(b"".join(failed), "<u8").astype(np.uint64)
        return findings

    def _find_lacking(self) -> Steps[TurnFindings]:
        """Find out what the peer holds and we lack."""
        key_range, keys, turn = self.side.key_range, self.side.keys, self._turn.messages
        if key_range is None:
            return TurnFindings()
        findings, last = TurnFindings(key_range), turn[-1]
        if turn[0].key_range not in (None, key_range):
            return findings  # to be trimmed: what it lists may lie elsewhere
        if last.symbols is not None:
            findings.difference = yield from decode_difference(keys, key_range, last)
            if last.estimate is not None:
                findings.parts = compare(keys, key_range, last.estimate)
                findings.compared_at = keys.lanes_of_all
            if findings.difference is not None:
                ours, theirs = findings.difference
                if len(ours) > _ASKED_AT_ONCE:  # symbols have no order
                    ours = yield from in_key_order(keys, key_range, ours)
                findings.difference = Difference(ours, theirs)
                findings.we_lack = [theirs]
                findings.where = where_they_differ(key_range, findings.parts)
        else:
            unchanged = self._keys_then == keys.lanes_of_all
            findings = yield from look_up_lists(keys, key_range, turn, unchanged=unchanged)
        if findings.we_lack and self.side.left_out_keys:
            left_out = yield from ids_of_keys(self.side.left_out_keys)
            findings.we_lack = [lacking[~among(lacking, left_out)] for lacking in findings.we_lack]
        return findings

    def _note_not_supplied(self, number: int, of: int) -> None:
        """Take note that events whose ids the peer named could not be fetched.

        Raises:
            RemoteProtocolError: the peer named too many of them.
        """
        if number < of:
            self.side.note_progress()
        self._not_supplied += number
        if self._not_supplied > self.side.settings.max_not_supplied:
            raise RemoteProtocolError(
                f"peer named {self._not_supplied} ids for which it delivered no event"
            )

    def _respond(self, findings: TurnFindings) -> Steps[list[Message]]:
        """Answer the peer's turn."""
        self.side.respond()
        turn, self._turn = self._turn.messages, PeerTurn(self.side)
        key_range = self.side.key_range
        if key_range is None:
            self.side.finish()
            return [Message(verdict=Verdict.REFUSED)]
        if turn[0].key_range not in (None, key_range):
            return [(yield from self._open(key_range))]  # trimmed
        if (agreed := (yield from self._end(key_range, turn[-1]))) is not None:
            return [agreed]
        return (yield from self._answer(key_range, turn, findings))

    def _open(self, key_range: KeyRange) -> Steps[Message]:
        """Return an opening: with the number of our keys, and their ids if they are few."""
        hashed = yield from self.side.keys.sums.lthash(key_range)
        opening = Message(key_range, closing=hashed.digest(), count=hashed.count)
        if not 0 < hashed.count <= _LISTED_AT_ONCE:
            return opening
        ids = [group.ids for group in groups(self.side.keys, key_range)]
        listed = [Listed(np.concatenate([NO_IDS, *ids]), NO_IDS)]
        opening.gaps, opening.listed = Gaps([END], [KEYS], [NO_KEYS]), listed
        return opening

    def _end(self, key_range: KeyRange, last: Message) -> Steps[Message | None]:
        """Answer an opening or closing that is right; return None for others."""
        if last.closing is None:
            return None
        ours, left_out = yield from self._digest(key_range)
        union = ours if left_out is None else left_out.digest
        if union != (last.closing if last.left_out is None else last.left_out.digest):
            self._wrong += 1
            if self._wrong <= _MAX_WRONG:
                return None
        self.side.finish()
        return Message(verdict=Verdict.AGREED, left_out=left_out)

    def _digest(self, key_range: KeyRange) -> Steps[tuple[bytes, LeftOut | None]]:
        """Return the digest of our keys in the range, and what is left out of it, if anything."""
        ours = yield from self.side.keys.sums.lthash(key_range)
        left_out = self.side.left_out_in(key_range)
        if not left_out:
            return ours.digest(), None
        union = ours.copy()
        for start in range(0, len(left_out), _HASHED_A_STEP):
            union.merge(LtHash.of(*left_out[start : start + _HASHED_A_STEP]))
            yield
        return ours.digest(), LeftOut(len(left_out), union.digest())

    def _answer(
        self, key_range: KeyRange, turn: list[Message], findings: TurnFindings
    ) -> Steps[list[Message]]:
        """Answer by an estimate or symbols if they help, else by ranges."""
        last, list_up_to = turn[-1], 0
        if last.asks_by_digest_only and self._may_estimate(key_range, last.count):
            sketch = yield from self.side.keys.sums.sketch(key_range)
            if sketch is not None:
                self._dense = False
                return [make_estimate(self.side.keys, key_range, sketch)]
        elif last.symbols is not None and findings.difference is None:
            symbols, list_up_to = yield from self._more_symbols(key_range, last, findings)
            if symbols is not None:
                return [symbols]
        elif last.symbols is None and self._said in (Turn.ESTIMATE, Turn.SYMBOLS):
            self._dense = True  # the peer has seen an estimate, and goes by ranges
        yield from self._settle_salt(key_range, turn)
        reply = CodedReply(
            self.side,
            key_range,
            list_up_to,
            dense=self._dense,
            in_full=self._may_salt,
            salt=None if self._salted is None else self._salted.salt,
        )
        yield from self._answer_by_ranges(reply, key_range, turn, findings)
        messages = reply.finish()
        if not reply.asks:
            messages[-1].closing, messages[-1].left_out = yield from self._digest(key_range)
        return messages

    def _answer_by_ranges(
        self, reply: CodedReply, key_range: KeyRange, turn: list[Message], findings: TurnFindings
    ) -> Steps[None]:
        """Say what we hold where the sides differ, as far as the peer's turn shows."""
        last = turn[-1]
        if findings.difference is not None:
            differing = [part for part in findings.parts if part.differs]
            if differing and differing[0].lower != key_range.lower:
                reply.agree(differing[0].lower)
            end = END if findings.where.upper == key_range.upper else findings.where.upper
            reply.exchange(end, findings.difference.ours, findings.still_lacking(0))
        elif last.estimate is not None:
            keys = self.side.keys
            unchanged = findings.compared_at == keys.lanes_of_all
            parts = findings.parts if unchanged else compare(keys, key_range, last.estimate)
            reply.answer_hints(parts)
        elif last.symbols is not None:
            reply.narrow_down(END)
        elif last.asks_by_digest_only:
            yield from self._answer_closing(reply, last.count)
        else:
            yield from self._answer_gaps(reply, turn, findings)

    def _settle_salt(self, key_range: KeyRange, turn: Sequence[Message]) -> Steps[None]:
        """Take the peer's salt, or choose one after `_MAX_UNSALTED` digests."""
        closing = turn[-1].closing
        salt = next((message.salt for message in turn if message.salt is not None), None)
        if closing is not None and self._may_salt:
            salt = salt_of((yield from self.side.keys.sums.lthash(key_range)).digest(), closing)
        if salt is not None:
            self._salted = self._salted or Salted(self.side, self.side.keys.count(key_range))
            self._salted.salt = salt

    def _answer_closing(self, reply: CodedReply, count: int | None) -> Steps[None]:
        """Answer a wrong opening or closing by ranges."""
        if count == 0:
            reply.answer_list(END, NO_KEYS, NOTHING_LISTED, NO_IDS)
        elif count is not None and count <= self._few:
            reply.ask(END)  # so that the peer lists the few keys that it has
        elif self._salted is not None:
            yield from self._salted.narrow_down(reply, END)
        else:
            reply.narrow_down(END)

    def _answer_gaps(
        self, reply: CodedReply, turn: Sequence[Message], findings: TurnFindings
    ) -> Steps[None]:
        """Answer what the peer says of gaps, one after the other."""
        at = 0
        lists = [listed for message in turn for listed in message.lists()]
        columns = chain.from_iterable(message.gaps.columns() for message in turn)
        for index, (upper, say, body) in enumerate(columns):
            if reply.is_full:
                reply.ask(END)
                return
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_position()  # the store may have changed
            if say is FINGERPRINT and isinstance(body, bytes):
                if self._salted is not None:
                    yield from self._salted.answer(reply, upper, body)
                elif reply.differs(upper, body):
                    reply.narrow_down(upper)
                else:
                    reply.agree(upper)
            elif say is KEYS:
                reply.answer_list(upper, body, lists[at], findings.still_lacking(at))
            elif say is LACKING:
                reply.exchange(
                    upper, NO_IDS, findings.still_lacking(at), findings.asked_in_full[at]
                )
            else:
                reply.agree(upper)
            at += say is KEYS or say is LACKING

    def _more_symbols(
        self, key_range: KeyRange, received: Message, findings: TurnFindings
    ) -> Steps[tuple[Message | None, int]]:
        """Return as many of our symbols as it takes, or None if ranges are better.

        Then the number of keys of a gap up to which listing them takes fewer bytes comes with it.
        """
        sketch = yield from self.side.keys.sums.sketch(key_range)
        if sketch is None or received.symbols is None:
            return None, 0
        number = list_up_to = 0
        if received.estimate is not None:
            number, self._dense, list_up_to = plan(sketch, findings.parts, received)
        elif self._said is Turn.ESTIMATE:  # else the peer's were the second attempt
            number = ceil(len(received.symbols) * _MORE_SYMBOLS)
        most = (self.side.settings.message_bytes - _RESERVE) // SYMBOL_SIZE
        if not FIRST_SYMBOLS < number <= min(MAX_SYMBOLS, most):
            return None, list_up_to
        return Message(symbols=sketch.symbols.first(number).copy()), 0

    def _may_estimate(self, key_range: KeyRange, theirs: int | None) -> bool:
        """Return whether to answer a wrong closing with an estimate."""
        ours = self.side.keys.count(key_range)
        few = min(ours, ours if theirs is None else theirs)
        many = 0 if theirs is None else abs(ours - theirs)
        return (
            not self._may_salt
            and few > self._few
            and symbols_for(many) <= MAX_SYMBOLS
            and (ours <= _MAX_SKETCHED or key_range in self.side.interests)
        )

    @property
    def _few(self) -> int:
        """Keys that are listed at once."""
        return IDS_PER_LISTED_KEY * max(1, self.side.settings.list_threshold)

    def _send(self, turn: list[Message]) -> Send[Message]:
        """Take note of what our turn is about, and send it."""
        self._said, self._keys_then = kind_of(turn[-1]), self.side.keys.lanes_of_all
        self._digests += self._said is Turn.DIGEST
        return Send(turn)


def _as_names(ids: Ids) -> list[bytes]:
    joined = ids.astype("<u8").tobytes()
    return [joined[at : at + ID_SIZE] for at in range(0, len(joined), ID_SIZE)]


class PeerTurn:
    """What has been received of the peer's turn."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._weight = 0
        """About how many bytes of memory its bounds and keys take."""
        self.messages: list[Message] = []

    def add(self, message: Message) -> list[bytes]:
        """Take a message, and settle the session's range or end by it; return the keys it lists.

        Raises:
            RemoteProtocolError: it is not about the range, or says something beside symbols.
        """
        self._check_coded(message)
        keys = self._read(message)
        self.messages.append(message)
        return keys

    def _read(self, message: Message) -> list[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""
        side = self._side
        if message.left_out is not None:
            side.left_out_by_peer = message.left_out.number
        if message.verdict is Verdict.AGREED and (side.initiates or side.rounds > 1):
            side.finish()
            return []
        if message.verdict is Verdict.REFUSED and side.initiates and side.rounds == 1:
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

    def _check_coded(self, message: Message) -> None:
        """Check that symbols and an estimate come alone, and that its bounds lie in the range.

        Raises:
            RemoteProtocolError: they do not.
        """
        if message.symbols is None and message.estimate is None:
            return
        if self.messages or message.has_gaps_or_ends or message.symbols is None:
            raise RemoteProtocolError("peer sent symbols beside something else, or none")
        key_range, bounds = self._side.key_range, message.estimate and message.estimate.bounds
        assert key_range is not None
        if bounds and not (key_range.lower < bounds[0] and bounds[-1] < key_range.upper):
            raise RemoteProtocolError("peer's bounds lie outside the range")


@dataclass(slots=True)
class TurnFindings:
    """What a turn of the peer's shows about ids."""

    where: KeyRange = KeyRange(b"", b"")  # noqa: RUF009
    """Where what differs lies, as far as the peer's turn shows."""
    difference: Difference | None = None
    """What the symbols decoded to, if they did."""
    parts: list[Part] = field(default_factory=list)
    """What the hints showed."""
    compared_at: int = -1
    """The lanes of all our keys when they were compared."""
    we_lack: list[Ids] = field(default_factory=list)
    """What we lack, for each list; or what the symbols of the whole range decode to, each once."""
    asked_in_full: list[tuple[bytes, ...]] = field(default_factory=list)
    """The keys that the peer asks for in full, for each list."""
    failed: Ids = field(default_factory=lambda: NO_IDS)
    """What we lack and could not fetch by its id."""

    def still_lacking(self, index: int) -> Ids:
        """Return what we lack of a list, by its index, and could not fetch."""
        if not len(self.failed):  # the usual case
            return NO_IDS
        return self.we_lack[index][among(self.we_lack[index], self.failed)]


def look_up_lists(
    keys: OrderedKeys, key_range: KeyRange, turn: Iterable[Message], *, unchanged: bool
) -> Steps[TurnFindings]:
    """Find which ids of the peer's lists we lack, and the keys that it asks for in full.

    `unchanged` says whether our keys are those of our last turn.
    """
    findings = TurnFindings(key_range)
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
    return findings


def _split(held: list[tuple[int, bytes]], ids: Ids, wanted: Ids) -> tuple[Ids, tuple[bytes, ...]]:
    """Return the ids of those listed that we lack, and the keys that the peer asks for in full."""
    if not held:
        return ids, NO_KEYS
    sought = set(wanted.tolist())
    asked_in_full = tuple(key for id_, key in held if id_ in sought)
    return ids[~among(ids, np.array([id_ for id_, _ in held], np.uint64))], asked_in_full


def ids_of_keys(keys: Sequence[bytes]) -> Steps[Ids]:
    """Return the ids of some keys, in steps."""
    ids = []
    for number, key in enumerate(keys):
        if number % _IDS_A_STEP == _IDS_A_STEP - 1:
            yield
        ids.append(id_of(key))
    return np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)
