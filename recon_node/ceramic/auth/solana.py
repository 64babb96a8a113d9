"""Signatures of Solana accounts: Ed25519 over the text of "Sign in with Solana" (CAIP-122).

The address is the public key itself, 32 bytes in base58; so is the signature.
"""

from typing import Final

from recon_node.ceramic.auth import siwe
from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.did import account
from recon_node.ceramic.auth.keys import Ed25519Key
from recon_node.ceramic.errors import DidError, InvalidSignatureError
from recon_node.ipld import MultibaseError, multibase

CHAIN: Final = "Solana"

_NAMESPACE: Final = "solana"
_BASE58: Final = "z"


def verify_solana(cacao: Cacao) -> None:
    """Check that the capability's issuer, a Solana account, has signed it.

    Raises:
        InvalidSignatureError: another's signature, or none; or the issuer is no such account.
    """
    try:
        issuer = account(cacao.issuer)
        key = Ed25519Key.from_bytes(multibase.decode(_BASE58 + issuer.address))
    except (DidError, MultibaseError, ValueError) as error:
        raise InvalidSignatureError(f"the capability's issuer {cacao.issuer}: {error}") from None
    if issuer.namespace != _NAMESPACE:
        raise InvalidSignatureError(
            f"the capability is signed as by a Solana account, which {cacao.issuer} is not"
        )
    try:
        signature = multibase.decode(_BASE58 + cacao.signature)
    except MultibaseError as error:
        raise InvalidSignatureError(f"the capability's signature: {error}") from None
    if not key.verify(siwe.message(cacao, CHAIN, issuer).encode(), signature):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")
