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
full. A session is a generator of such actions; the driver performs each one before it asks for the
next:

    for action in session.receive(message):
        ...  # Send, SendValues, Admit

Why a session ends: a request is made for a part of a response, and a response's parts lie inside
the range that was asked for. A part is either smaller than that range, or one in which a side holds
nothing, which the next message settles. A peer that answers otherwise breaks the protocol. What a
peer may cost is bounded by `MAX_DEPTH`, by values that are of no use, and by the driver's bounds on
time and bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from recon_node.recon.keys.ranges import KeyRange, intersect_ranges, merge_ranges
from recon_node.recon.side import RemoteProtocolError
from recon_node.recon.v0_1.codec import (
    Finished,
    InterestRequest,
    InterestResponse,
    Message,
    RangeHash,
    RangeRequest,
    RangeResponse,
    Value,
)
from recon_node.recon.v0_1.ring import Outcome, Ring

MAX_IN_FLIGHT: Final = 20
"""RangeRequests without an answer at most; ceramic-one's."""
MAX_DEPTH: Final = 256
"""How often a range is cut into parts at most; halving 2^64 keys from both sides takes 128."""
BATCH_VALUES: Final = 100
"""Values after which a batch is admitted; ceramic-one's."""
BATCH_BYTES: Final = 4 << 20
"""Bytes of values after which a batch is admitted."""
MAX_USELESS_VALUES: Final = 1000
"""Values of keys that we hold, beyond as many as were new, before the peer is stopped.

Some are usual: another peer may have sent the same ones meanwhile.
"""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message."""

    message: Message


@dataclass(frozen=True, slots=True)
class SendValues:
    """Send the values of all our keys in a half-open range, page by page, each as a `Value`."""

    first: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class Admit:
    """Have values admitted before the next action; end the session if one of them is invalid."""

    values: tuple[Value, ...]


Action: TypeAlias = Send | SendValues | Admit


class _Inbox:
    """The values that came in and are not admitted yet, and whether they were any use."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._values: list[Value] = []
        self._size = 0
        self._useless = 0
        self.new_keys = 0
        """Values of keys that we did not hold when they came."""

    @property
    def held(self) -> int:
        """Bytes of the values that are not admitted yet."""
        return self._size

    def take(self, value: Value, interests: list[KeyRange]) -> Iterator[Action]:
        if not any(each.covers(value.key) for each in interests):
            raise RemoteProtocolError(f"the value of {value.key.hex()} is outside our interests")
        if value.key in self._ring:
            self._useless += 1
            if self._useless > MAX_USELESS_VALUES + self.new_keys:
                raise RemoteProtocolError(
                    f"{self._useless} values of keys that we hold, and {self.new_keys} of others"
                )
            return
        self.new_keys += 1
        self._values.append(value)
        self._size += len(value.value)
        if len(self._values) >= BATCH_VALUES or self._size >= BATCH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Action]:
        if self._values:
            values, self._values, self._size = tuple(self._values), [], 0
            yield Admit(values)


class Initiator:
    """The side that opened the stream.

    Args:
        ring: our keys.
        interests: the open ranges of keys that we are interested in.
    """

    def __init__(self, ring: Ring, interests: Iterable[KeyRange]) -> None:
        self._ring = ring
        self._interests = merge_ranges(interests)
        self._overlap: list[KeyRange] | None = None
        self._inbox = _Inbox(ring)
        self._waiting: list[_Request] = []
        """Requests to make, the next one last."""
        self._in_flight: deque[_Request] = deque()
        """Requests without an answer, in the order in which they will be answered."""
        self.finished = False
        """Whether Finished was said; the responder then closes the stream."""

    @property
    def new_keys(self) -> int:
        """Values that came with keys that we did not hold."""
        return self._inbox.new_keys

    @property
    def held(self) -> int:
        """Bytes of the values that came and are not admitted yet."""
        return self._inbox.held

    @property
    def peer_interests(self) -> list[KeyRange]:
        """What the peer is interested in, as far as it says so: where we are, too."""
        return self.overlap

    @property
    def overlap(self) -> list[KeyRange]:
        """What both sides are interested in; empty before the peer has answered."""
        return self._overlap or []

    def start(self) -> Message:
        """Return the first message: our interests."""
        return InterestRequest(tuple(self._interests))

    def receive(self, message: Message) -> Iterator[Action]:
        """Take the responder's next message; yield what to do, one action after the other.

        Raises:
            RemoteProtocolError: the message breaks the protocol.
        """
        if self.finished:
            raise RemoteProtocolError("a message after the session was finished")
        if isinstance(message, InterestResponse):
            yield from self._take_interests(message)
        elif self._overlap is None:
            raise RemoteProtocolError("the first message is not an InterestResponse")
        elif isinstance(message, Value):
            if not self._in_flight:
                raise RemoteProtocolError("a value that belongs to no request")
            yield from self._inbox.take(message, self._overlap)
        elif isinstance(message, RangeResponse):
            yield from self._take_response(message)
        else:
            raise RemoteProtocolError(f"{type(message).__name__} from a responder")

    def _take_interests(self, message: InterestResponse) -> Iterator[Action]:
        if self._overlap is not None:
            raise RemoteProtocolError("a second InterestResponse")
        overlap = merge_ranges(message.interests)
        if intersect_ranges(overlap, self._interests) != overlap:
            raise RemoteProtocolError("an overlap that is outside our interests")
        self._overlap = overlap
        self._waiting = [_Request(self._ring.state(*each), depth=0) for each in reversed(overlap)]
        yield from self._go_on()

    def _take_response(self, message: RangeResponse) -> Iterator[Action]:
        if not self._in_flight:
            raise RemoteProtocolError("a RangeResponse that belongs to no request")
        asked = self._in_flight.popleft()
        _check_parts(asked.range, message.ranges)
        yield from self._inbox.flush()
        smaller: list[_Request] = []
        for part in message.ranges:
            comparison = self._ring.compare(part)
            if comparison.outcome is Outcome.PEER_LACKS:
                yield SendValues(part.first, part.last)
            elif comparison.outcome is Outcome.DIFFER:
                if asked.depth == MAX_DEPTH:
                    raise RemoteProtocolError(f"a range was cut into parts {MAX_DEPTH} times")
                smaller += (_Request(each, asked.depth + 1) for each in comparison.parts)
        self._waiting += reversed(smaller)
        yield from self._go_on()

    def _go_on(self) -> Iterator[Action]:
        """Make as many requests as may be in flight, or finish."""
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            request = self._waiting.pop()
            self._in_flight.append(request)
            yield Send(RangeRequest(request.range))
        if not self._in_flight:
            yield from self._inbox.flush()
            self.finished = True
            yield Send(Finished())


