"""ECDSA keys: secp256k1 (by libsecp256k1) and P-256 (by OpenSSL).

`auth.did` says what their signatures are. Points are compressed, 33 bytes, as did:key has them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from recon_node.ipld.errors import required_for

with required_for("secp256k1 and P-256 keys"):
    import coincurve
    from coincurve import ecdsa as libsecp256k1
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import (
        decode_dss_signature,
        encode_dss_signature,
    )
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

EcdsaKey: TypeAlias = coincurve.PrivateKey | ec.EllipticCurvePrivateKey
"""A private key: of secp256k1, or of P-256."""

_SCALAR_SIZE: Final = 32
"""Bytes of r and s."""
_POINT_SIZE: Final = 33
"""Bytes of a compressed point."""
_COMPRESSED: Final = (2, 3)
_P256: Final = ec.SECP256R1()
_ES256: Final = ec.ECDSA(SHA256())


@dataclass(frozen=True, slots=True)
class _EcdsaPublicKey(ABC):
    """A public key, from a compressed point."""

    kind: ClassVar[str]
    alg: ClassVar[str]
    _key: Any

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the compressed point.

        Raises:
            ValueError: not such a point.
        """
        if len(data) != _POINT_SIZE or data[0] not in _COMPRESSED:
            raise ValueError(f"a {cls.kind} key is a compressed point of {_POINT_SIZE} bytes")
        return cls(cls._read(data))

    def verify(self, message: bytes, signature: bytes) -> bool:
        return len(signature) == 2 * _SCALAR_SIZE and self._verify(message, signature)

    @staticmethod
    @abstractmethod
    def _read(point: bytes) -> Any: ...

    @abstractmethod
    def _verify(self, message: bytes, signature: bytes) -> bool: ...


class Secp256k1Key(_EcdsaPublicKey):
    """A secp256k1 key."""

    __slots__ = ()
    kind = "secp256k1"
    alg = "ES256K"

    @staticmethod
    def _read(point: bytes) -> coincurve.PublicKey:
        return coincurve.PublicKey(point)

    def _verify(self, message: bytes, signature: bytes) -> bool:
        try:
            parsed = libsecp256k1.deserialize_compact(signature)
            _, with_low_s = libsecp256k1.signature_normalize(parsed)
            return bool(self._key.verify(libsecp256k1.cdata_to_der(with_low_s), message))
        except ValueError:
            return False


class P256Key(_EcdsaPublicKey):
    """A P-256 key."""

    __slots__ = ()
    kind = "P-256"
    alg = "ES256"

    @staticmethod
    def _read(point: bytes) -> ec.EllipticCurvePublicKey:
        return ec.EllipticCurvePublicKey.from_encoded_point(_P256, point)

    def _verify(self, message: bytes, signature: bytes) -> bool:
        r, s = int.from_bytes(signature[:_SCALAR_SIZE]), int.from_bytes(signature[_SCALAR_SIZE:])
        return self.verify_der(message, encode_dss_signature(r, s))

    def verify_der(self, message: bytes, signature: bytes) -> bool:
        """Like `verify`, for a signature in DER as authenticators write it."""
        try:
            self._key.verify(signature, message, _ES256)
        except (InvalidSignature, ValueError):
            return False
        return True


def generate(kind: Literal["secp256k1", "p256"]) -> EcdsaKey:
    """Make a new key."""
    return coincurve.PrivateKey() if kind == "secp256k1" else ec.generate_private_key(_P256)


def class_of(key: EcdsaKey) -> type[Secp256k1Key] | type[P256Key]:
    """Return the class of the public key."""
    return Secp256k1Key if isinstance(key, coincurve.PrivateKey) else P256Key


def point_of(key: EcdsaKey) -> bytes:
    """Return the public key as a compressed point."""
    if isinstance(key, coincurve.PrivateKey):
        return key.public_key.format()
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def to_pem(key: EcdsaKey) -> bytes:
    """Return a private key as PEM, without a password."""
    if isinstance(key, coincurve.PrivateKey):
        return key.to_pem()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def sign(key: EcdsaKey, message: bytes) -> bytes:
    """Sign a message by JOSE's rules; `s` may be in the upper half."""
    if isinstance(key, coincurve.PrivateKey):
        return bytes(libsecp256k1.serialize_compact(libsecp256k1.der_to_cdata(key.sign(message))))
    r, s = decode_dss_signature(key.sign(message, _ES256))
    return r.to_bytes(_SCALAR_SIZE) + s.to_bytes(_SCALAR_SIZE)
