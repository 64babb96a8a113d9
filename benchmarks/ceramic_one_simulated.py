"""The wire that ceramic-one runs today (`/ceramic/recon/0.1.0`), simulated to the message.

Written from the behaviour of the open-source node ceramicnetwork/rust-ceramic. A range that
differs is split in two, or its keys are sent one range each where it holds at most four. Every
range is a CBOR message of its own with both bounds in full, and the initiator has at most twenty of
them in flight; what waits is taken last in, first out. Both sides learn the difference.

Simulated are the messages, their bytes and their order. The store is this project's, where the
real node asks SQLite to add up the hashes of a range: the CPU time says nothing about that.
Ranges are half-open there: the lower bound belongs to the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.keys import KEY_SIZE
from recon_node.ipld import dag_cbor
from recon_node.recon import ZERO, KeyRange, KeyStore, Sha256a

SPLIT_THRESHOLD: Final = 4
IN_FLIGHT: Final = 20
_SYNC_ID: Final = "00000000-0000-4000-8000-000000000000"

Message = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """What a side says about the keys from `first` up to, but not with, `last`."""

    first: bytes
    hash: Sha256a
    count: int
    last: bytes


def encode(message: Message) -> bytes:
    """Write a message with its envelope."""
    kind, body = message
    if kind == "RangeRequest":
        body = _range_to_map(body)
    elif kind == "RangeResponse":
        body = [_range_to_map(range_) for range_ in body]
    return dag_cbor.encode({"sync_id": _SYNC_ID, "body": {kind: body} if body else kind})


def decode(data: bytes) -> Message:
    """Read what :func:`encode` wrote."""
    envelope = dag_cbor.decode(data)["body"]
    if isinstance(envelope, str):
        return envelope, None
    ((kind, body),) = envelope.items()
    if kind == "RangeRequest":
        return kind, _range_from_map(body)
    if kind == "RangeResponse":
        return kind, [_range_from_map(range_) for range_ in body]
    return kind, body


def _range_to_map(range_: Range) -> dict[str, Any]:
    digest = range_.hash.digest if range_.hash else b""
    return {
        "first": range_.first,
        "hash": {"hash": digest, "count": range_.count},
        "last": range_.last,
    }


def _range_from_map(fields: dict[str, Any]) -> Range:
    digest = fields["hash"]["hash"]
    digest_or_zero = Sha256a(digest) if digest else ZERO
    return Range(fields["first"], digest_or_zero, fields["hash"]["count"], fields["last"])


class _Side:
    """What both roles do with a range that the other side speaks of."""

    def __init__(self, store: KeyStore, key_size: int = KEY_SIZE) -> None:
        self._store = store
        self._key_size = key_size

    def _is_key(self, bound: bytes) -> bool:
        return len(bound) == self._key_size

    def _half_open(self, first: bytes, last: bytes) -> KeyRange:
        """Return the open range with the keys from `first` on. All keys have the same length."""
        if not self._is_key(first):
            return KeyRange(first, last)
        before = int.from_bytes(first, "big") - 1
        return KeyRange(before.to_bytes(self._key_size, "big"), last)

    def _hash(self, first: bytes, last: bytes) -> Range:
        summary = self._store.summarize(self._half_open(first, last))
        return Range(first, summary.hash, summary.count, last)

    def _compare(self, theirs: Range) -> tuple[list[Range], bool]:
        """Return our ranges in answer (none: in sync), and whether the peer lacks their keys."""
        first, last = theirs.first, theirs.last
        ours = self._hash(first, last)
        if ours == theirs:
            return [], False
        if not ours.hash:
            return [ours], False
        if not theirs.hash or (self._is_key(first) and theirs.count == 1):
            return self._tell_all(ours), True
        return list(self._split(ours)), False

    def _tell_all(self, ours: Range) -> list[Range]:
        if not self._is_key(ours.first) or ours.first in self._store:
            return [ours]
        second = self._keys(ours)[0]
        return [Range(ours.first, ZERO, 0, second), self._hash(second, ours.last)]

    def _split(self, ours: Range) -> Iterator[Range]:
        if ours.count > SPLIT_THRESHOLD:
            key_range = self._half_open(ours.first, ours.last)
            middle = self._store.nth(key_range, self._store.count(key_range) // 2)
            yield self._hash(ours.first, middle)
            yield self._hash(middle, ours.last)
            return
        keys = self._keys(ours)
        if keys[0] != ours.first:
            yield Range(ours.first, ZERO, 0, keys[0])
        for key, following in zip(keys, [*keys[1:], ours.last], strict=True):
            yield Range(key, Sha256a.of(key), 1, following)

    def _keys(self, ours: Range) -> list[bytes]:
        return list(self._store.keys(self._half_open(ours.first, ours.last)))

    def _values(self, ranges: list[Range]) -> list[Message]:
        """Return the keys as values, without the events: those are not part of the contest."""
        keys = [key for range_ in ranges if range_.count for key in self._keys(range_)]
        return [("Value", {"key": key, "value": b""}) for key in keys]

    def _learn(self, body: dict[str, bytes]) -> None:
        self._store.add(body["key"])


class Initiator(_Side):
    """The side that asks."""

    def __init__(self, store: KeyStore, interest: KeyRange, key_size: int = KEY_SIZE) -> None:
        super().__init__(store, key_size)
        self._interest = interest
        self._waiting: list[Range] = []
        self._in_flight = 0
        self.done = False

    def start(self) -> list[Message]:
        """Return the first messages."""
        lower, upper = self._interest
        return [("InterestRequest", [{"start": lower, "end": upper}])]

    def receive(self, message: Message) -> list[Message]:
        """Take a message; return what is said to it."""
        kind, body = message
        if kind == "Value":
            self._learn(body)
            return []
        if kind == "InterestResponse":
            return self._ask([self._hash(values["start"], values["end"]) for values in body])
        self._in_flight -= 1
        answer = self._ask([])
        for theirs in body:
            ranges, peer_lacks_them = self._compare(theirs)
            answer += self._values(ranges) if peer_lacks_them else []
            answer += self._ask(ranges)
        if not self._in_flight:
            self.done = True
            answer.append(("Finished", None))
        return answer

    def _ask(self, ranges: list[Range]) -> list[Message]:
        """Ask for ranges while there is room in flight: the new ones first, then the latest."""
        room = IN_FLIGHT - self._in_flight
        asked = ranges[:room]
        self._waiting += ranges[room:]
        while self._waiting and len(asked) < room:
            asked.append(self._waiting.pop())
        self._in_flight += len(asked)
        return [("RangeRequest", range_) for range_ in asked]


class Responder(_Side):
    """The side that answers."""

    def receive(self, message: Message) -> list[Message]:
        """Take a message; return what is said to it."""
        kind, body = message
        if kind == "InterestRequest":
            return [("InterestResponse", body)]
        if kind == "RangeRequest":
            ranges, peer_lacks_them = self._compare(body)
            values = self._values(ranges) if peer_lacks_them else []
            return [*values, ("RangeResponse", ranges or [body])]
        if kind == "Value":
            self._learn(body)
        return []
