"""Ethereum accounts as DIDs: which spellings name the same one.

The letters of an address may be in lower case, as js-did writes them, or in the mixed case of
EIP-55, which is a checksum and what wallets show. Both occur as controllers. An EventID has a hash
of the controller as it was written, so whoever looks for an account has to look for both.
"""

from __future__ import annotations

import re
from typing import Final

from Crypto.Hash import keccak

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
    """Hash with Ethereum's Keccak-256, which pads differently from SHA3-256."""
    return keccak.new(digest_bits=256, data=data).digest()
