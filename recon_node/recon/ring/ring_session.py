"""Sessions of `/ceramic/recon/0.1.0`: both roles, without I/O.

Theory of operation
-------------------
The initiator names its interests; the responder answers with the overlaps. For each overlap the
initiator sends its hash (a RangeRequest), and each request gets exactly one RangeResponse: the same
range where the sides agree, its parts where they differ, or nothing after the values that the
initiator lacks. The initiator compares each part of a response with its own keys: it sends the
values that the responder lacks, or asks about smaller parts. At most 20 requests are in flight, the
deepest first. When none is open it says Finished, and the responder closes the stream.

Values travel inside the session, unlike in the versions above. They count only once they are
admitted, so a session asks for that (`Admit`) before it computes a hash, and whenever a batch is
full.

Why a session ends: a request is made for a part of a response, and a response's parts lie inside
the range that was asked for. A part is either smaller than that range, or one in which a side holds
nothing, which the next message settles. A peer that answers otherwise breaks the protocol. What a
peer may cost is bounded by `MAX_DEPTH`, `MAX_WAITING`, by values that are of no use, and by the
driver's bounds on time and bytes.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from recon_node.recon.actions import Actions, Admit, Send, SendValues, Session, Value
from recon_node.recon.keys.ordered_keys import KeyRange, covers, intersect_ranges, merge_ranges
from recon_node.recon.ring.ring import Outcome, Ring
from recon_node.recon.ring.ring_codec import (
    Finished,
    InterestRequest,
    InterestResponse,
    Message,
    RangeHash,
    RangeRequest,
    RangeResponse,
)
from recon_node.recon.session import GAPS_PER_STEP, RemoteProtocolError

BATCH_VALUES: Final = 100
"""Values after which a batch is admitted; ceramic-one's."""
BATCH_BYTES: Final = 4 << 20
"""Bytes of values after which a batch is admitted."""
MAX_USELESS_VALUES: Final = 1000
"""Values of keys that we hold, beyond as many as were new, before the peer is stopped.

Some are usual: another peer may have sent the same ones meanwhile.
"""


class Inbox:
    """Values that have come and are not admitted yet, and how many were of no use."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._values: list[Value] = []
        self.held = 0
        """Bytes of these values."""
        self._useless = 0
        self._new_keys = 0
        """Values of keys that we did not hold when they came."""

    def take(self, value: Value, interests: list[KeyRange]) -> Iterator[Admit]:
        """Take a value; yield what is to be admitted now.

        Raises:
            RemoteProtocolError: nobody asked for it, or there are too many of no use.
        """
        if not covers(interests, value.key):
            raise RemoteProtocolError(
                f"the peer sent the value of {value.key.hex()}, which is outside our interests"
            )
        if value.key in self._ring:
            self._useless += 1
            if self._useless > MAX_USELESS_VALUES + self._new_keys:
                raise RemoteProtocolError(
                    f"the peer sent {self._useless} values of keys that we hold, and "
                    f"{self._new_keys} of others"
                )
            return
        self._new_keys += 1
        self._values.append(value)
        self.held += len(value.value)
        if len(self._values) >= BATCH_VALUES or self.held >= BATCH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Admit]:
        """Yield what is not admitted yet."""
        if self._values:
            values, self._values, self.held = tuple(self._values), [], 0
            yield Admit(values)


MAX_IN_FLIGHT: Final = 20
"""Maximum RangeRequests without an answer; ceramic-one's."""
MAX_DEPTH: Final = 256
"""Maximum times that a range is cut into parts; halving 2^64 keys from both sides takes 128."""
MAX_WAITING: Final = 20_000
"""Maximum parts of responses that wait to be asked about; a million differences make about 500."""
_OVERHEAD: Final = 512
"""Bytes that a range takes in memory beside its bounds, about."""


