"""The canonical form of an ECDSA signature, whose s is in the lower half.

Anybody can make another signature of any: with n - s instead of s, it is as valid.
"""

from __future__ import annotations

from typing import Final

SIGNATURE_SIZE: Final = 64
"""Bytes of a signature by JOSE's rules: r and s."""
_SCALAR_SIZE: Final = 32
"""Bytes of r and s."""
_ORDERS: Final = {
    "ES256K": 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141,
    "ES256": 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551,
}
"""The orders n of the groups in which ECDSA signs, by algorithm."""


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
