"""How a side answers on `/ceramic/recon/1.2.0` where the sides differ: by symbols, or by ranges.

A digest that is wrong is answered with an estimate, an estimate with as many symbols as it asks
for, and symbols that are too few with half as many again. Ranges are cheaper where differences lie
close together, which the hints show, where there are few keys, and where so many differ that it is
best to list them:

===========================  ================================================================
the mode of the peer's gap   the answer for that gap
===========================  ================================================================
SKIP                         SKIP
FINGERPRINT, equal to ours   SKIP; also if it is that of our keys and those that we left out
FINGERPRINT, another         KEYS if there are few, else FINGERPRINTs of equal parts, divided
                             by the shortest strings that separate them
KEYS                         LACKING: keys of ours that the peer lacks; SKIP if it lacks none
LACKING                      SKIP
===========================  ================================================================

Neighbouring gaps that are skipped are merged, and cost nothing at the end of a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from typing import Final

from recon_node.base.steps import Steps
from recon_node.recon.coded.coded_reply import IDS_PER_LISTED_KEY, CodedReply
from recon_node.recon.coded.estimates import FIRST_SYMBOLS, Part, compare_hints, make_estimate, plan
from recon_node.recon.coded.messages import (
    END,
    FINGERPRINT,
    KEYS,
    LACKING,
    NO_KEYS,
    NOTHING_LISTED,
    SYMBOL_SIZE,
    Message,
    TurnKind,
)
from recon_node.recon.coded.salted import SaltedFingerprints, salt_of
from recon_node.recon.keys.key_hashes import NO_IDS, Ids, among
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.keys.sketch import MAX_SYMBOLS, Difference, symbols_for
from recon_node.recon.session import GAPS_PER_STEP, Side

_MAX_SKETCHED: Final = 1 << 17
"""Maximum keys of a range that is sketched for a peer's sake, if it is not an interest of ours."""
_MORE_SYMBOLS: Final = 1.5
_RESERVE: Final = 1024
"""Bytes of a message that symbols leave to the rest."""


@dataclass(slots=True)
class TurnFindings:
    """What the peer's turn shows about the ids that one side lacks."""

    where: KeyRange = KeyRange(b"", b"")  # noqa: RUF009
    """The smallest range that is known to have all differences."""
    difference: Difference | None = None
    """What the symbols decoded to, if they did."""
    parts: list[Part] = field(default_factory=list)
    """What the hints showed."""
    we_lack: list[Ids] = field(default_factory=list)
    """The ids that we lack, for each list of the turn; or for the symbols, as for one list."""
    asked_in_full: list[tuple[bytes, ...]] = field(default_factory=list)
    """The keys that the peer asks for in full, for each list."""
    failed: Ids | None = None
    """Ids whose events could not be fetched, if any."""

    def still_lacking(self, index: int) -> Ids:
        """Return the ids of a list, by its index, whose events we lack and could not fetch."""
        if self.failed is None:  # the usual case
            return NO_IDS
        return self.we_lack[index][among(self.we_lack[index], self.failed)]


