"""Signatures of Ethereum accounts: EIP-191's `personal_sign` over the text of EIP-4361.

A signature of 65 bytes, r, s and v, gives back the key that made it; the account is the last 20
bytes of the key's Keccak-256. So there is nothing to verify but that the account that comes out is
the one that should. Wallets have put three texts before their users, tried in this order: with
the address as the capability has it; with the address in the mixed case of EIP-55; and, for
capabilities issued before 2022-09-20, the layout of that time (`siwe.message`).

As Ethereum's own transactions (EIP-2) and ceramic-one have it, s must be in the lower half.
Contract accounts (EIP-1271) cannot be checked without asking their chain.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import coincurve
from Crypto.Hash import keccak

from recon_node.ceramic.auth import siwe
from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.did import Account, account
from recon_node.ceramic.auth.validity import unix_seconds
from recon_node.ceramic.errors import DidError, InvalidSignatureError

CHAIN: Final = "Ethereum"

_NAMESPACE: Final = "eip155"
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_REFERENCE: Final = re.compile(r"[0-9]{1,32}", re.ASCII)
_SIGNATURE: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{130})", re.ASCII)
_PREFIX: Final = b"\x19Ethereum Signed Message:\n"
_LEGACY_UNTIL: Final = unix_seconds("2022-09-20T00:00:00Z")
_HALF_ORDER: Final = 0x7FFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFF_5D576E73_57A4501D_DFE92F46_681B20A0
# The last byte: 27 and 28 by the yellow paper, 0 and 1 by some wallets.
_RECOVERY_IDS: Final = {27: 0, 28: 1, 0: 0, 1: 1}


@dataclass(frozen=True, slots=True)
class _Signature:
    recoverable: bytes

    def signer(self, text: str) -> str | None:
        """The address that signed the text, in lower case; None: it is no one's signature."""
        data = text.encode()
        try:
            key = coincurve.PublicKey.from_signature_and_message(
                self.recoverable, personal_message(data), hasher=keccak_256
            )
        except Exception:  # coincurve raises a plain Exception where nothing can be recovered
            return None
        return address_of(key)


def verify_ethereum(cacao: Cacao) -> None:
    """Check that the capability's issuer, an Ethereum account, has signed it.

    Raises:
        InvalidSignatureError: another's signature, or none; or the issuer is no such account.
    """
    issuer = _issuer(cacao)
    signature = _parse_signature(cacao.signature)
    expected = issuer.address.lower()
    if not any(signature.signer(text) == expected for text in _texts(cacao, issuer)):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")


def personal_message(data: bytes) -> bytes:
    """What `personal_sign` hashes (EIP-191, version 0x45)."""
    return _PREFIX + str(len(data)).encode() + data


def address_of(key: coincurve.PublicKey) -> str:
    """The address of the account with that key: "0x" and 40 digits in lower case."""
    return "0x" + keccak_256(key.format(compressed=False)[1:])[-20:].hex()


def eip55(address: str) -> str:
    """An address in lower case, with the checksum that EIP-55 puts into the case of its letters."""
    digits = address.removeprefix("0x")
    checksum = keccak_256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) >= 8 else digit
        for digit, nibble in zip(digits, checksum, strict=False)
    )


def keccak_256(data: bytes) -> bytes:
    """Keccak-256 as Ethereum has it, which is not SHA3-256: that pads otherwise."""
    return keccak.new(digest_bits=256, data=data).digest()


def _texts(cacao: Cacao, issuer: Account) -> Iterator[str]:
    """The texts that the issuer may have signed, the likeliest first."""
    yield siwe.message(cacao, CHAIN, issuer)
    checksummed = issuer._replace(address=eip55(issuer.address.lower()))
    if checksummed != issuer:
        yield siwe.message(cacao, CHAIN, checksummed)
    if unix_seconds(cacao.issued_at) < _LEGACY_UNTIL:
        yield siwe.message(cacao, CHAIN, issuer, legacy=True)


def _issuer(cacao: Cacao) -> Account:
    try:
        issuer = account(cacao.issuer)
    except DidError as error:
        raise InvalidSignatureError(f"the capability's issuer: {error}") from None
    if (
        issuer.namespace != _NAMESPACE
        or not _REFERENCE.fullmatch(issuer.reference)
        or not _ADDRESS.fullmatch(issuer.address)
    ):
        raise InvalidSignatureError(
            f"the capability is signed as by an Ethereum account, which {cacao.issuer} is not"
        )
    return issuer


def _parse_signature(text: str) -> _Signature:
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise InvalidSignatureError("an Ethereum signature is 65 bytes in hexadecimal")
    data = bytes.fromhex(match[1])
    if data[64] not in _RECOVERY_IDS:
        raise InvalidSignatureError(f"an Ethereum signature ends in 27 or 28, not in {data[64]}")
    if int.from_bytes(data[32:64]) > _HALF_ORDER:
        raise InvalidSignatureError("the capability's signature is not in its one lawful form")
    return _Signature(data[:64] + bytes([_RECOVERY_IDS[data[64]]]))
