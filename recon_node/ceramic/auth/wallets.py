"""Signatures of capabilities by wallets: blockchain accounts (Ethereum, Solana) and passkeys.

A CACAO (CAIP-74) holds the fields; what was signed is a text made of them: "Sign in with Ethereum"
(EIP-4361), and CAIP-122 for other chains. Blank lines and the order of lines matter. Where the
specification and the wallets' library (@didtools/cacao) disagree, in a message without a statement,
the library is followed, since it signed the existing capabilities. No field may hold a line break:
a text could otherwise be read as two different sets of fields.

**Ethereum** (EIP-191, `personal_sign`). A signature of 65 bytes, r, s and v, reveals the key that
made it; the account is the last 20 bytes of the key's Keccak-256. Wallets have shown three texts to
their users, tried in this order: with the address as the capability has it; with the address in the
mixed case of EIP-55; and, for capabilities issued until 2022-09-20 00:00 UTC (as js-did has it),
the layout of that time. As in Ethereum's own transactions (EIP-2) and in ceramic-one, s must be in
the lower half. Contract accounts (EIP-1271) cannot be checked without asking their chain.

**Solana** (CAIP-122). Ed25519; the address is the public key itself, 32 bytes in base58; so is the
signature.

**Passkeys** (P-256). A WebAuthn authenticator does not sign a text of ours but
`authData || sha256(clientDataJSON)`, and `clientDataJSON` holds the challenge: here the CID of a
block that is the capability without `s`, and without `iss`, `statement` and `requestId` in `p` (the
key is unknown until the passkey answers); ceramic-one leaves out what is null, too. Both byte
strings come in `s.m.aad`, a separate DAG-CBOR block. The issuer is the passkey's did:key. As in
ceramic-one and @didtools/key-webauthn, origin and flags are ignored: which website showed the
prompt is up to the wallet, not to the stream. Sources:
https://www.w3.org/TR/webauthn-2/#sctn-verifying-assertion; for the challenge, ceramic-one.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from recon_node.ceramic.auth.capability import Cacao
from recon_node.ceramic.auth.did import (
    SIGNATURE_SIZE,
    ChainAccount,
    Ed25519Key,
    chain_account,
    eip55,
    keccak_256,
    public_key,
)
from recon_node.ceramic.auth.envelope import fields_of, json_value, of_type, unix_seconds
from recon_node.ceramic.errors import DidError, InvalidEventError, InvalidSignatureError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, MultibaseError, dag_cbor, multibase
from recon_node.ipld.errors import required_for

if TYPE_CHECKING:
    import coincurve

    from recon_node.ceramic.auth.ecdsa import P256Key

_ETHEREUM: Final = "Ethereum"
_SOLANA: Final = "Solana"
_EIP155: Final = "eip155"
_SOLANA_NAMESPACE: Final = "solana"
_BASE58: Final = "z"
ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_REFERENCE: Final = re.compile(r"[0-9]{1,32}", re.ASCII)
_SIGNATURE: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{130})", re.ASCII)
_PREFIX: Final = b"\x19Ethereum Signed Message:\n"
_LEGACY_UNTIL: Final = unix_seconds("2022-09-20T00:00:00Z")
_HALF_ORDER: Final = 0x7FFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFF_5D576E73_57A4501D_DFE92F46_681B20A0
# The last byte: 27 and 28 by the yellow paper, 0 and 1 by some wallets.
_RECOVERY_IDS: Final = {27: 0, 28: 1, 0: 0, 1: 1}
_R_AND_S: Final = 64
"""Bytes of a signature before its last one."""


def verify_ethereum(cacao: Cacao) -> None:
    """Check that the capability's issuer, an Ethereum account, has signed it.

    Raises:
        InvalidSignatureError: not a signature of the issuer, or the issuer is not such an account.
    """
    issuer = _ethereum_issuer(cacao)
    signature = _recoverable(cacao.signature)
    expected = issuer.address.lower()
    if not any(_signer(signature, text) == expected for text in _texts(cacao, issuer)):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")


def verify_solana(cacao: Cacao) -> None:
    """Check that the capability's issuer, a Solana account, has signed it.

    Raises:
        InvalidSignatureError: not a signature of the issuer, or the issuer is not such an account.
    """
    try:
        issuer = chain_account(cacao.issuer)
        key = Ed25519Key.from_bytes(multibase.decode(_BASE58 + issuer.address))
    except (DidError, MultibaseError, ValueError) as error:
        raise InvalidSignatureError(f"the capability's issuer {cacao.issuer}: {error}") from None
    if issuer.namespace != _SOLANA_NAMESPACE:
        raise InvalidSignatureError(
            f"the capability has a Solana signature, but {cacao.issuer} is not a Solana account"
        )
    try:
        signature = multibase.decode(_BASE58 + cacao.signature)
    except MultibaseError as error:
        raise InvalidSignatureError(f"the capability's signature: {error}") from None
    if not key.verify(signed_text(cacao, _SOLANA, issuer).encode(), signature):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")


def signed_text(cacao: Cacao, chain: str, account: ChainAccount, *, legacy: bool = False) -> str:
    """Return the text that the account's owner signed.

    Args:
        cacao: the capability.
        chain: as wallets name it, "Ethereum".
        account: of the issuer.
        legacy: the layout until 2022-09-20, with the chain's id after the request's.
    """
    chain_id = f"Chain ID: {account.reference}"
    lines = [f"URI: {cacao.audience}", f"Version: {cacao.version}"]
    if not legacy:
        lines.append(chain_id)
    lines += [f"Nonce: {cacao.nonce}", f"Issued At: {cacao.issued_at}"]
    if cacao.expiration is not None:
        lines.append(f"Expiration Time: {cacao.expiration}")
    if cacao.not_before is not None:
        lines.append(f"Not Before: {cacao.not_before}")
    if cacao.request_id:
        lines.append(f"Request ID: {cacao.request_id}")
    if legacy:
        lines.append(chain_id)
    if cacao.resources:
        lines += ["Resources:", *(f"- {resource}" for resource in cacao.resources)]
    head = f"{cacao.domain} wants you to sign in with your {chain} account:\n{account.address}\n\n"
    if cacao.statement:
        head += f"{cacao.statement}\n\n"
    return head + "\n".join(lines)


def personal_message(data: bytes) -> bytes:
    """Return what `personal_sign` hashes (EIP-191, version 0x45)."""
    return _PREFIX + str(len(data)).encode() + data


def address_of(key: coincurve.PublicKey) -> str:
    """Return the address of the account with that key: "0x" and 40 digits in lower case."""
    return "0x" + keccak_256(key.format(compressed=False)[1:])[-20:].hex()


def _texts(cacao: Cacao, issuer: ChainAccount) -> Iterator[str]:
    """The texts that the issuer may have signed, the likeliest first."""
    yield signed_text(cacao, _ETHEREUM, issuer)
    checksummed = issuer._replace(address=eip55(issuer.address.lower()))
    if checksummed != issuer:
        yield signed_text(cacao, _ETHEREUM, checksummed)
    if unix_seconds(cacao.issued_at) <= _LEGACY_UNTIL:
        yield signed_text(cacao, _ETHEREUM, issuer, legacy=True)


def _ethereum_issuer(cacao: Cacao) -> ChainAccount:
    try:
        issuer = chain_account(cacao.issuer)
    except DidError as error:
        raise InvalidSignatureError(f"the capability's issuer: {error}") from None
    if (
        issuer.namespace != _EIP155
        or not _REFERENCE.fullmatch(issuer.reference)
        or not ADDRESS.fullmatch(issuer.address)
    ):
        raise InvalidSignatureError(
            f"the capability has an Ethereum signature, but {cacao.issuer} "
            "is not an Ethereum account"
        )
    return issuer


def _recoverable(text: str) -> bytes:
    """The signature with its last byte as coincurve has it, 0 or 1."""
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise InvalidSignatureError("an Ethereum signature is 65 bytes in hexadecimal")
    data = bytes.fromhex(match[1])
    if data[_R_AND_S] not in _RECOVERY_IDS:
        raise InvalidSignatureError(
            f"an Ethereum signature ends in 27 or 28, not in {data[_R_AND_S]}"
        )
    if int.from_bytes(data[_R_AND_S // 2 : _R_AND_S]) > _HALF_ORDER:
        raise InvalidSignatureError("the capability's signature is not in its canonical form")
    return data[:_R_AND_S] + bytes([_RECOVERY_IDS[data[_R_AND_S]]])


def _signer(signature: bytes, text: str) -> str | None:
    """The address that signed the text, in lower case; None if nobody's signature is that."""
    with required_for("Ethereum accounts"):
        import coincurve
    try:
        key = coincurve.PublicKey.from_signature_and_message(
            signature, personal_message(text.encode()), hasher=keccak_256
        )
    except Exception:  # coincurve raises a plain Exception where nothing can be recovered
        return None
    return address_of(key)


