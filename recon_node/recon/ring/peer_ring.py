"""The peer ring: who can be reached where, as signed entries that nodes reconcile.

Entries are kept until they expire. A node publishes a new one at half its lifetime, and whenever
its addresses change; its older entries stay in the ring until they expire, as they do at other
nodes, because sets that differ would be sent again at every sync.

Anyone can make up nodes and sign for them. So the ring is bounded: for each node, and in all. What
is beyond a bound is refused without ending the session, since an honest peer may hold more than we
do. When the ring is full, a new entry replaces a random one of a node that we have never been
connected to, so that made-up entries cannot keep real ones out for good.

A key of the ring is an entry, as ceramic-one 0.58 has it:

    <expiry: 11 digits, Unix seconds>.<JWS>

The JWS is compact. Its header is {"alg": "EdDSA", "kid": "<multibase of the public key>"}, its
payload {"id": {"public_ed25519_key_bytes": [32 integers]}, "expiration", "addresses"}. An entry is
signed by the key that it is about, so that any peer can pass it on. Entries sort by their expiry:
those that have not expired yet are one range of keys.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from typing import Any, Final

from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import Ed25519Key, ed25519_did
from recon_node.ipld import multibase
from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.ring.ring import Ring

MAX_EXPIRY: Final = 99_999_999_999
"""The latest expiry, in Unix seconds: eleven digits."""
MAX_ENTRY: Final = 4096
"""Maximum bytes of an entry; one with two addresses has about 700."""
MAX_ADDRESSES: Final = 32
"""Maximum addresses in an entry."""
MAX_ADDRESS: Final = 512
"""Maximum characters of an address."""

_DIGITS: Final = 11
_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 public key."""
_ENTRY: Final = re.compile(rb"([0-9]{11})\.([\w-]+)\.([\w-]+)\.([\w-]+)", re.ASCII)
_BOUND: Final = re.compile(rb"[0-9]{11}", re.ASCII)
_PEER_ID_HEAD: Final = bytes.fromhex("0024080112") + b"\x20"
"""Identity multihash of the protobuf of an Ed25519 public key, before its 32 bytes."""


class PeerEntryError(ValueError):
    """Bytes that are not a valid peer entry; the text says why."""


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """Where a node can be reached, and until when it says so.

    Args:
        public_key: the node's Ed25519 key, 32 bytes.
        expiry: Unix seconds.
        addresses: multiaddrs as text, usually with `/p2p/` and the peer ID at their end.
    """

    public_key: bytes
    expiry: int
    addresses: tuple[str, ...]

    @property
    def peer_id(self) -> str:
        """The libp2p peer ID in base58."""
        return multibase.encode(_PEER_ID_HEAD + self.public_key, "base58btc")[1:]


def sign_entry(key: SigningKey, expiry: int, addresses: tuple[str, ...]) -> bytes:
    """Return a node's own entry, signed: a key of the peer ring.

    `expiry` is in Unix seconds, and addresses are multiaddrs as text.

    Raises:
        PeerEntryError: the expiry or the addresses are out of bounds.
    """
    public_key = bytes(key.verify_key)
    header = {"alg": "EdDSA", "kid": ed25519_did(public_key).removeprefix("did:key:")}
    payload = {
        "id": {"public_ed25519_key_bytes": list(public_key)},
        "expiration": expiry,
        "addresses": list(addresses),
    }
    texts = (json.dumps(part, separators=(",", ":")) for part in (header, payload))
    signed = b".".join(_to_base64(text.encode()) for text in texts)
    signature = _to_base64(key.sign(signed).signature)
    entry = expiry_bound(expiry) + b"." + signed + b"." + signature
    parse_entry(entry)
    return entry


def parse_entry(entry: bytes) -> PeerEntry:
    """Read an entry and check its signature; the caller compares the expiry with a clock.

    Raises:
        PeerEntryError: malformed, too large, or not signed by the node that it is about.
    """
    if len(entry) > MAX_ENTRY:
        raise PeerEntryError(f"a peer entry of {len(entry)} bytes; the limit is {MAX_ENTRY}")
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise PeerEntryError("a peer entry that is not 11 digits, a full stop and a JWS")
    expiry, header, payload, signature = match.groups()
    if _object(header, "header").get("alg") != "EdDSA":
        raise PeerEntryError("a peer entry that is not signed with EdDSA")
    parsed = _parse_payload(_object(payload, "payload"))
    if parsed.expiry != int(expiry):
        raise PeerEntryError(
            f"a peer entry whose JWS expires at {parsed.expiry}, not {int(expiry)}"
        )
    key = Ed25519Key.from_bytes(parsed.public_key)
    if not key.verify(header + b"." + payload, _from_base64(signature, "signature")):
        raise PeerEntryError(f"the peer entry of {parsed.peer_id} has a wrong signature")
    return parsed


