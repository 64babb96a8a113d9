"""DIDs: their syntax, the key that a did:key names, and the account that a did:pkh names.

Neither method needs a lookup; the DID itself says everything:

    did:key:z<base58 of varint(kind of key), key>         https://w3c-ccg.github.io/did-key-spec/
    did:pkh:<namespace>:<chain reference>:<address>       did-pkh, over CAIP-10

Other methods (did:web, did:3) would have to be resolved, which is not supported.
Source of the syntax: https://www.w3.org/TR/did-core/#did-syntax.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import coincurve
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from nacl.signing import SigningKey, VerifyKey

from recon_node.ceramic.auth.keys import (
    Ed25519Key,
    P256Key,
    PrivateKey,
    PublicKey,
    Secp256k1Key,
)
from recon_node.ceramic.errors import DidError
from recon_node.ipld import IpldError, multibase, varint

DID_KEY: Final = "did:key:"
DID_PKH: Final = "did:pkh:"
MAX_DID_LENGTH: Final = 1000
"""Characters. A did:pkh or did:key has fewer than 200; this leaves room for other methods."""

_MAX_SHOWN: Final = 100
"""Characters of a DID that an error quotes."""

_SYNTAX: Final = re.compile(r"did:[a-z0-9]+:[A-Za-z0-9._:%-]+")
_PKH: Final = re.compile(
    r"did:pkh:([-a-z0-9]{3,8}):([-_a-zA-Z0-9]{1,32}):([-.%a-zA-Z0-9]{1,128})", re.ASCII
)
_ED25519_CODEC: Final = 0xED
_SECP256K1_CODEC: Final = 0xE7
_P256_CODEC: Final = 0x1200
_READERS: Final[dict[int, Callable[[bytes], PublicKey]]] = {
    _ED25519_CODEC: Ed25519Key.from_bytes,
    _SECP256K1_CODEC: Secp256k1Key.from_bytes,
    _P256_CODEC: P256Key.from_bytes,
}
_OTHER_KINDS: Final = {
    0xEA: "BLS12-381 G1",
    0xEB: "BLS12-381 G2",
    0xEC: "X25519",
    0xEE: "BLS12-381 G1 and G2",
    0x1201: "P-384",
    0x1202: "P-521",
    0x1205: "RSA",
}


class ChainAccount(NamedTuple):
    """A blockchain account (CAIP-10): the kind of chain, the chain, and the address on it."""

    namespace: str
    reference: str
    address: str


def is_did(text: str) -> bool:
    """Whether `text` follows the syntax of DIDs, without a path, query or fragment."""
    return len(text) <= MAX_DID_LENGTH and _SYNTAX.fullmatch(text) is not None


def controller_of(key: PrivateKey) -> str:
    """Return the did:key of this key."""
    if isinstance(key, SigningKey):
        return ed25519_did(bytes(key.verify_key))
    if isinstance(key, coincurve.PrivateKey):
        return secp256k1_did(key.public_key.format())
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return p256_did(point)


def ed25519_did(public_key: bytes) -> str:
    """Return the did:key of an Ed25519 public key of 32 bytes."""
    return _key_did(_ED25519_CODEC, public_key)


def secp256k1_did(point: bytes) -> str:
    """Return the did:key of a secp256k1 public key, a compressed point of 33 bytes."""
    return _key_did(_SECP256K1_CODEC, point)


def p256_did(point: bytes) -> str:
    """Return the did:key of a P-256 public key, a compressed point of 33 bytes."""
    return _key_did(_P256_CODEC, point)


@lru_cache(maxsize=4096)
def public_key(did: str) -> PublicKey:
    """Return the public key that a did:key names: Ed25519, secp256k1 or P-256.

    Raises:
        DidError: another DID method, an unsupported kind of key, or a malformed DID.
    """
    if not did.startswith(DID_KEY):
        raise DidError(f"cannot check signatures of {method(did)!r}, only of did:key")
    text = did.removeprefix(DID_KEY)
    if not text.startswith("z"):
        raise DidError(
            f"broken DID {did[:_MAX_SHOWN]!r}: a did:key is written in base58, 'did:key:z...'"
        )
    try:
        raw = multibase.decode(text)
        codec, offset = varint.decode(raw)
    except IpldError as error:
        raise DidError(f"broken DID {did[:_MAX_SHOWN]!r}: {error}") from None
    if codec not in _READERS:
        if codec not in _OTHER_KINDS:
            raise DidError(f"broken DID {did[:_MAX_SHOWN]!r}: no kind of key has code {codec:#x}")
        raise DidError(
            f"cannot check signatures by {_OTHER_KINDS[codec]} keys, only by Ed25519, secp256k1 "
            "and P-256"
        )
    try:
        return _READERS[codec](raw[offset:])
    except ValueError as error:
        raise DidError(f"broken DID {did[:_MAX_SHOWN]!r}: {error}") from None


def ed25519_key(did: str) -> VerifyKey:
    """Return the Ed25519 key that a did:key names.

    Raises:
        DidError: another DID method, another kind of key, or a malformed DID.
    """
    key = public_key(did)
    if not isinstance(key, Ed25519Key):
        raise DidError(f"{did[:_MAX_SHOWN]!r} names a {key.kind} key, not Ed25519")
    return key.verify_key


def chain_account(did: str) -> ChainAccount:
    """Return the blockchain account that a did:pkh names.

    Raises:
        DidError: another DID method, or a malformed DID.
    """
    match = _PKH.fullmatch(did)
    if match is None:
        raise DidError(
            f"{did[:_MAX_SHOWN]!r} is not a did:pkh, which names an account on a blockchain"
        )
    return ChainAccount(*match.groups())


def method(did: str) -> str:
    """Return the method of a DID: "did:key" of "did:key:z6Mk..."."""
    return ":".join(did.split(":")[:2])[:_MAX_SHOWN]


def _key_did(codec: int, key: bytes) -> str:
    return DID_KEY + multibase.encode(varint.encode(codec) + key, "base58btc")
