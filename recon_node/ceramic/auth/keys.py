"""Keys, public and private, and the JOSE algorithm by which each kind signs.

    Ed25519    EdDSA   RFC 8037   64 bytes; libsodium refuses every second form of a signature
    secp256k1  ES256K  RFC 8812   r and s, 32 bytes each, over SHA-256
    P-256      ES256   RFC 7518   r and s, 32 bytes each, over SHA-256

From an ECDSA signature (r, s) anyone can make the second form (r, n - s), and thereby a second CID
for the same event. Both forms are accepted, as by js-did and ceramic-one: half of what libraries,
browsers and security chips sign has s in the upper half. Whatever decides treats the two as copies
of one statement (`recon_node.streams.statements`). What is signed here has s in the lower half.

Points are compressed, 33 bytes, as did:key has them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias

import coincurve
from coincurve import ecdsa as libsecp256k1
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

SIGNATURE_SIZE: Final = 64
"""Bytes of a signature by JOSE's rules."""

_KEY_SIZE: Final = 32
"""Bytes of an Ed25519 key, and of r and s."""
_POINT_SIZE: Final = 33
"""Bytes of a compressed point."""
_COMPRESSED: Final = (2, 3)
_ES256: Final = ec.ECDSA(SHA256())
_ORDERS: Final = {
    "ES256K": 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141,
    "ES256": 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551,
}
"""The orders n of the groups in which ECDSA signs, by algorithm."""

PrivateKey: TypeAlias = SigningKey | coincurve.PrivateKey | ec.EllipticCurvePrivateKey
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
    def from_bytes(cls, data: bytes) -> "Ed25519Key":
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


@dataclass(frozen=True, slots=True)
class Secp256k1Key:
    """A secp256k1 key, from a compressed point."""

    kind: ClassVar[str] = "secp256k1"
    alg: ClassVar[str] = "ES256K"
    _key: coincurve.PublicKey

    @classmethod
    def from_bytes(cls, data: bytes) -> "Secp256k1Key":
        """Read the compressed point.

        Raises:
            ValueError: not such a point.
        """
        return cls(coincurve.PublicKey(_compressed(data, cls.kind)))

    def verify(self, message: bytes, signature: bytes) -> bool:  # noqa: D102 - see PublicKey
        if len(signature) != SIGNATURE_SIZE:
            return False
        try:
            parsed = libsecp256k1.deserialize_compact(with_low_s(self.alg, signature))
            return self._key.verify(libsecp256k1.cdata_to_der(parsed), message)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class P256Key:
    """A P-256 key, from a compressed point."""

    kind: ClassVar[str] = "P-256"
    alg: ClassVar[str] = "ES256"
    _key: ec.EllipticCurvePublicKey

    @classmethod
    def from_bytes(cls, data: bytes) -> "P256Key":
        """Read the compressed point.

        Raises:
            ValueError: not such a point.
        """
        point = _compressed(data, cls.kind)
        return cls(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point))

    def verify(self, message: bytes, signature: bytes) -> bool:  # noqa: D102 - see PublicKey
        if len(signature) != SIGNATURE_SIZE:
            return False
        r, s = int.from_bytes(signature[:_KEY_SIZE]), int.from_bytes(signature[_KEY_SIZE:])
        return self.verify_der(message, encode_dss_signature(r, s))

    def verify_der(self, message: bytes, signature: bytes) -> bool:
        """Like `verify`, for a signature in DER as authenticators write it."""
        try:
            self._key.verify(signature, message, _ES256)
        except (InvalidSignature, ValueError):
            return False
        return True


def algorithm_of(key: PrivateKey) -> str:
    """Return the JOSE name of the algorithm by which the key signs."""
    if isinstance(key, SigningKey):
        return Ed25519Key.alg
    return Secp256k1Key.alg if isinstance(key, coincurve.PrivateKey) else P256Key.alg


def sign(key: PrivateKey, message: bytes) -> bytes:
    """Sign a message by JOSE's rules; the signature has `SIGNATURE_SIZE` bytes."""
    if isinstance(key, SigningKey):
        return key.sign(message).signature
    if isinstance(key, coincurve.PrivateKey):
        return bytes(libsecp256k1.serialize_compact(libsecp256k1.der_to_cdata(key.sign(message))))
    r, s = decode_dss_signature(key.sign(message, _ES256))
    return with_low_s(P256Key.alg, r.to_bytes(_KEY_SIZE) + s.to_bytes(_KEY_SIZE))


def has_low_s(alg: str, signature: bytes) -> bool:
    """Whether a signature is in the canonical form of its algorithm: s is in the lower half.

    By algorithms other than ECDSA, there is one form.
    """
    order = _ORDERS.get(alg)
    return order is None or int.from_bytes(signature[_KEY_SIZE:]) <= order // 2


def with_low_s(alg: str, signature: bytes) -> bytes:
    """Return the canonical form of an ECDSA signature; any other one as it is."""
    s = int.from_bytes(signature[_KEY_SIZE:])
    if has_low_s(alg, signature) or not 0 < s < _ORDERS[alg]:
        return signature
    return signature[:_KEY_SIZE] + (_ORDERS[alg] - s).to_bytes(_KEY_SIZE)


def _compressed(data: bytes, kind: str) -> bytes:
    if len(data) != _POINT_SIZE or data[0] not in _COMPRESSED:
        raise ValueError(f"a {kind} key is a compressed point of {_POINT_SIZE} bytes")
    return data