_METADATA: Final = frozenset({"aad"})
_AAD: Final = frozenset({"authData", "clientDataJSON"})
_NOT_CHALLENGED: Final = frozenset({"iss", "statement", "requestId"})
_MIN_AUTH_DATA: Final = 37
"""Bytes: the hash of the website's name, flags and a counter."""


def verify_webauthn(cacao: Cacao) -> None:
    """Check that the capability's issuer, a passkey, has confirmed it.

    Raises:
        InvalidSignatureError: not a signature of the issuer over this capability, or the issuer is
            not a did:key with P-256.
    """
    auth_data, client_data = _authenticator_data(cacao.metadata)
    # A null field counts as missing (`signature`): for ceramic-one, also in the challenge.
    present = {name: value for name, value in cacao.payload.items() if value is not None}
    expected = [challenge(cacao.header, payload) for payload in (present, cacao.payload)]
    _check_client_data(client_data, expected)
    message = auth_data + hashlib.sha256(client_data).digest()
    try:
        signature = multibase.decode("u" + cacao.signature)
    except MultibaseError as error:
        raise InvalidSignatureError(f"the capability's signature: {error}") from None
    key = _issuer_key(cacao.issuer)
    verify = key.verify if len(signature) == SIGNATURE_SIZE else key.verify_der
    if not verify(message, signature):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")


