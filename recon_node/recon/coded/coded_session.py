"""A session on `/ceramic/recon/1.2.0`: coded symbols, and ranges where these do not help.

Theory of operation
-------------------
It opens with a range and the digest of an LtHash of all keys in it. A digest that is right is
answered with AGREED, so that two sides in sync send some 100 bytes and 2. One that is wrong is
answered with an *estimate*: a table that shows how many keys differ, hints that show where, and the
first few symbols of a sketch (sketch.py)::

    initiator   range, digest, count
    responder   estimate: table, hints, 8 symbols
    initiator   as many symbols as that many differences need
    responder   the ids of what the initiator lacks; digest
    initiator   AGREED

Whoever can decode the difference learns the ids of all keys that the other side lacks, and of all
that it lacks itself. If the 8 symbols are enough, that is the initiator, one turn earlier. A side
fetches the events of ids before it answers; only where that fails, or where it wants to see keys
before events, it asks for them in full (`wanted`). If the symbols are too few after all, the
other side sends half as many again, of its own.

Ranges are cheaper where differences lie close together, where there are few keys, and where so many
differ that it is best to list them. `coded_answers` decides how each gap is answered. A side that
has nothing left to ask *closes* with the digest of the whole range, including all that it has just
sent. That digest can be wrong because a key arrived meanwhile, on either side. The sides then
reconcile the whole range again. A side does so for `_MAX_WRONG` wrong digests of its peer. What is
new after that is left for the next session, because a busy node would never end this one.

An opening of a range with a handful of keys lists their ids. So where these are all that is new, as
when a key has just been added and is pushed, the answer is AGREED: one round trip.

Every hash is of the sender's own keys. Keys of the peer whose events we did not get are
*left out*: gaps are agreed on without them, and their number, and the digest of our keys and them
together, accompany the digest. A digest is right if that union and ours are equal: then each side
knows what the other holds, and they differ only in keys that one of them left out. AGREED repeats
how many its sender left out. So refused keys take no extra turn.

The order of turns: the last message of a turn shows its kind (`TurnKind`), and `_MAY_ANSWER` has
the kinds that may answer each kind. So the kind of our last turn is the state of a session, beside
the number of digests, which decides when fingerprints are salted.

A hostile author can make two keys with the same id: symbols of them do not decode, and in lists of
ids they look like one key. It can also make two sets whose hashes have the same sum: their
fingerprints are equal, so that ranges do not show the difference. But nobody can make two sets with
the same LtHash, so the digest is wrong all the same. After `_MAX_UNSALTED` digests of both sides
together, a wrong one is answered with fingerprints that are *salted*: of hashes that nobody could
know when the keys were made. They take a walk over the keys, and what differs is listed in full.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from recon_node.base.steps import Steps
from recon_node.recon.actions import Actions, Failed, FetchById, Send, SoughtIds
from recon_node.recon.coded.coded_answers import Answers, TurnFindings
from recon_node.recon.coded.coded_reply import MAX_TURN
from recon_node.recon.coded.estimates import compare_hints, decode_difference, where_they_differ
from recon_node.recon.coded.messages import (
    END,
    KEYS,
    LACKING,
    MIB,
    NO_KEYS,
    Conclusion,
    Gaps,
    LeftOut,
    Listed,
    Message,
    TurnKind,
    weight_of,
)
from recon_node.recon.keys.kept_sums import HASH_COST
from recon_node.recon.keys.key_hashes import ID_SIZE, NO_IDS, Ids, LtHash, among, distinct, id_of
from recon_node.recon.keys.key_store import KeyView
from recon_node.recon.keys.lookups import find_by_id, groups, ids_not_held, in_key_order
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.keys.sketch import Difference
from recon_node.recon.session import (
    FETCHED_AT_ONCE,
    GAPS_PER_STEP,
    HASHED_PER_STEP,
    LEARNED_PER_STEP,
    RemoteProtocolError,
    Side,
    TurnSession,
    fetch,
)

_MAX_WRONG: Final = 5
"""Wrong digests of the peer that are reconciled; the next one is agreed to."""
_MAX_UNSALTED: Final = 3
"""Digests of both sides, the wrong one included, up to which a wrong one may get an estimate; a
later one gets salted fingerprints."""
_IDS_PER_STEP: Final = 2000
"""Keys whose ids are made between two yields."""
_ASKED_AT_ONCE: Final = 256
"""Ids that any peer asks for in one request, whose events it gets in the order of the keys. More
ids are listed in that order."""
_LISTED_AT_ONCE: Final = 16
"""Maximum keys whose ids an opening lists."""
_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (`weight_of`), as a multiple of a frame of a
MiB, or of our own messages if they may be larger: 1.5 times that of MAX_TURN honest frames."""


