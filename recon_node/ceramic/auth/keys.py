"""Public keys, and the JOSE algorithm by which each kind signs.

    Ed25519    EdDSA   RFC 8037   64 bytes; libsodium refuses every second form of a signature
    secp256k1  ES256K  RFC 8812   r and s, 32 bytes each, over SHA-256; s in the lower half
    P-256      ES256   RFC 7518   r and s, 32 bytes each, over SHA-256; s in either half

Of an ECDSA signature (r, s) anyone can make the second form (r, n - s), and with it a second CID
for the same event. For secp256k1 the second form is refused, as libsecp256k1 and ceramic-one do.
P-256 has no such custom: half of what browsers and security chips sign has s in the upper half.

Points are compressed, 33 bytes, as did:key has them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import coincurve
from coincurve import ecdsa as libsecp256k1
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

_POINT_SIZE: Final = 33
_COMPRESSED: Final = (2, 3)
_ES256: Final = ec.ECDSA(SHA256())


class PublicKey(Protocol):
    """A key that can check signatures of the one JOSE algorithm that goes with it."""

    kind: ClassVar[str]
    alg: ClassVar[str]

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Is it this key's signature of the message? Whatever is no signature at all is not."""


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
        if len(data) != 32:
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
            ValueError: no such point.
        """
        return cls(coincurve.PublicKey(_compressed(data, cls.kind)))

    def verify(self, message: bytes, signature: bytes) -> bool:  # noqa: D102 - see PublicKey
        if len(signature) != 64:
            return False
        try:
            parsed = libsecp256k1.deserialize_compact(signature)
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
            ValueError: no such point.
        """
        point = _compressed(data, cls.kind)
        return cls(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point))

    def verify(self, message: bytes, signature: bytes) -> bool:  # noqa: D102 - see PublicKey
        if len(signature) != 64:
            return False
        r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
        return self.verify_der(message, encode_dss_signature(r, s))

    def verify_der(self, message: bytes, signature: bytes) -> bool:
        """The same for a signature in DER, as authenticators write it."""
        try:
            self._key.verify(signature, message, _ES256)
        except (InvalidSignature, ValueError):
            return False
        return True


def _compressed(data: bytes, kind: str) -> bytes:
    if len(data) != _POINT_SIZE or data[0] not in _COMPRESSED:
        raise ValueError(f"a {kind} key is a compressed point of {_POINT_SIZE} bytes")
    return data
