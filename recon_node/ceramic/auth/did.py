"""DIDs: their syntax, the keys that a did:key names, and the account that a did:pkh names.

Neither method needs a lookup; the DID itself says everything:

    did:key:z<base58 of varint(kind of key), key>         https://w3c-ccg.github.io/did-key-spec/
    did:pkh:<namespace>:<chain reference>:<address>       did-pkh, over CAIP-10

Other methods (did:web, did:3) would have to be resolved, which is not supported.
Source of the syntax: https://www.w3.org/TR/did-core/#did-syntax.

The letters of an Ethereum account may be in lower case, as js-did writes them, or in the mixed case
of EIP-55, which is a checksum and what wallets show. Both occur as controllers. An EventId has a
hash of the controller as it was written, so a search for an account has to look for both.

Each kind of key signs by one JOSE algorithm:
    Ed25519    EdDSA   RFC 8037   64 bytes; libsodium refuses every second form of a signature
    secp256k1  ES256K  RFC 8812   r and s, 32 bytes each, over SHA-256
    P-256      ES256   RFC 7518   r and s, 32 bytes each, over SHA-256

From an ECDSA signature (r, s) anyone can make the second form (r, n - s), and thereby a second CID
for the same event. Both forms are accepted, as by js-did and ceramic-one: half of what libraries,
browsers and security chips sign has s in the upper half. Whatever decides treats the two as copies
of one statement (`recon_node.streams.graph`). What is signed here has s in the lower half.

Points are compressed, 33 bytes, as did:key has them.

The keys of ECDSA are in `auth.ecdsa`. It is imported when such a key is met, and so is Keccak: most
clients have neither, and what both need takes 30 MB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from recon_node.ceramic.errors import DidError
from recon_node.ipld import IpldError, decode_varint, encode_varint, multibase
from recon_node.ipld.errors import required_for

if TYPE_CHECKING:
    from recon_node.ceramic.auth.ecdsa import EcdsaKey

_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 key."""
SIGNATURE_SIZE: Final = 64
"""Bytes of a signature by JOSE's rules: r and s."""
_SCALAR_SIZE: Final = 32
"""Bytes of r and s."""
_ORDERS: Final = {
    "ES256K": 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141,
    "ES256": 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551,
}
"""The orders n of the groups in which ECDSA signs, by algorithm."""
PrivateKey: TypeAlias = "SigningKey | EcdsaKey"
"""An Ed25519 key, a secp256k1 key, or (of the elliptic curves of `cryptography`) a P-256 key."""


class PublicKey(Protocol):
    """A key that can check signatures of the one JOSE algorithm that goes with it."""

    kind: ClassVar[str]
    alg: ClassVar[str]

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether this is the key's signature of the message; a malformed one is not."""


@dataclass(frozen=True, slots=True)
class Ed25519Key:
    """An Ed25519 key of 32 bytes."""

    kind: ClassVar[str] = "Ed25519"
    alg: ClassVar[str] = "EdDSA"
    verify_key: VerifyKey

    @classmethod
    def from_bytes(cls, data: bytes) -> Ed25519Key:
        """Read the key.

        Raises:
            ValueError: not 32 bytes.
        """
        if len(data) != _KEY_SIZE:
            raise ValueError("an Ed25519 key has 32 bytes")
        return cls(VerifyKey(data))

    def verify(self, message: bytes, signature: bytes) -> bool:  # noqa: D102 - see PublicKey
        try:
            self.verify_key.verify(message, signature)
        except (BadSignatureError, ValueError):
            return False
        return True


def algorithm_of(key: PrivateKey) -> str:
    """Return the JOSE name of the algorithm by which the key signs."""
    if isinstance(key, SigningKey):
        return Ed25519Key.alg
    from recon_node.ceramic.auth import ecdsa

    return ecdsa.class_of(key).alg


def sign(key: PrivateKey, message: bytes) -> bytes:
    """Sign a message by JOSE's rules; the signature has `SIGNATURE_SIZE` bytes."""
    if isinstance(key, SigningKey):
        return key.sign(message).signature
    from recon_node.ceramic.auth import ecdsa

    return with_low_s(ecdsa.class_of(key).alg, ecdsa.sign(key, message))


_ACCOUNT: Final = re.compile(r"did:pkh:eip155:.*:0x[0-9a-fA-F]{40}", re.ASCII)
_ETHEREUM: Final = "did:pkh:eip155:"
_EIP55_UPPER: Final = 8
"""The least nibble of the checksum that stands for upper case."""


def canonical_did(did: str) -> str:
    """Return a DID as it is compared: that of an Ethereum account in lower case."""
    return did.lower() if did.startswith(_ETHEREUM) else did


def same_did(first: str, second: str) -> bool:
    """Whether both name the same subject."""
    return first == second or canonical_did(first) == canonical_did(second)