def is_bound(bound: bytes) -> bool:
    """Return whether a bound is a fencepost of the peer ring: an expiry alone."""
    return _BOUND.fullmatch(bound) is not None


def expiry_bound(expiry: int) -> bytes:
    """Return the fencepost below all entries that expire at a time (Unix seconds) or later.

    Raises:
        PeerEntryError: the time is negative or has more than eleven digits.
    """
    if not 0 <= expiry <= MAX_EXPIRY:
        raise PeerEntryError(f"an expiry is from 0 to {MAX_EXPIRY} Unix seconds, not {expiry}")
    return str(expiry).zfill(_DIGITS).encode()


def unexpired(now: int) -> KeyRange:
    """Return the range of the entries that have not expired at a time (Unix seconds).

    Raises:
        PeerEntryError: the time is negative or has more than eleven digits.
    """
    return KeyRange(expiry_bound(now), expiry_bound(MAX_EXPIRY))


def _parse_payload(payload: dict[str, Any]) -> PeerEntry:
    identity, expiry = payload.get("id"), payload.get("expiration")
    addresses = payload.get("addresses")
    numbers = identity.get("public_ed25519_key_bytes") if isinstance(identity, dict) else None
    try:
        public_key = bytes(numbers) if isinstance(numbers, list) else b""
    except (TypeError, ValueError):
        public_key = b""
    if len(public_key) != _KEY_SIZE:
        raise PeerEntryError("a peer entry without an Ed25519 key of 32 bytes")
    if type(expiry) is not int or not 0 <= expiry <= MAX_EXPIRY:
        raise PeerEntryError("a peer entry whose expiration is not a number of Unix seconds")
    if (
        not isinstance(addresses, list)
        or len(addresses) > MAX_ADDRESSES
        or not all(type(address) is str and len(address) <= MAX_ADDRESS for address in addresses)
    ):
        raise PeerEntryError(f"a peer entry whose addresses are not at most {MAX_ADDRESSES} texts")
    return PeerEntry(public_key, expiry, tuple(addresses))


