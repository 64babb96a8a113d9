"""Private keys as PEM: PKCS#8, as `openssl genpkey` writes it, or SEC 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacl.signing import SigningKey

from recon_node.client.errors import KeyFileError
from recon_node.ipld.errors import required_for

with required_for("keys in PEM files"):
    import coincurve
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

if TYPE_CHECKING:
    from recon_node.ceramic.auth.did import PrivateKey
    from recon_node.ceramic.auth.ecdsa import EcdsaKey


def write(key: EcdsaKey) -> bytes:
    """Return a private key as PEM, without a password."""
    if isinstance(key, coincurve.PrivateKey):
        return key.to_pem()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read(data: bytes) -> PrivateKey:
    """Read a private key.

    Raises:
        KeyFileError: it has a password, is not a private key, or of a kind that is not supported.
    """
    try:
        found = load_pem_private_key(data, password=None)
    except TypeError:
        raise KeyFileError(
            "it has a password, which is not supported: store it without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"it is not a private key as PEM ({error})") from None
    if isinstance(found, ed25519.Ed25519PrivateKey):
        return SigningKey(found.private_bytes_raw())
    if isinstance(found, ec.EllipticCurvePrivateKey):
        if isinstance(found.curve, ec.SECP256R1):
            return found
        if isinstance(found.curve, ec.SECP256K1):
            return coincurve.PrivateKey.from_int(found.private_numbers().private_value)
        raise KeyFileError(
            f"it is on the curve {found.curve.name}; Ceramic supports secp256k1 and P-256"
        )
    raise KeyFileError("Ceramic does not support its kind of key: use Ed25519, secp256k1 or P-256")
