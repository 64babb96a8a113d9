"""Signatures of passkeys: P-256, over what a WebAuthn authenticator was asked to confirm.

An authenticator does not sign a text of ours but `authData || sha256(clientDataJSON)`, and
`clientDataJSON` holds the challenge: here the CID of a block that is the capability without `s`,
and without `iss`, `statement` and `requestId` in `p` (the key is unknown until the passkey
answers). Both byte strings come in `s.m.aad`, a separate DAG-CBOR block.

The issuer is the passkey's did:key. As in ceramic-one and @didtools/key-webauthn, origin and flags
are ignored: which website showed the prompt is up to the wallet, not to the stream.
Sources: https://www.w3.org/TR/webauthn-2/#sctn-verifying-assertion; for the challenge, ceramic-one.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final

from recon_node.ceramic import strict
from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.did import SIGNATURE_SIZE, public_key
from recon_node.ceramic.errors import DidError, InvalidEventError, InvalidSignatureError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, MultibaseError, dag_cbor, multibase

if TYPE_CHECKING:
    from recon_node.ceramic.auth.ecdsa import P256Key

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
    _check_client_data(client_data, challenge(cacao.header, cacao.payload))
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
        fields = strict.fields(metadata, "the capability's metadata", _METADATA)
        encoded = strict.of_type(fields["aad"], bytes, "the metadata's 'aad'")
        aad = strict.fields(dag_cbor.decode(encoded), "the metadata's 'aad'", _AAD)
        auth_data = strict.of_type(aad["authData"], bytes, "the metadata's 'authData'")
        client_data = strict.of_type(
            aad["clientDataJSON"], bytes, "the metadata's 'clientDataJSON'"
        )
    except (InvalidEventError, DagCborError) as error:
        raise InvalidSignatureError(str(error)) from None
    if len(auth_data) < _MIN_AUTH_DATA:
        raise InvalidSignatureError(
            f"the metadata's 'authData' has {len(auth_data)} bytes, fewer than {_MIN_AUTH_DATA}"
        )
    return auth_data, client_data


def _check_client_data(client_data: bytes, expected: str) -> None:
    try:
        fields = strict.json_value(client_data)
    except ValueError as error:
        raise InvalidSignatureError(f"the passkey's client data is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("type") != "webauthn.get":
        raise InvalidSignatureError(
            "the passkey's client data is not from a sign-in ('webauthn.get')"
        )
    if fields.get("challenge") != expected:
        raise InvalidSignatureError("the passkey confirmed a different capability")