_MAY_ANSWER: Final[Mapping[TurnKind, Sequence[TurnKind]]] = {
    TurnKind.NONE: (TurnKind.DIGEST, TurnKind.GAPS),
    TurnKind.DIGEST: (TurnKind.DIGEST, TurnKind.GAPS, TurnKind.ESTIMATE),
    TurnKind.ESTIMATE: (TurnKind.DIGEST, TurnKind.GAPS, TurnKind.SYMBOLS),
    TurnKind.SYMBOLS: (TurnKind.DIGEST, TurnKind.GAPS, TurnKind.SYMBOLS),
    TurnKind.GAPS: (TurnKind.DIGEST, TurnKind.GAPS),
}
"""What may follow a turn, beside AGREED and REFUSED, which end the session."""


class CodedSession(TurnSession[Message]):
    """One side of a session on `/ceramic/recon/1.2.0`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._last_kind = TurnKind.NONE
        """The kind of our last turn."""
        self._version_then = -1
        """The version of our keys when we sent it."""
        self._turn: list[Message] = []
        """What has come of the peer's turn."""
        self._turn_weight = 0
        """About how many bytes of memory its bounds and keys take."""
        self._wrong = 0
        """Digests of the peer that were wrong."""
        self._digests = 0
        """Digests that both sides have sent."""
        self._answers = Answers(side)
        self._not_supplied = 0
        """Ids that the peer named, and whose events could not be fetched."""

    def start(self) -> Actions[Message]:
        """Send the initiator's first message."""
        self.side.start()
        assert self.side.key_range is not None
        opening = yield from self._opening(self.side.key_range)
        yield self._send([opening])

    def receive(self, message: Message) -> Actions[Message]:
        """Take the peer's message; once its turn is over, fetch what it names by id, and answer."""
        self.side.receive(continues=message.continues, max_turn=MAX_TURN)
        self._check(message)
        keys = self._read(message)
        self._turn.append(message)
        new_keys = self.side.learn(keys[:LEARNED_PER_STEP])
        for start in range(LEARNED_PER_STEP, len(keys), LEARNED_PER_STEP):
            yield None
            new_keys += self.side.learn(keys[start : start + LEARNED_PER_STEP])
        del keys
        self._digests += message.digest is not None
        del message  # what was answered takes no memory
        yield from fetch(self.side, new_keys)
        del new_keys
        if self.side.answer_due:
            findings = yield from self._fetch_by_id()
            answer = yield from self._respond(findings)
            yield self._send(answer)

    def _check(self, message: Message) -> None:
        """Check that a message may follow our last turn, and that symbols come alone.

        Raises:
            RemoteProtocolError: it may not, or they do not.
        """
        if message.kind not in _MAY_ANSWER[self._last_kind]:
            raise RemoteProtocolError(f"the peer sent {message.kind.value} where none was due")
        if message.salt is not None and not self._may_salt:
            raise RemoteProtocolError("the peer sent salted fingerprints where none were due")
        if message.symbols is None and message.estimate is None:
            return
        if self._turn or message.has_gaps_or_ends or message.symbols is None:
            raise RemoteProtocolError("the peer sent symbols beside something else, or none")
        key_range, bounds = self.side.key_range, message.estimate and message.estimate.bounds
        assert key_range is not None
        if bounds and not (key_range.lower < bounds[0] and bounds[-1] < key_range.upper):
            raise RemoteProtocolError("the peer's bounds lie outside the range")

    def _read(self, message: Message) -> list[bytes]:
        """Settle the session's range, or end, by a message; return the keys that it lists.

        Raises:
            RemoteProtocolError: it is not about the range.
        """
        side = self.side
        if message.left_out is not None:
            side.left_out_by_peer = message.left_out.number
        if message.conclusion is Conclusion.AGREED and (side.initiates or side.rounds > 1):
            side.finish()
            return []
        if message.conclusion is Conclusion.REFUSED and side.initiates and side.rounds == 1:
            side.finish_refused()
            return []
        if message.conclusion is not None:
            raise RemoteProtocolError(
                f"the peer sent {message.conclusion.name} where it answers nothing"
            )
        if message.key_range is not None:
            if side.rounds > 1 or self._turn:
                raise RemoteProtocolError("the peer changed the range in the middle of the session")
            side.settle_range(message.key_range)
        elif side.asked is None:
            raise RemoteProtocolError(
                "the peer's first message does not say what range it is about"
            )
        return self._keys_of(message.gaps)

    def _keys_of(self, gaps: Gaps) -> list[bytes]:
        """Check that gaps lie in the range, above those before; return their keys.

        Decoding has checked that they ascend, and that no key lies above its gap.
        """
        keys, uppers, key_range = gaps.keys(), gaps.uppers, self.side.key_range
        self._turn_weight += weight_of(uppers) + weight_of(keys)
        if self._turn_weight > _TURN_WEIGHT * max(MIB, self.side.settings.message_bytes):
            raise RemoteProtocolError(
                f"the peer sent a turn of {self._turn_weight:,} bytes, written out"
            )
        if key_range is None or not uppers:
            return []
        reached = self._turn[-1].gaps.uppers[-1] if self._turn else key_range.lower
        for upper in (uppers[0], uppers[-1]):
            if upper != END and not reached < upper < key_range.upper:
                raise RemoteProtocolError(
                    f"the peer sent a gap that ends outside the range: {upper.hex()}"
                )
        if keys and keys[0] < reached:
            raise RemoteProtocolError(f"the peer sent a key below its gap: {keys[0].hex()}")
        for key in (keys[0], keys[-1]) if keys else ():
            if not key_range.covers(key):
                raise RemoteProtocolError(f"the peer sent a key outside the range: {key.hex()}")
        return keys

    @property
    def _may_salt(self) -> bool:
        """Whether fingerprints may be salted: somebody may have steered hashes, or made equal ids.

        That is suspected when more than `_MAX_UNSALTED` digests have not ended the session.
        """
        return self._digests > _MAX_UNSALTED

    def _fetch_by_id(self) -> Generator[FetchById | None, Failed | None, TurnFindings]:
        """Have what the peer's turn names by id fetched; return what it names."""
        findings = yield from self._find_lacking()
        failed: list[bytes] = []
        in_order = findings.difference is None
        ids = np.concatenate([NO_IDS, *findings.we_lack])
        size = FETCHED_AT_ONCE if in_order else max(1, len(ids))  # symbols are few
        for start in range(0, len(ids), size):
            batch = distinct(ids[start : start + size])  # an id may be in several lists
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
        key_range, keys, turn = self.side.key_range, self.side.keys, self._turn
        if key_range is None:
            return TurnFindings()
        findings, last = TurnFindings(key_range), turn[-1]
        if turn[0].key_range not in (None, key_range):
            return findings  # to be trimmed: what it lists may lie elsewhere
        if last.symbols is not None:
            findings.difference = yield from decode_difference(keys, key_range, last)
            if last.estimate is not None:
                findings.parts = compare_hints(keys, key_range, last.estimate)
            if findings.difference is not None:
                ours, theirs = findings.difference
                if len(ours) > _ASKED_AT_ONCE:  # symbols have no order
                    keys.session_cost += keys.count(key_range)
                    ours = yield from in_key_order(keys, key_range, ours)
                findings.difference = Difference(ours, theirs)
                findings.we_lack = [theirs]
                findings.where = where_they_differ(key_range, findings.parts)
        else:
            unchanged = self._version_then == keys.version
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
                f"the peer named {self._not_supplied} ids for which it delivered no event"
            )

    def _respond(self, findings: TurnFindings) -> Steps[list[Message]]:
        """Answer the peer's turn."""
        self.side.respond()
        turn, self._turn, self._turn_weight = self._turn, [], 0
        key_range = self.side.key_range
        if key_range is None:
            self.side.finish()
            return [Message(conclusion=Conclusion.REFUSED)]
        if turn[0].key_range not in (None, key_range):
            return [(yield from self._opening(key_range))]  # trimmed
        if (agreed := (yield from self._agree(key_range, turn[-1]))) is not None:
            return [agreed]
        answer, asks = yield from self._answers.answer(
            turn, findings, self._last_kind, may_salt=self._may_salt
        )
        if not asks:
            answer[-1].digest, answer[-1].left_out = yield from self._digest(key_range)
        return answer

    def _opening(self, key_range: KeyRange) -> Steps[Message]:
        """Return the message that opens: with the number of our keys, and their ids if few."""
        hashed = yield from self.side.keys.sums.lthash(key_range)
        opening = Message(key_range, digest=hashed.digest(), count=hashed.count)
        if not 0 < hashed.count <= _LISTED_AT_ONCE:
            return opening
        ids = [group.ids for group in groups(self.side.keys, key_range)]
        listed = [Listed(np.concatenate([NO_IDS, *ids]), NO_IDS)]
        opening.gaps, opening.listed = Gaps([END], [KEYS], [NO_KEYS]), listed
        return opening

    def _agree(self, key_range: KeyRange, last: Message) -> Steps[Message | None]:
        """Answer a digest that is right with AGREED; return None for any other message."""
        if last.digest is None:
            return None
        ours, left_out = yield from self._digest(key_range)
        union = ours if left_out is None else left_out.digest
        if union != (last.digest if last.left_out is None else last.left_out.digest):
            self._wrong += 1
            if self._wrong <= _MAX_WRONG:
                return None
        self.side.finish()
        return Message(conclusion=Conclusion.AGREED, left_out=left_out)

    def _digest(self, key_range: KeyRange) -> Steps[tuple[bytes, LeftOut | None]]:
        """Return the digest of our keys in the range, and what is left out of it, if anything."""
        side, number = self.side, 0
        ours = yield from side.keys.sums.lthash(key_range)
        digest, union = ours.digest(), ours.copy()
        for part in side.left_out_parts(HASHED_PER_STEP):
            union.merge(LtHash.of(*part))
            side.keys.session_cost += HASH_COST * len(part)
            number += len(part)
            yield
        return digest, LeftOut(number, union.digest()) if number else None

    def _send(self, turn: list[Message]) -> Send[Message]:
        """Note the kind of our turn, and of which keys it is; return the action that sends it."""
        self._last_kind, self._version_then = turn[-1].kind, self.side.keys.version
        self._digests += turn[-1].digest is not None
        return Send(turn)


