"""Two sessions that talk to each other in memory, for the tests of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from recon_node.recon import DEFAULT_SETTINGS, KeyRange, KeyStore, SessionSettings, Sha256a, Side
from recon_node.recon.actions import Failed, Fetch, FetchById, SoughtIds, turn_of
from recon_node.recon.cip124.cip124_codec import Cip124Message
from recon_node.recon.cip124.cip124_session import Cip124Session
from recon_node.recon.coded.coded_session import CodedSession
from recon_node.recon.coded.messages import END, NOTHING_LISTED, Body, Gaps, Mode, fingerprint
from recon_node.recon.keys.key_hashes import LtHash, ids_of
from recon_node.recon.keys.sha256a import lanes_of
from recon_node.recon.session import TurnSession

LOWEST, HIGHEST = b"", b"\xff" * 40
EVERYTHING = KeyRange(LOWEST, HIGHEST)


def is_fencepost(bound: bytes) -> bool:
    """The tests' keys are words; these two are not."""
    return bound in (LOWEST, HIGHEST)


MakeSession = Callable[[Side], TurnSession[Any]]


def word_session(side: Side) -> Cip124Session:
    return Cip124Session(side, is_fencepost)


def fenced_session(side: Side) -> Cip124Session:
    """For ranges between bounds that are not keys, as real ones are."""
    return Cip124Session(side, lambda _bound: True)


CASES = max(40, settings.default.max_examples if settings.default else 0)
"""Examples of the properties that matter most: 40, or what the profile says."""


class FetchesById(CodedSession):
    """A session whose peer fetches by id what it can."""


SESSIONS: list[MakeSession] = [fenced_session, CodedSession, FetchesById]
"""The sessions of all protocol versions, for tests of what they have in common."""


@dataclass
class Peer:
    """One side: a store, and what it could not get hold of."""

    keys: Iterable[bytes]
    settings: SessionSettings = DEFAULT_SETTINGS
    unobtainable: frozenset[bytes] = frozenset()
    not_supplied: frozenset[bytes] = frozenset()
    """Keys whose events it does not deliver by id."""
    refuses: frozenset[bytes] = frozenset()
    """Keys whose events it gets and does not take; it remembers them from session to session."""
    interests: tuple[KeyRange, ...] = (EVERYTHING,)
    session: MakeSession = word_session
    news: tuple[KeyRange, ...] = ()
    """Where it has new keys, when it initiates."""
    checked: bool = False
    """Whether all that it says of its keys is checked against a plain set."""
    store: KeyStore = field(init=False)
    other: Peer | None = None
    """Whom it fetches from by id."""
    asked_for: list[bytes] = field(default_factory=list, init=False)
    """Keys of the events that it has fetched, in all sessions."""
    _refused: set[bytes] = field(default_factory=set, init=False)
    _by_id: tuple[int, dict[bytes, bytes]] = field(default=(-1, {}), init=False)

    def __post_init__(self) -> None:
        self.store = KeyStore(self.keys)

    @property
    def set(self) -> set[bytes]:
        return set(self.store)

    def keys_by_id(self) -> dict[bytes, bytes]:
        """Its keys by the bytes of their ids; they are hashed again only after a change."""
        if self._by_id[0] is not self.store.lanes_of_all:
            by_id = {sha256(key).digest()[:8]: key for key in self.store}
            self._by_id = self.store.lanes_of_all, by_id
        return self._by_id[1]

    def asks(self, key_range: KeyRange = EVERYTHING) -> TurnSession[Any]:
        return self._session(Side.initiator(self.store, key_range, self.settings, self.news))

    def answers(self) -> TurnSession[Any]:
        return self._session(Side.responder(self.store, self.interests, self.settings))

    def _session(self, side: Side) -> TurnSession[Any]:
        if self.session is not fenced_session and self.session is not word_session:
            side.leave_out_unwanted(self._refused)
        return self.session(side)

    def take(self, session: TurnSession[Any], message: Any) -> list[Any]:
        """Take a message; return the answer, where one is due."""
        answer = turn_of(session.receive(message), partial(self._fetch, session))
        if self.checked:
            assert_honest(answer, session.side.key_range, self.set)
        return answer

    def _obtain(self, keys: Iterable[bytes]) -> list[bytes]:
        """Take the events of keys; return those that are refused."""
        keys = list(keys)
        for key in keys:
            if key in self._refused or key in self.unobtainable:
                continue
            self.asked_for.append(key)
            if key in self.refuses:
                self._refused.add(key)
            else:
                self.store.add(key)
        return [key for key in keys if key in self._refused]

    def _fetch(self, session: TurnSession[Any], action: Fetch | FetchById) -> Failed | None:
        if isinstance(action, Fetch):
            lost = [key for key in action.keys if key in self.unobtainable]
            refused = self._obtain(action.keys)
            return Failed([*refused, *lost], refused)
        if isinstance(session, FetchesById) and self.other:
            return self._fetch_by_id(action.sought, self.other)
        return None

    def _fetch_by_id(self, sought: SoughtIds, other: Peer) -> Failed:
        held = other.keys_by_id()
        not_supplied, lost, come = [], [], []
        for id_ in sought.ids:
            key = held.get(id_)
            if key is None or key in other.not_supplied:
                not_supplied.append(id_)
            elif key in self.unobtainable:
                lost.append(key)
            else:
                come.append(key)
            if key is not None:
                assert sought.key_range.covers(key)
        refused = self._obtain(come)
        return Failed([*refused, *lost], refused, not_supplied)