def _object(part: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(_from_base64(part, what))
    except (ValueError, RecursionError):
        raise PeerEntryError(f"a peer entry whose {what} is not JSON") from None
    if type(value) is not dict:
        raise PeerEntryError(f"a peer entry whose {what} is not a JSON object")
    return value


def _to_base64(data: bytes) -> bytes:
    return multibase.encode(data, "base64url")[1:].encode()


def _from_base64(part: bytes, what: str) -> bytes:
    try:
        return multibase.decode("u" + part.decode())  # strict: an entry must not have several keys
    except ValueError:
        raise PeerEntryError(f"a peer entry whose {what} is not canonical base64url") from None


LIFETIME: Final = 24 * 60 * 60
"""Seconds for which a node's own entry is valid; ceramic-one's."""
MAX_LIFETIME: Final = 7 * LIFETIME
"""Maximum seconds until an entry's expiry; one that is to stay longer is refused."""
MAX_ENTRIES: Final = 10_000
"""Maximum entries in the ring."""
MAX_ENTRIES_PER_NODE: Final = 32
"""Maximum entries of one node."""


_ADDRESSES_SIZE: Final = 2048
"""Maximum characters of the addresses in our own entry, so that it has at most `MAX_ENTRY` bytes in
base64."""
_TRIES: Final = 32
"""Random entries that are looked at for one that may be replaced."""


class EntryVerdict(Enum):
    """What became of an entry."""

    ADDED = auto()
    KNOWN = auto()
    EXPIRED = auto()
    """It has expired, or would stay too long."""
    NO_ROOM = auto()
    """The node has too many entries, or the ring is full of nodes that we know."""
    INVALID = auto()
    """Malformed, or not signed by the node that it is about."""


class PeerRing:
    """The entries of all nodes that have not expired.

    `pick` returns a random number from 0 to below its argument, and `was_connected` says whether
    we have ever been connected to a node.
    """

    def __init__(
        self, key: SigningKey, *, pick: Callable[[int], int], was_connected: Callable[[str], bool]
    ) -> None:
        self._key = key
        self._pick = pick
        self._was_connected = was_connected
        self._store = KeyStore()
        self._entries: dict[bytes, PeerEntry] = {}
        self._entries_of: Counter[str] = Counter()
        """How many entries each node has, by its peer ID."""
        self._own = b""
        """The key of our own latest entry."""
        self.ring: Final = Ring(self._store, is_bound)
        """The keys, as sessions see them."""

    def __len__(self) -> int:
        return len(self._store)

    def refresh(self, now: int, addresses: Sequence[str]) -> float:
        """Drop invalid entries, and publish our own if it is due or our addresses changed.

        `now` is in Unix seconds. Of more addresses than fit into an entry, the first are published.

        Returns:
            The seconds after which to call again.
        """
        self._drop_invalid(now)
        here, half = _fitting(addresses), LIFETIME // 2
        own = self._entries.get(self._own)
        if own is None or own.addresses != here or own.expiry - now <= half:
            self._own = sign_entry(self._key, now + LIFETIME, here)
            own = parse_entry(self._own)
            self._add(self._own, own)
        return max(1, own.expiry - half - now)

    def admit(self, entry: bytes, now: int) -> EntryVerdict:
        """Check an entry that a peer sent, and keep it. `now` is in Unix seconds."""
        if entry in self._store:
            return EntryVerdict.KNOWN
        try:
            parsed = parse_entry(entry)
        except PeerEntryError:
            return EntryVerdict.INVALID
        if not now <= parsed.expiry <= now + MAX_LIFETIME:
            return EntryVerdict.EXPIRED
        if self._entries_of[parsed.peer_id] >= MAX_ENTRIES_PER_NODE:
            return EntryVerdict.NO_ROOM
        if len(self._store) >= MAX_ENTRIES and not self._make_room():
            return EntryVerdict.NO_ROOM
        self._add(entry, parsed)
        return EntryVerdict.ADDED

    def entry(self, key: bytes) -> PeerEntry | None:
        """Return what an entry says; None if it is not in the ring."""
        return self._entries.get(key)

    def others(self) -> list[PeerEntry]:
        """Return the latest entry of each node but this one."""
        latest: dict[str, PeerEntry] = {}
        for key in self._store:  # by expiry
            entry = self._entries[key]
            latest[entry.peer_id] = entry
        if (own := self._entries.get(self._own)) is not None:
            latest.pop(own.peer_id, None)
        return list(latest.values())

    def _add(self, key: bytes, entry: PeerEntry) -> None:
        self._store.add(key)
        self._entries[key] = entry
        self._entries_of[entry.peer_id] += 1

    def _discard(self, key: bytes) -> None:
        self._store.discard(key)
        peer_id = self._entries.pop(key).peer_id
        self._entries_of[peer_id] -= 1
        if not self._entries_of[peer_id]:
            del self._entries_of[peer_id]

    def _drop_invalid(self, now: int) -> None:
        """Drop entries that have expired, or stay too long, as the clock was ahead before."""
        latest = expiry_bound(now + MAX_LIFETIME + 1)
        for invalid in (KeyRange(b"", expiry_bound(now)), KeyRange(latest, b"\xff")):
            for key in list(self._store.keys(invalid)):
                self._discard(key)

    def _make_room(self) -> bool:
        """Discard a random entry of a node that we have never been connected to."""
        everything = KeyRange(b"", expiry_bound(MAX_EXPIRY))
        for _ in range(_TRIES):
            key = self._store.nth(everything, self._pick(len(self._store)))
            peer_id = self._entries[key].peer_id
            if key != self._own and not self._was_connected(peer_id):
                self._discard(key)
                return True
        return False


def _fitting(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the first of some addresses, as many as fit into an entry."""
    number = sum(size <= _ADDRESSES_SIZE for size in accumulate(map(len, addresses)))
    return tuple(addresses[: min(number, MAX_ADDRESSES)])