def _as_names(ids: Ids) -> list[bytes]:
    joined = ids.astype("<u8").tobytes()
    return [joined[at : at + ID_SIZE] for at in range(0, len(joined), ID_SIZE)]


def look_up_lists(
    keys: KeyView, key_range: KeyRange, turn: Iterable[Message], *, unchanged: bool
) -> Steps[TurnFindings]:
    """Find which ids of the peer's lists we lack, and the keys that it asks for in full.

    `unchanged` says whether our keys are those of our last turn.
    """
    findings = TurnFindings(key_range)
    lower, with_lower, first = key_range.lower, False, key_range.lower
    for message in turn:
        lists = iter(message.lists())
        for index, (upper, mode, _) in enumerate(message.gaps.columns()):
            if index % GAPS_PER_STEP == 0:
                yield
            upper = upper or key_range.upper
            if mode is KEYS or mode is LACKING:
                gap, listed = KeyRange(lower, upper), next(lists)
                sought = listed.ids
                if mode is LACKING:
                    # If nothing has come, we lack what we lacked in our last turn.
                    sought = np.concatenate([NO_IDS if unchanged else sought, listed.wanted])
                if len(sought):
                    keys.session_cost += keys.count(gap)
                if mode is KEYS:
                    we_lack = yield from ids_not_held(keys, gap, sought, with_lower=with_lower)
                    asked_in_full = NO_KEYS
                else:
                    held = yield from find_by_id(keys, gap, sought, with_lower=with_lower)
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
        if number % _IDS_PER_STEP == _IDS_PER_STEP - 1:
            yield
        ids.append(id_of(key))
    return np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)
