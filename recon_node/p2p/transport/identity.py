"""Peer ids, and the node's identity on the network: an Ed25519 key pair that outlives restarts.

The private key is in `identity.key` in the data directory, in libp2p's protobuf (36 bytes for
Ed25519), readable by its owner only. The peer id is derived from it.
"""

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from Crypto.PublicKey import RSA
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey as RSAKey
from cryptography.hazmat.primitives.serialization import load_der_public_key
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.exceptions import CryptographyError
from libp2p.crypto.keys import KeyPair, KeyType
from libp2p.crypto.rsa import RSAPublicKey
from libp2p.crypto.serialization import deserialize_private_key, key_type_to_public_key_deserializer
from libp2p.identity_utils import save_identity
from libp2p.peer.id import ID
from multiaddr.codecs.cid import Codec as _AddressPart  # type: ignore[import-untyped]
from nacl.signing import SigningKey

from recon_node.base.errors import reason_of
from recon_node.base.files import (
    draft_of,
    make_private,
    move_into_place,
    private_directory,
    read_small,
)
from recon_node.p2p.errors import P2PError

IDENTITY_FILE = "identity.key"
_SEED_SIZE = 32
MAX_PEER_ID: Final = 128
"""Maximum bytes of a peer id that is written out. One of an Ed25519 key has 38."""
MAX_RSA_KEY: Final = 600
"""Maximum bytes of a peer's RSA key. One of 4,096 bits has 550."""
_MAX_EXPONENT: Final = 2**31
"""As in Go's crypto/rsa. The time of a check grows with the exponent's length."""


def open_identity(data_dir: Path) -> KeyPair:
    """Return the identity of a data directory; the first call creates it. Blocks on the disk.

    Raises:
        P2PError: it cannot be read or written, or it is not an Ed25519 key.
    """
    path = data_dir / IDENTITY_FILE
    try:
        return _load(path) if path.exists() else _create(path)
    except OSError as error:
        raise P2PError(
            f"cannot use the node's identity {path}: {reason_of(error)}; "
            "check that the directory exists and belongs to this user"
        ) from error


def peer_id_of(identity: KeyPair) -> str:
    """Return the peer id, in base58, that belongs to a key pair."""
    return str(ID.from_pubkey(identity.public_key))


def signing_key_of(identity: KeyPair) -> SigningKey:
    """Return the private key as one that signs JWS; its did:key names the node."""
    return SigningKey(identity.private_key.to_bytes()[:_SEED_SIZE])


def _load(path: Path) -> KeyPair:
    content = read_small(path)
    try:
        private = deserialize_private_key(content)
        identity = KeyPair(private, private.get_public_key())
    except Exception as error:  # the library's parser raises many kinds
        raise _broken(path, "is not a libp2p private key") from error
    if identity.private_key.get_type() != KeyType.Ed25519:
        raise _broken(path, f"holds a {identity.private_key.get_type().name} key, not Ed25519")
    make_private(path.resolve())
    return identity


def _broken(path: Path, what: str) -> P2PError:
    return P2PError(
        f"the node's identity {path} {what}; restore it from a backup, or move it away to start "
        "with a new identity (other nodes will then know this one by another peer id)"
    )


def _create(path: Path) -> KeyPair:
    identity = create_new_key_pair()
    private_directory(path.parent)
    with draft_of(path, mode=0o600) as draft:
        save_identity(identity, draft)
        move_into_place(draft, path)
    return identity


def bound_peer_ids() -> None:
    """Write long peer ids as a hash, and no long ones in addresses. Applies to the whole process;
    idempotent.

    Stock writes ids of any length in base58, also for log messages that nobody sees, in a time that
    grows with the square of their length: one of 64 KiB takes six seconds.
    """
    ID.base58 = _bounded_base58  # type: ignore[assignment]
    ID.from_base58 = classmethod(_from_base58)  # type: ignore[method-assign, assignment]
    _AddressPart.to_string = _short_part


_stock_base58: Final[Callable[[ID], str]] = ID.base58.func  # type: ignore[attr-defined]
_stock_from_base58: Final = ID.from_base58.__func__  # type: ignore[attr-defined]
_stock_part: Final = _AddressPart.to_string


def _written(peer_id: ID) -> str:
    raw = peer_id.to_bytes()
    return _stock_base58(peer_id if len(raw) <= MAX_PEER_ID else ID(sha256(raw).digest()))


_bounded_base58: Final = cached_property(_written)
_bounded_base58.__set_name__(ID, "base58")


def _from_base58(kind: type[ID], text: str) -> ID:
    if len(text) > 2 * MAX_PEER_ID:
        raise ValueError(f"a peer id of {len(text)} characters")
    peer: ID = _stock_from_base58(kind, text)
    return peer


def _short_part(self: Any, proto: Any, buf: bytes) -> str:
    if len(buf) > MAX_PEER_ID:
        raise ValueError(f"a peer id of {len(buf)} bytes in an address")
    return str(_stock_part(self, proto, buf))


def bound_rsa_keys() -> None:
    """Take no RSA keys of peers but short public ones. Applies to the whole process; idempotent.

    Stock also takes private keys of any size, and tests whether their factors are prime: one of
    64 KiB takes minutes. Keys come before the peer is authenticated, and in the signed records of
    identify and of the DHT.
    """
    RSAPublicKey.from_bytes = classmethod(_read_rsa_key)  # type: ignore[assignment, method-assign]
    key_type_to_public_key_deserializer[KeyType.RSA.value] = RSAPublicKey.from_bytes


def _read_rsa_key(kind: type[RSAPublicKey], data: bytes) -> RSAPublicKey:
    if len(data) > MAX_RSA_KEY:
        raise CryptographyError(f"an RSA key of {len(data)} bytes; at most {MAX_RSA_KEY} are read")
    try:
        key = load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CryptographyError(f"not a public key in DER: {error}") from None
    if not isinstance(key, RSAKey):
        raise CryptographyError("a key of the type RSA is of another type")
    numbers = key.public_numbers()
    if numbers.e >= _MAX_EXPONENT:
        raise CryptographyError("the exponent of an RSA key has more than 31 bits")
    return kind(RSA.construct((numbers.n, numbers.e), consistency_check=False))