def challenge(header: dict[str, Any], payload: dict[str, Any]) -> str:
    """Return the challenge for a capability's `h` and `p`, in base64url as browsers write it."""
    asked = {name: value for name, value in payload.items() if name not in _NOT_CHALLENGED}
    cid = CID.of(DAG_CBOR, dag_cbor.encode({"h": header, "p": asked}))
    return base64.urlsafe_b64encode(cid).rstrip(b"=").decode()


def _issuer_key(issuer: str) -> P256Key:
    from recon_node.ceramic.auth.ecdsa import P256Key

    try:
        key = public_key(issuer)
    except DidError as error:
        raise InvalidSignatureError(f"the capability's issuer: {error}") from None
    if not isinstance(key, P256Key):
        raise InvalidSignatureError(
            f"the capability has a passkey's signature, but its issuer's key is {key.kind}"
        )
    return key


def _authenticator_data(metadata: Any) -> tuple[bytes, bytes]:
    try:
        fields = fields_of(metadata, "the capability's metadata", _METADATA)
        encoded = of_type(fields["aad"], bytes, "the metadata's 'aad'")
        aad = fields_of(dag_cbor.decode(encoded), "the metadata's 'aad'", _AAD)
        auth_data = of_type(aad["authData"], bytes, "the metadata's 'authData'")
        client_data = of_type(aad["clientDataJSON"], bytes, "the metadata's 'clientDataJSON'")
    except (InvalidEventError, DagCborError) as error:
        raise InvalidSignatureError(str(error)) from None
    if len(auth_data) < _MIN_AUTH_DATA:
        raise InvalidSignatureError(
            f"the metadata's 'authData' has {len(auth_data)} bytes, fewer than {_MIN_AUTH_DATA}"
        )
    return auth_data, client_data


def _check_client_data(client_data: bytes, expected: Collection[str]) -> None:
    try:
        fields = json_value(client_data)
    except ValueError as error:
        raise InvalidSignatureError(f"the passkey's client data is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("type") != "webauthn.get":
        raise InvalidSignatureError(
            "the passkey's client data is not from a sign-in ('webauthn.get')"
        )
    if fields.get("challenge") not in expected:
        raise InvalidSignatureError("the passkey confirmed a different capability")