@dataclass(frozen=True, slots=True)
class _Request:
    """A range to ask about, and how often it was cut out of another."""

    range: RangeHash
    depth: int


def _check_parts(asked: RangeHash, parts: tuple[RangeHash, ...]) -> None:
    """Refuse an answer that is not about the range asked for, or leads nowhere.

    Raises:
        RemoteProtocolError: parts overlap or lie outside, or the same range comes back with other
            keys than one side's.
    """
    at = asked.first
    for part in parts:
        if part.first < at or part.last > asked.last:
            raise RemoteProtocolError("a RangeResponse with parts outside the range asked for")
        at = part.last
    if len(parts) == 1 and (parts[0].first, parts[0].last) == (asked.first, asked.last):
        count = parts[0].summary.count
        if count > 1 and parts[0].summary != asked.summary:
            raise RemoteProtocolError(
                f"a RangeResponse of the range asked for, not cut, with {count} keys of its own"
            )


class Responder:
    """The side that accepted the stream.

    Args:
        ring: our keys.
        interests: the open ranges of keys that we are interested in.
    """

    def __init__(self, ring: Ring, interests: Iterable[KeyRange]) -> None:
        self._ring = ring
        self._interests = merge_ranges(interests)
        self._overlap: list[KeyRange] | None = None
        self._inbox = _Inbox(ring)
        self.peer_interests: list[KeyRange] = []
        """What the peer is interested in, once it has said so."""
        self.finished = False
        """Whether the initiator has finished; the stream is then closed."""

    @property
    def new_keys(self) -> int:
        """Values that came with keys that we did not hold."""
        return self._inbox.new_keys

    @property
    def held(self) -> int:
        """Bytes of the values that came and are not admitted yet."""
        return self._inbox.held

    @property
    def overlap(self) -> list[KeyRange]:
        """What both sides are interested in; empty before the peer has asked."""
        return self._overlap or []

    def receive(self, message: Message) -> Iterator[Action]:
        """Take the initiator's next message; yield what to do, one action after the other.

        Raises:
            RemoteProtocolError: the message breaks the protocol.
        """
        if self.finished:
            raise RemoteProtocolError("a message after the session was finished")
        if isinstance(message, InterestRequest):
            yield from self._take_interests(message)
        elif self._overlap is None:
            raise RemoteProtocolError("the first message is not an InterestRequest")
        elif isinstance(message, Value):
            yield from self._inbox.take(message, self._overlap)
        elif isinstance(message, RangeRequest):
            yield from self._answer(message.range)
        elif isinstance(message, Finished):
            yield from self._inbox.flush()
            self.finished = True
        else:
            raise RemoteProtocolError(f"{type(message).__name__} from an initiator")

    def _take_interests(self, message: InterestRequest) -> Iterator[Action]:
        if self._overlap is not None:
            raise RemoteProtocolError("a second InterestRequest")
        self.peer_interests = merge_ranges(message.interests)
        self._overlap = intersect_ranges(self._interests, self.peer_interests)
        yield Send(InterestResponse(tuple(self._overlap)))

    def _answer(self, asked: RangeHash) -> Iterator[Action]:
        if not any(each.lower <= asked.first and asked.last <= each.upper for each in self.overlap):
            raise RemoteProtocolError("a RangeRequest outside the common interests")
        yield from self._inbox.flush()
        comparison = self._ring.compare(asked)
        if comparison.outcome is Outcome.PEER_LACKS:
            yield SendValues(asked.first, asked.last)
        yield Send(RangeResponse(comparison.parts))