@dataclass(slots=True)
class Answers:
    """The answers of one side in a session, and what they depend on beside the peer's turn."""

    side: Side
    dense: bool = False
    """Whether differences are known to lie close together."""
    salted: SaltedFingerprints | None = None
    """Once fingerprints without a salt have not helped."""

    def answer(
        self, turn: list[Message], findings: TurnFindings, last_kind: TurnKind, *, may_salt: bool
    ) -> Steps[tuple[list[Message], bool]]:
        """Answer by an estimate or symbols if they help, else by ranges.

        Args:
            turn: the peer's.
            findings: what it shows.
            last_kind: the kind of our turn before it.
            may_salt: whether fingerprints may be salted.

        Returns:
            Our turn, and whether it asks anything: if not, the caller has to close.
        """
        key_range = self.side.key_range
        assert key_range is not None
        last, list_up_to = turn[-1], 0
        if last.asks_by_digest_only and not may_salt and self._may_estimate(key_range, last.count):
            sketch = yield from self.side.keys.sums.sketch(key_range)
            if sketch is not None:
                self.dense = False
                return [make_estimate(self.side.keys, key_range, sketch)], True
        elif last.symbols is not None and findings.difference is None:
            symbols, list_up_to = yield from self._more_symbols(last, findings, last_kind)
            if symbols is not None:
                return [symbols], True
        elif last.symbols is None and last_kind in (TurnKind.ESTIMATE, TurnKind.SYMBOLS):
            self.dense = True  # the peer has seen an estimate, and goes by ranges
        yield from self._settle_salt(key_range, turn, may_salt=may_salt)
        reply = CodedReply(
            self.side,
            key_range,
            list_up_to,
            dense=self.dense,
            in_full=may_salt,
            salt=None if self.salted is None else self.salted.salt,
        )
        yield from self._answer_by_ranges(reply, key_range, turn, findings)
        return reply.finish(), reply.asks

    def _answer_by_ranges(
        self, reply: CodedReply, key_range: KeyRange, turn: list[Message], findings: TurnFindings
    ) -> Steps[None]:
        """Write what we hold where the peer's turn shows that the sides differ."""
        last = turn[-1]
        if findings.difference is not None:
            differing = [part for part in findings.parts if part.differs]
            if differing and differing[0].lower != key_range.lower:
                reply.skip(differing[0].lower)
            end = END if findings.where.upper == key_range.upper else findings.where.upper
            reply.exchange(end, findings.difference.ours, findings.still_lacking(0))
        elif last.estimate is not None:
            # Once more: our keys may have changed since the turn was looked up.
            reply.answer_hints(compare_hints(self.side.keys, key_range, last.estimate))
        elif last.symbols is not None:
            reply.narrow_down(END)
        elif last.asks_by_digest_only:
            yield from self._answer_digest(reply, last.count)
        else:
            yield from self._answer_gaps(reply, turn, findings)

    def _settle_salt(
        self, key_range: KeyRange, turn: Sequence[Message], *, may_salt: bool
    ) -> Steps[None]:
        """Take the peer's salt, or choose one."""
        theirs = turn[-1].digest
        salt = next((message.salt for message in turn if message.salt is not None), None)
        if theirs is not None and may_salt:
            salt = salt_of((yield from self.side.keys.sums.lthash(key_range)).digest(), theirs)
        if salt is not None:
            held = self.side.keys.count(key_range)
            self.salted = self.salted or SaltedFingerprints(self.side, held)
            self.salted.salt = salt

    def _answer_digest(self, reply: CodedReply, count: int | None) -> Steps[None]:
        """Answer a wrong digest by ranges; `count` is the number of the peer's keys, if it said."""
        if count == 0:
            reply.answer_list(END, NO_KEYS, NOTHING_LISTED, NO_IDS)
        elif count is not None and count <= self._few:
            reply.ask(END)  # so that the peer lists the few keys that it has
        elif self.salted is not None:
            yield from self.salted.narrow_down(reply, END)
        else:
            reply.narrow_down(END)

    def _answer_gaps(
        self, reply: CodedReply, turn: Sequence[Message], findings: TurnFindings
    ) -> Steps[None]:
        """Answer the gaps of the peer's turn, in order."""
        at = 0
        lists = [listed for message in turn for listed in message.lists()]
        columns = chain.from_iterable(message.gaps.columns() for message in turn)
        for index, (upper, mode, body) in enumerate(columns):
            if reply.is_full:
                reply.ask(END)
                return
            if index % GAPS_PER_STEP == 0:
                yield
                reply.forget_position()  # the store may have changed
            if mode is FINGERPRINT and isinstance(body, bytes):
                if self.salted is not None:
                    yield from self.salted.answer(reply, upper, body)
                elif not reply.differs(upper, body) or (
                    yield from reply.counts_left_out(upper, body)
                ):
                    reply.skip(upper)
                else:
                    reply.narrow_down(upper)
            elif mode is KEYS:
                reply.answer_list(upper, body, lists[at], findings.still_lacking(at))
            elif mode is LACKING:
                reply.exchange(
                    upper, NO_IDS, findings.still_lacking(at), findings.asked_in_full[at]
                )
            else:
                reply.skip(upper)
            at += mode is KEYS or mode is LACKING

    def _more_symbols(
        self, received: Message, findings: TurnFindings, last_kind: TurnKind
    ) -> Steps[tuple[Message | None, int]]:
        """Return a message with as many of our symbols as are needed; None if ranges are better.

        The second value is for ranges: a gap of up to this many keys is to be listed.
        """
        assert self.side.key_range is not None
        sketch = yield from self.side.keys.sums.sketch(self.side.key_range)
        if sketch is None or received.symbols is None:
            return None, 0
        number = list_up_to = 0
        if received.estimate is not None:
            number, self.dense, list_up_to = plan(sketch, findings.parts, received)
        elif last_kind is TurnKind.ESTIMATE:  # else the peer's were the second attempt
            number = ceil(len(received.symbols) * _MORE_SYMBOLS)
        most = (self.side.settings.message_bytes - _RESERVE) // SYMBOL_SIZE
        if not FIRST_SYMBOLS < number <= min(MAX_SYMBOLS, most):
            return None, list_up_to
        return Message(symbols=sketch.symbols.first(number).copy()), 0

    def _may_estimate(self, key_range: KeyRange, theirs: int | None) -> bool:
        """Return whether to answer a wrong digest with an estimate."""
        ours = self.side.keys.count(key_range)
        few = min(ours, ours if theirs is None else theirs)
        many = 0 if theirs is None else abs(ours - theirs)
        return (
            few > self._few
            and symbols_for(many) <= MAX_SYMBOLS
            and (ours <= _MAX_SKETCHED or key_range in self.side.interests)
        )

    @property
    def _few(self) -> int:
        """Maximum keys of a range or gap that is listed at once."""
        return IDS_PER_LISTED_KEY * max(1, self.side.settings.list_threshold)