class RingSession(Session[Message]):
    """A session of either role: its first messages, and the values that come."""

    _opening: type[InterestRequest | InterestResponse]
    """The peer's first message."""

    def __init__(self, ring: Ring, interests: Iterable[KeyRange]) -> None:
        self._ring = ring
        self._interests = merge_ranges(interests)
        self._overlap: list[KeyRange] | None = None
        self._inbox = Inbox(ring)
        self._interests_size = 0
        """Bytes that the peer's interests take."""
        self._finished = False
        """Whether the initiator has said Finished; the responder then closes the stream."""
        self._rounds = 0
        self.peer_interests: list[KeyRange] = []
        """What the peer is interested in, as far as it has said so."""

    @property
    def rounds(self) -> int:
        """Messages of the peer that are not values."""
        return self._rounds

    @property
    def held(self) -> int:
        """Bytes that the peer makes this session hold."""
        return self._inbox.held + self._interests_size

    @property
    def overlap(self) -> list[KeyRange]:
        """What both sides are interested in; empty before the peer has said what it is."""
        return self._overlap or []

    def end_of_stream(self) -> bool:
        """Return whether the session was finished."""
        return self._finished

    def receive(self, message: Message) -> Actions[Message]:
        """Take the peer's next message.

        Raises:
            RemoteProtocolError: the message breaks the protocol.
        """
        if self._finished:
            raise RemoteProtocolError("the peer sent a message after the session was finished")
        self._rounds += not isinstance(message, Value)
        if isinstance(message, self._opening):
            if self._overlap is not None:
                raise RemoteProtocolError(f"the peer sent a second {self._opening.__name__}")
            yield from self._take_interests(merge_ranges(message.interests))
        elif self._overlap is None:
            raise RemoteProtocolError(
                f"the peer's first message is not an {self._opening.__name__}"
            )
        elif isinstance(message, Value):
            yield from self._take_value(message, self._overlap)
        else:
            yield from self._take(message)

    @abstractmethod
    def _take_interests(self, interests: list[KeyRange]) -> Actions[Message]:
        """Take what the peer is interested in."""

    def _take_value(self, value: Value, overlap: list[KeyRange]) -> Actions[Message]:
        yield from self._inbox.take(value, overlap)

    @abstractmethod
    def _take(self, message: Message) -> Actions[Message]:
        """Take any other message."""


class Initiator(RingSession):
    """The side that opened the stream."""

    initiates = True
    _opening = InterestResponse

    def __init__(self, ring: Ring, interests: Iterable[KeyRange]) -> None:
        super().__init__(ring, interests)
        self._left: list[KeyRange] = []
        """Overlaps to ask about, the next one last."""
        self._waiting: list[_Request] = []
        """Requests to make before those, the next one last."""
        self._waiting_size = 0
        """Bytes that they take."""
        self._in_flight: deque[_Request] = deque()
        """Requests without an answer, in the order in which they will be answered."""

    @property
    def done(self) -> bool:
        """False: the session ends with the stream."""
        return False

    @property
    def held(self) -> int:
        """Bytes that the peer makes this session hold."""
        return super().held + self._waiting_size

    def start(self) -> Actions[Message]:
        """Send our interests."""
        yield Send([InterestRequest(tuple(self._interests))])

    def _take_interests(self, interests: list[KeyRange]) -> Actions[Message]:
        if intersect_ranges(interests, self._interests) != interests:
            raise RemoteProtocolError("the peer sent an overlap that is outside our interests")
        self._overlap = self.peer_interests = interests
        self._interests_size = _size(interests)
        self._left = interests[::-1]
        yield from self._go_on()

    def _take_value(self, value: Value, overlap: list[KeyRange]) -> Actions[Message]:
        if not self._in_flight:
            raise RemoteProtocolError("the peer sent a value that belongs to no request")
        yield from super()._take_value(value, overlap)

    def _take(self, message: Message) -> Actions[Message]:
        if not isinstance(message, RangeResponse):
            raise RemoteProtocolError(f"the peer, a responder, sent {type(message).__name__}")
        if not self._in_flight:
            raise RemoteProtocolError("the peer sent a RangeResponse that belongs to no request")
        asked = self._in_flight.popleft()
        _check_parts(asked.range, message.ranges)
        yield from self._inbox.flush()
        smaller: list[_Request] = []
        for index, part in enumerate(message.ranges):
            if index % GAPS_PER_STEP == 0:
                yield None
            comparison = self._ring.compare(part)
            if comparison.outcome is Outcome.PEER_LACKS:
                yield SendValues(part.first, part.last)
            elif comparison.outcome is Outcome.DIFFER:
                if asked.depth == MAX_DEPTH:
                    raise RemoteProtocolError(
                        f"the peer had a range cut into parts {MAX_DEPTH} times"
                    )
                smaller += (_Request(half, asked.depth + 1) for half in comparison.parts)
        self._waiting += reversed(smaller)
        self._waiting_size += sum(request.size for request in smaller)
        if len(self._waiting) > MAX_WAITING:
            raise RemoteProtocolError(
                f"the peer has {len(self._waiting)} parts of ranges that differ"
            )
        yield from self._go_on()

    def _go_on(self) -> Actions[Message]:
        """Make as many requests as may be in flight, or finish."""
        while (self._waiting or self._left) and len(self._in_flight) < MAX_IN_FLIGHT:
            if self._waiting:
                request = self._waiting.pop()
                self._waiting_size -= request.size
            else:
                request = _Request(self._ring.state(*self._left.pop()), depth=0)
            self._in_flight.append(request)
            yield Send([RangeRequest(request.range)])
        if not self._in_flight:
            yield from self._inbox.flush()
            self._finished = True
            yield Send([Finished()])


