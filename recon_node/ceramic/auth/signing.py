"""The other side of `auth.keys`: private keys, and what they sign by JOSE's rules."""

from typing import TypeAlias

import coincurve
from coincurve import ecdsa as libsecp256k1
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import ed25519_did, p256_did, secp256k1_did

Key: TypeAlias = SigningKey | coincurve.PrivateKey | ec.EllipticCurvePrivateKey
"""A private key: Ed25519, secp256k1, or (of the elliptic curves of `cryptography`) P-256."""


def controller_of(key: Key) -> str:
    """The did:key that signs by this key."""
    if isinstance(key, SigningKey):
        return ed25519_did(bytes(key.verify_key))
    if isinstance(key, coincurve.PrivateKey):
        return secp256k1_did(key.public_key.format())
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return p256_did(point)


def algorithm_of(key: Key) -> str:
    """The JOSE name of the algorithm by which the key signs."""
    if isinstance(key, SigningKey):
        return "EdDSA"
    return "ES256K" if isinstance(key, coincurve.PrivateKey) else "ES256"


def sign(key: Key, message: bytes) -> bytes:
    """The key's signature of the message, 64 bytes."""
    if isinstance(key, SigningKey):
        return key.sign(message).signature
    if isinstance(key, coincurve.PrivateKey):
        return bytes(libsecp256k1.serialize_compact(libsecp256k1.der_to_cdata(key.sign(message))))
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(SHA256())))
    return r.to_bytes(32) + s.to_bytes(32)
