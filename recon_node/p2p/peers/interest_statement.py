"""What a node states to a peer of its interests, as bytes.

    statement = <8 bytes> varint(network id) varint(n) prefix*n
    prefix    = shared size <size bytes>          `shared` and `size` are one byte each

An interest is all keys whose fields after the network id start with certain bytes, its *prefix*: of
none (the whole network) to 20 (one stream). So a prefix is all that has to be said of a range; its
fenceposts follow from it. A shard has several prefixes, side by side. Prefixes ascend and are
front-coded. None of them starts with another.

The first 8 bytes say which statement of the receiver the sender knew: the `digest` of the latest,
or zeros. From them, both sides know whether their statements crossed on the way.

A node with more than `MAX_PREFIXES` interests shortens the longest prefixes until they are few
enough. The statement then covers more than its interests. That costs a sync that finds nothing, and
hides nothing.

Pure: no I/O, no clock.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from recon_node.ceramic import FIELDS_SIZE, Network, prefix_range, rendezvous
from recon_node.ipld import MAX_VARINT, VarintError, decode_varint, encode_varint
from recon_node.p2p.errors import PeerProtocolError
from recon_node.recon import KeyRange
from recon_node.recon.keys.ordered_keys import common_prefix

INTERESTS_PROTOCOL: Final = "/ceramic/interests/1.0.0"
MAX_PREFIXES: Final = 4096
"""Maximum prefixes in a statement."""
DIGEST_SIZE: Final = 8
NOTHING_KNOWN: Final = bytes(DIGEST_SIZE)
"""Stands for the digest of a statement that has not come yet."""
MAX_STATEMENT: Final = DIGEST_SIZE + 2 * MAX_VARINT + MAX_PREFIXES * (2 + FIELDS_SIZE)
"""Maximum bytes of a statement."""
MEMORY_PER_PREFIX: Final = 400
"""Bytes of memory that a prefix takes as a range of keys, and as one in common."""


@dataclass(frozen=True)
class InterestStatement:
    """The interests of a node, as it states them to one peer."""

    network_id: int
    prefixes: tuple[bytes, ...]
    """Ascending; none starts with another."""
    known: bytes = NOTHING_KNOWN
    """The digest of the receiver's statement that the sender knew."""

    @cached_property
    def digest(self) -> bytes:
        """8 bytes that stand for the interests."""
        return hashlib.sha256(self._interests).digest()[:DIGEST_SIZE]

    def encode(self) -> bytes:
        """Return the bytes of the statement."""
        return self.known + self._interests

    def ranges(self, network: Network) -> list[KeyRange]:
        """Return the ranges of keys, ascending and apart; prefixes side by side are one range."""
        spans: list[tuple[bytes, bytes]] = []
        for prefix in self.prefixes:
            rest = FIELDS_SIZE - len(prefix)
            first, last = prefix + bytes(rest), prefix + b"\xff" * rest
            if spans and int.from_bytes(spans[-1][1]) + 1 == int.from_bytes(first):
                first = spans.pop()[0]
            spans.append((first, last))
        return [
            KeyRange(prefix_range(network, first)[0], prefix_range(network, last)[1])
            for first, last in spans
        ]

    @cached_property
    def _interests(self) -> bytes:
        out = bytearray(encode_varint(self.network_id) + encode_varint(len(self.prefixes)))
        last = b""
        for prefix in self.prefixes:
            shared = common_prefix(last, prefix)
            out += bytes((shared, len(prefix) - shared)) + prefix[shared:]
            last = prefix
        return bytes(out)


def state(
    network: Network, ranges: Iterable[KeyRange], known: bytes = NOTHING_KNOWN
) -> InterestStatement:
    """Return the statement of a node's interests.

    Its ranges lie between fenceposts of the network. `known` is the digest of the receiver's latest
    statement.
    """
    start = len(rendezvous(network))
    fields = slice(start, start + FIELDS_SIZE)
    bounds = ((lower[fields], upper[fields]) for lower, upper in ranges)
    prefixes = [prefix for first, last in bounds for prefix in _prefixes(first, last)]
    return InterestStatement(network.id, tuple(_few(prefixes)), known)


def _prefixes(first: bytes, last: bytes) -> Iterator[bytes]:
    """The fewest prefixes of the fields between two, both included."""
    shared = common_prefix(first, last)
    if not any(first[shared:]) and all(byte == 0xFF for byte in last[shared:]):
        yield first[:shared]
        return
    for byte in range(first[shared], last[shared] + 1):
        head, rest = first[:shared] + bytes([byte]), FIELDS_SIZE - shared - 1
        yield from _prefixes(
            first if byte == first[shared] else head + bytes(rest),
            last if byte == last[shared] else head + b"\xff" * rest,
        )


def decode(data: bytes) -> InterestStatement:
    """Read a statement.

    Raises:
        PeerProtocolError: the bytes are not one, or not in the only form that it can have.
    """
    known = data[:DIGEST_SIZE]
    try:
        network_id, at = decode_varint(data, DIGEST_SIZE)
        count, at = decode_varint(data, at)
    except VarintError as error:
        raise PeerProtocolError(
            f"the peer sent a statement of interests that does not parse: {error}"
        ) from None
    if count > MAX_PREFIXES:
        raise PeerProtocolError(
            f"the peer sent a statement of {count} interests; at most {MAX_PREFIXES} are read"
        )
    prefixes: list[bytes] = []
    last = b""
    for _ in range(count):
        if at + 2 > len(data):
            raise PeerProtocolError("the peer sent a statement of interests that ends too early")
        shared, size = data[at], data[at + 1]
        at += 2
        rest = data[at : at + size]
        prefix = last[:shared] + rest
        if len(prefix) != shared + size or len(prefix) > FIELDS_SIZE:
            raise PeerProtocolError(
                "the peer sent a statement of interests with a prefix of the wrong size"
            )
        if prefixes and not (shared < len(last) and rest[:1] > last[shared : shared + 1]):
            raise PeerProtocolError(
                "the peer sent a statement of interests whose prefixes are out of order"
            )
        at += size
        prefixes.append(prefix)
        last = prefix
    if at != len(data):
        raise PeerProtocolError("the peer sent a statement of interests with bytes after its end")
    return InterestStatement(network_id, tuple(prefixes), known)


def _few(prefixes: Iterable[bytes]) -> Sequence[bytes]:
    """Return the fewest prefixes of the same keys, ascending; shorten them if they are too many."""
    separate = _apart(prefixes)
    length = FIELDS_SIZE
    while len(separate) > MAX_PREFIXES:
        length -= 1
        separate = _apart(prefix[:length] for prefix in separate)
    return separate


def _apart(prefixes: Iterable[bytes]) -> list[bytes]:
    """Leave out every prefix that starts with another one."""
    kept: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return kept