@dataclass(frozen=True, slots=True)
class _Request:
    """A range to ask about, and how often it was cut out of another."""

    range: RangeHash
    depth: int

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.range.first) + len(self.range.last) + _OVERHEAD


def _check_parts(asked: RangeHash, parts: tuple[RangeHash, ...]) -> None:
    """Refuse an answer that is not about the range asked for, or leads nowhere.

    Raises:
        RemoteProtocolError: parts overlap or lie outside, or the same range comes back with other
            keys than one side's.
    """
    at = asked.first
    for part in parts:
        if part.first < at or part.last > asked.last:
            raise RemoteProtocolError(
                "the peer sent a RangeResponse with parts outside the range asked for"
            )
        at = part.last
    if len(parts) == 1 and (parts[0].first, parts[0].last) == (asked.first, asked.last):
        count = parts[0].summary.count
        if count > 1 and parts[0].summary != asked.summary:
            raise RemoteProtocolError(
                "the peer sent a RangeResponse of the range asked for, not cut, with "
                f"{count} keys of its own"
            )


class Responder(RingSession):
    """The side that accepted the stream."""

    initiates = False
    _opening = InterestRequest

    @property
    def done(self) -> bool:
        """Whether the initiator has finished."""
        return self._finished

    def start(self) -> Actions[Message]:
        """Do nothing: the initiator begins."""
        yield from ()

    def _take_interests(self, interests: list[KeyRange]) -> Actions[Message]:
        self.peer_interests = interests
        self._overlap = intersect_ranges(self._interests, interests)
        self._interests_size = _size(interests) + _size(self._overlap)
        yield Send([InterestResponse(tuple(self._overlap))])

    def _take(self, message: Message) -> Actions[Message]:
        if isinstance(message, RangeRequest):
            yield from self._answer(message.range)
        elif isinstance(message, Finished):
            yield from self._inbox.flush()
            self._finished = True
        else:
            raise RemoteProtocolError(f"the peer, an initiator, sent {type(message).__name__}")

    def _answer(self, asked: RangeHash) -> Actions[Message]:
        if not _is_inside(self.overlap, asked):
            raise RemoteProtocolError("the peer sent a RangeRequest outside the common interests")
        yield from self._inbox.flush()
        comparison = self._ring.compare(asked)
        if comparison.outcome is Outcome.PEER_LACKS:
            yield SendValues(asked.first, asked.last)
        yield Send([RangeResponse(comparison.parts)])


def _size(ranges: list[KeyRange]) -> int:
    return sum(len(key_range.lower) + len(key_range.upper) + _OVERHEAD for key_range in ranges)


def _is_inside(ranges: list[KeyRange], asked: RangeHash) -> bool:
    """Return whether a half-open range is in one of some merged ranges."""
    at = bisect_left(ranges, (asked.first + b"\0", b"")) - 1
    return at >= 0 and asked.last <= ranges[at].upper
