"""`/ceramic/recon/0.1.0` between sides that refuse events of each other: all others arrive."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.recon.actions import Admit, Send, SendValues, Value, turn_of
from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.ring import differences as module
from recon_node.recon.ring.differences import Differences, Ending, Exchange, PeerKeys
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import Message
from recon_node.recon.ring.ring_session import Initiator, Responder

EVERYTHING = KeyRange(b"", b"\xff")
BATCH = 3
"""Values that the other side admits at once; ceramic-one admits 100."""


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_VALUES", BATCH)
        yield


FIRST_PAUSE = module.BEFORE_TRYING_AGAIN.first


class HangsUpError(Exception):
    """A ceramic-one node ends the session over an event that is not valid."""


class Node:
    """A set of keys, and some that it refuses."""

    def __init__(self, keys: Iterable[bytes], refuses: Iterable[bytes]) -> None:
        self.refuses = frozenset(refuses)
        self.store = KeyStore(set(keys) - self.refuses)
        self.values_sent = 0

    def begin(self, role: type) -> None:
        self.ring = Ring(self._keys(), lambda bound: bound in (b"", b"\xff"))
        self.session = role(self.ring, [EVERYTHING])

    def take(self, message: Message) -> Iterator[Message]:
        for action in self.session.receive(message):
            match action:
                case Send([reply]):
                    yield reply
                case SendValues(first, last):
                    for key in self._to_send(self.ring.keys(first, last)):
                        self.values_sent += 1
                        yield Value(key, b"")
                case Admit(values):
                    self._admit([value.key for value in values])


class OurNode(Node):
    """It goes on past what it refuses, and remembers what the peer refuses."""

    def __init__(self, keys: Iterable[bytes], refuses: Iterable[bytes]) -> None:
        super().__init__(keys, refuses)
        self.now = 0.0
        self.differences = Differences(lambda: self.now)

    def _keys(self) -> PeerKeys:
        self.exchange: Exchange = self.differences.begin(self.store)
        return self.exchange.keys

    def _to_send(self, keys: Iterator[bytes]) -> Iterator[bytes]:
        for key in self.exchange.to_send(keys):
            self.exchange.note_sent(key)
            yield key

    def _admit(self, keys: list[bytes]) -> None:
        for key in keys:
            if key not in self.refuses:
                self.store.add(key)
            self.exchange.note_received(key)

    def end(self, ending: Ending) -> None:
        self.exchange.end(ending)


class CeramicOneNode(Node):
    """It keeps the valid values of each batch, and hangs up if there are others.

    It admits a batch when it is full, and the last one at the end of the session.
    """

    def _keys(self) -> KeyStore:
        self._batch: list[bytes] = []
        return self.store

    def _to_send(self, keys: Iterator[bytes]) -> list[bytes]:
        return list(keys)

    def _admit(self, keys: list[bytes]) -> None:
        for key in keys:
            self._batch.append(key)
            if len(self._batch) == BATCH:
                self.flush()

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        self.store.load(key for key in batch if key not in self.refuses)
        if not self.refuses.isdisjoint(batch):
            raise HangsUpError

    def end(self, ending: Ending) -> None:
        pass


def sync(initiator: Node, responder: Node) -> Ending:
    """Run a session to its end."""
    initiator.begin(Initiator)
    responder.begin(Responder)
    to_responder, to_initiator = turn_of(initiator.session.start()), []
    ending = Ending.WELL
    try:
        while to_responder or to_initiator:
            if to_responder:
                to_initiator += responder.take(to_responder.pop(0))
            else:
                to_responder += initiator.take(to_initiator.pop(0))
        for node in (initiator, responder):
            if isinstance(node, CeramicOneNode):
                node.flush()
    except HangsUpError:
        ending = Ending.PEER_HUNG_UP
    for node in (initiator, responder):
        node.end(ending)
    return ending


keys = st.sets(st.binary(min_size=1, max_size=2).filter(lambda key: key[0] < 255), max_size=60)


@given(keys, keys, keys, keys, st.sampled_from([OurNode, CeramicOneNode]), st.data())
def test_all_that_both_sides_take_is_at_both(ours, theirs, refused, refused_by_other, kind, data):
    one = OurNode(ours, refused)
    other = kind(theirs, refused_by_other)
    union = set(one.store) | set(other.store)
    quiet = 0
    for _ in range(8 + 4 * len(union)):
        before = one.values_sent + other.values_sent
        ending = sync(*data.draw(st.permutations([one, other])))
        is_quiet = ending is Ending.WELL and one.values_sent + other.values_sent == before
        quiet = quiet + 1 if is_quiet else 0
        if quiet == 2:  # the first one may only have found out what the peer refuses
            break
    assert quiet == 2
    for side, away in ((one, other), (other, one)):
        wanted = {key for key in away.store if key not in side.refuses}
        assert wanted <= set(side.store)
    # Nothing is sent again, and the hashes are equal, until the pause is over.
    before = one.values_sent + other.values_sent
    for _ in range(2):
        assert sync(one, other) is Ending.WELL
        assert sync(other, one) is Ending.WELL
    assert one.values_sent + other.values_sent == before
    if kind is CeramicOneNode:
        one.begin(Initiator)
        assert one.ring.state(b"", b"\xff").summary == other.store.summarize(EVERYTHING)
        one.end(Ending.BROKEN_OFF)


@given(keys, keys, keys)
def test_what_is_taken_later_arrives_after_the_pause(ours, theirs, refused):
    """For instance, after an interest or an endpoint of a chain was added."""
    one, other = OurNode(ours, refused), CeramicOneNode(theirs, refused)
    for _ in range(4 + 2 * len(ours | theirs)):
        sync(one, other)
    one.refuses = other.refuses = frozenset()
    one.store.load(ours)
    other.store.load(theirs)
    one.now = module.BEFORE_TRYING_AGAIN.longest + 1
    for _ in range(4):
        sync(one, other)
    assert set(one.store) == set(other.store) == ours | theirs


def test_what_is_refused_is_tried_after_longer_and_longer_pauses():
    one, other = OurNode([b"a"], []), CeramicOneNode([], [b"a"])
    tried = []
    for second in range(100):
        one.now = float(second)
        before = one.values_sent
        sync(one, other)
        tried += [second] * (one.values_sent - before)
    # It is sent, found to be refused a second later, and sent again after the pause.
    assert [later - earlier for earlier, later in pairwise(tried)] == [11, 21, 41]


def test_a_peer_that_comes_back_empty_gets_everything_again():
    one, other = OurNode([b"a"], [b"x"]), CeramicOneNode([b"x"], [])
    sync(one, other)
    other = CeramicOneNode([], [])
    sync(one, other)  # it looks as if it had refused what it got
    assert not set(other.store)
    one.now += FIRST_PAUSE
    sync(one, other)
    assert set(other.store) == {b"a"}
    assert not one.exchange.left_out, "the peer does not hold it any more"


def test_what_was_sent_in_a_session_that_was_cut_off_is_sent_again_at_once():
    one = OurNode([b"a", b"b"], [])
    one.begin(Initiator)
    for key in one.exchange.to_send([b"a", b"b"]):
        one.exchange.note_sent(key)
    one.end(Ending.BROKEN_OFF)
    one.begin(Initiator)
    assert one.exchange.to_send([b"a", b"b"]) == [b"a", b"b"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_REFUSED", 5)
    monkeypatch.setattr(module, "MAX_SENT", 5)
    differences = Differences(lambda: 0.0)
    for session in range(4):
        exchange = differences.begin(KeyStore())
        for number in range(session * 10, session * 10 + 8):
            exchange.note_received(b"%d" % number)
            exchange.note_sent(b"%d" % number)
        exchange.end(Ending.PEER_HUNG_UP)
        assert exchange.unremembered == (3 if not session else 8)
    assert len(differences) == 10


@given(keys, keys, keys, st.binary(max_size=2), st.binary(max_size=2))
def test_the_peers_set_is_seen_as_a_plain_set_is(held, here, there, low, high):
    here -= held
    view = PeerKeys(KeyStore(held), KeyStore(here), KeyStore(there & held))
    seen = sorted(key for key in (held - there) | here if KeyRange(low, high).covers(key))
    key_range = KeyRange(low, high)
    assert list(view.keys(key_range)) == seen
    assert [view.nth(key_range, index) for index in range(len(seen))] == seen
    with pytest.raises(IndexError):
        view.nth(key_range, len(seen))
    assert view.summarize(key_range) == KeyStore(seen).summarize()
    assert all((key in view) == (key in (held - there) | here) for key in held | here)