def did_spellings(did: str) -> tuple[str, ...]:
    """Return the ways in which a DID occurs as a controller, the given one first."""
    if not _ACCOUNT.fullmatch(did):
        return (did,)
    lower = did.lower()
    chain, _, address = lower.rpartition(":")
    return tuple(dict.fromkeys((did, lower, f"{chain}:{eip55(address)}")))


def eip55(address: str) -> str:
    """Return an address given in lower case with the checksum of EIP-55: the case of letters."""
    digits = address.removeprefix("0x")
    checksum = keccak_256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) >= _EIP55_UPPER else digit
        for digit, nibble in zip(digits, checksum, strict=False)
    )


def keccak_256(data: bytes) -> bytes:
    """Hash with Ethereum's Keccak-256, which pads differently from SHA3-256.

    Raises:
        ModuleNotFoundError: the client was installed without it.
    """
    with required_for("Ethereum accounts"):
        from Crypto.Hash import keccak
    return keccak.new(digest_bits=256, data=data).digest()


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
    from recon_node.ceramic.auth import ecdsa

    did_of = secp256k1_did if ecdsa.class_of(key) is ecdsa.Secp256k1Key else p256_did
    return did_of(ecdsa.point_of(key))


def ed25519_did(public_key: bytes) -> str:
    """Return the did:key of an Ed25519 public key of 32 bytes."""
    return _key_did(_ED25519_CODEC, public_key)


def secp256k1_did(point: bytes) -> str:
    """Return the did:key of a secp256k1 public key, a compressed point of 33 bytes."""
    return _key_did(_SECP256K1_CODEC, point)


def p256_did(point: bytes) -> str:
    """Return the did:key of a P-256 public key, a compressed point of 33 bytes."""
    return _key_did(_P256_CODEC, point)


def check_keys(dids: Iterable[str]) -> None:
    """Raise DidError unless each DID is a did:key, see `public_key`."""
    for did in dids:
        public_key(did)


@lru_cache(maxsize=4096)
def public_key(did: str) -> PublicKey:
    """Return the public key that a did:key names: Ed25519, secp256k1 or P-256.

    Raises:
        DidError: another DID method, an unsupported kind of key, or a malformed DID.
    """
    if not did.startswith("did:"):
        raise DidError(f"{did[:_MAX_SHOWN]!r} is not a DID such as did:key:z6Mk...")
    if not did.startswith(DID_KEY):
        raise DidError(f"cannot check signatures of {method(did)!r}, only of did:key")
    text = did.removeprefix(DID_KEY)
    if not text.startswith("z"):
        raise DidError(
            f"broken DID {did[:_MAX_SHOWN]!r}: a did:key is written in base58, 'did:key:z...'"
        )
    try:
        raw = multibase.decode(text)
        codec, offset = decode_varint(raw)
    except IpldError as error:
        raise DidError(f"broken DID {did[:_MAX_SHOWN]!r}: {error}") from None
    try:
        return _reader(codec)(raw[offset:])
    except ValueError as error:
        raise DidError(f"broken DID {did[:_MAX_SHOWN]!r}: {error}") from None


def _reader(codec: int) -> Callable[[bytes], PublicKey]:
    """What reads the keys of a kind.

    Raises:
        DidError: the kind is not supported.
        ValueError: there is none.
    """
    if codec == _ED25519_CODEC:
        return Ed25519Key.from_bytes
    if codec in (_SECP256K1_CODEC, _P256_CODEC):
        from recon_node.ceramic.auth import ecdsa

        kind = ecdsa.Secp256k1Key if codec == _SECP256K1_CODEC else ecdsa.P256Key
        return kind.from_bytes
    if codec not in _OTHER_KINDS:
        raise ValueError(f"no kind of key has code {codec:#x}")
    raise DidError(
        f"cannot check signatures by {_OTHER_KINDS[codec]} keys, only by Ed25519, secp256k1 "
        "and P-256"
    )


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
    return DID_KEY + multibase.encode(encode_varint(codec) + key, "base58btc")


def has_low_s(alg: str, signature: bytes) -> bool:
    """Whether a signature is in the canonical form of its algorithm: s is in the lower half.

    By algorithms other than ECDSA, there is one form.
    """
    order = _ORDERS.get(alg)
    return order is None or int.from_bytes(signature[_SCALAR_SIZE:]) <= order // 2


def with_low_s(alg: str, signature: bytes) -> bytes:
    """Return the canonical form of an ECDSA signature; any other one as it is."""
    s = int.from_bytes(signature[_SCALAR_SIZE:])
    if has_low_s(alg, signature) or not 0 < s < _ORDERS[alg]:
        return signature
    return signature[:_SCALAR_SIZE] + (_ORDERS[alg] - s).to_bytes(_SCALAR_SIZE)