def reconcile(
    initiator: Peer,
    responder: Peer,
    key_range: KeyRange = EVERYTHING,
    between: Callable[[int], None] = lambda _: None,
    max_messages: int = 10_000,
) -> tuple[TurnSession[Any], TurnSession[Any], list[Any]]:
    """Run a session to its end; `between` is called with the number of messages so far."""
    asking, answering = initiator.asks(key_range), responder.answers()
    sides = [(responder, answering), (initiator, asking)]
    sent = talk(turn_of(asking.start()), sides, between, max_messages)
    for session in (asking, answering):
        session.end_of_stream()
        assert session.side.done
    return asking, answering, sent


def talk(
    turn: list[Any],
    sides: list[tuple[Peer, TurnSession[Any]]],
    between: Callable[[int], None] = lambda _: None,
    max_messages: int = 10_000,
) -> list[Any]:
    """Let two sides take turns, from one that the first side takes; return all messages."""
    (one, _), (other, _) = sides
    one.other, other.other = other, one
    sent: list[Any] = []
    while turn:
        sent += turn
        assert len(sent) <= max_messages, "the session does not end"
        between(len(sent))
        peer, session = sides[0]
        sides = sides[::-1]
        if session.side.done:  # it has ended the stream with its last word
            break
        answers = [peer.take(session, message) for message in turn]
        assert not any(answers[:-1]), "an answer before the end of the turn"
        turn = answers[-1]
    return sent


def assert_honest(messages: list[Any], key_range: KeyRange | None, held: set[bytes]) -> None:
    """Check that all hashes are of the keys that the sender holds, and all its keys such."""
    reached = LOWEST if key_range is None else key_range.lower
    for message in messages:
        if isinstance(message, Cip124Message):
            assert set(message.bounds[1:-1]) <= held
            for gap, ahash in zip(pairwise(message.bounds), message.hashes, strict=True):
                assert ahash == Sha256a.of(*(key for key in held if KeyRange(*gap).covers(key)))
            continue
        listed = iter(getattr(message, "listed", ()))

        ours = {key for key in held if key_range.covers(key)}
        for upper, mode, body in message.gaps.columns():
            keys = {key for key in ours if reached <= key and (upper == END or key < upper)}
            if mode is Mode.FINGERPRINT:
                is_unknown = message.salt is not None and body == bytes(16)
                assert is_unknown or body == fingerprint_of_keys(keys, message.salt)
            elif mode in (Mode.KEYS, Mode.LACKING):
                ids = {id_of(key) for key in keys}
                said = {id_of(key) for key in body} | set(next(listed, NOTHING_LISTED).ids.tolist())
                assert set(body) <= keys
                assert said == ids if mode is Mode.KEYS else said <= ids
            reached = upper
        assert message.digest in (None, LtHash.of(*ours).digest())


def id_of(key: bytes) -> int:
    return int(ids_of(sha256(key).digest())[0])


def added_up(digests: Iterable[bytes]) -> bytes:
    """The Sha256a of digests, lane by lane, as CIP-124 writes it."""
    lanes = [0] * 8
    for digest in digests:
        for lane in range(8):
            lanes[lane] += int.from_bytes(digest[4 * lane : 4 * lane + 4], "little")
    return b"".join((lane % 2**32).to_bytes(4, "little") for lane in lanes)


def fingerprint_of_keys(keys: set[bytes], salt: bytes | None) -> bytes:
    return fingerprint(sum(lanes_of((salt or b"") + key) for key in keys))


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """Bytes with some runs overwritten, taken out, put in, repeated, or cut off at the end, as a
    fuzzer does it."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 8) | st.just(len(raw))))
        run = draw(st.binary(max_size=8) | st.just(raw[start:end] * 2))
        raw = raw[:start] + run + raw[end:]
    return raw


def gaps_of(*columns: tuple[bytes, Mode, Body]) -> Gaps:
    """Make gaps from an upper bound, what is said, and the body of each."""
    gaps = Gaps()
    for upper, mode, body in columns:
        gaps.append(upper, mode, body)
    return gaps


def numbered(start: int, end: int) -> set[bytes]:
    """Keys of equal length, in the order of their numbers."""
    return {b"%06d" % n for n in range(start, end)}


def write(message: Cip124Message, names: dict[Sha256a, str]) -> str:
    """Write a message as the specification does: (ape, h(eel,fox), gnu)."""
    bounds = ["END" if bound == HIGHEST else bound.decode() for bound in message.bounds]
    parts = bounds[:1]
    for ahash, bound in zip(message.hashes, bounds[1:], strict=True):
        parts += [names[ahash], bound]
    return "(" + ", ".join(parts) + ")"
