"""Signatures of passkeys: P-256, over what a WebAuthn authenticator was asked to confirm.

An authenticator signs no text of ours but `authData || sha256(clientDataJSON)`, and
`clientDataJSON` holds the challenge that it was given: here the CID of a block, which is the
capability without `s`, and without `iss`, `statement` and `requestId` in `p` (the key is not known
before the passkey answers). Both byte strings come along in `s.m.aad`, a DAG-CBOR block of its own.

The issuer is the passkey's did:key. As in ceramic-one and @didtools/key-webauthn, origin and flags
are not looked at: which website showed the prompt is the wallet's affair, not the stream's.
Sources: https://www.w3.org/TR/webauthn-2/#sctn-verifying-assertion; for the challenge, ceramic-one.
"""

import base64
import hashlib
from typing import Any, Final

from recon_node.ceramic import shape, strict_json
from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.did import public_key
from recon_node.ceramic.auth.keys import P256Key
from recon_node.ceramic.errors import DidError, InvalidEventError, InvalidSignatureError
from recon_node.ipld import CID, DAG_CBOR, DagCborError, MultibaseError, dag_cbor, multibase

_METADATA: Final = frozenset({"aad"})
_AAD: Final = frozenset({"authData", "clientDataJSON"})
_NO_FIELDS: Final[frozenset[str]] = frozenset()
_NOT_CHALLENGED: Final = frozenset({"iss", "statement", "requestId"})
# The hash of the website's name, flags and a counter.
_MIN_AUTH_DATA: Final = 37


def verify_webauthn(cacao: Cacao) -> None:
    """Check that the capability's issuer, a passkey, has confirmed it.

    Raises:
        InvalidSignatureError: another's signature, or none, or of another capability; or the
            issuer is no did:key with P-256.
    """
    auth_data, client_data = _authenticator_data(cacao.metadata)
    _check_client_data(client_data, challenge(cacao.header, cacao.payload))
    message = auth_data + hashlib.sha256(client_data).digest()
    try:
        signature = multibase.decode("u" + cacao.signature)
    except MultibaseError as error:
        raise InvalidSignatureError(f"the capability's signature: {error}") from None
    key = _issuer_key(cacao.issuer)
    verify = key.verify if len(signature) == 64 else key.verify_der
    if not verify(message, signature):
        raise InvalidSignatureError(f"the capability is not signed by its issuer {cacao.issuer}")


def challenge(header: dict[str, Any], payload: dict[str, Any]) -> str:
    """The challenge for a capability with that `h` and `p`, in base64url as browsers write it."""
    asked = {name: value for name, value in payload.items() if name not in _NOT_CHALLENGED}
    cid = CID.of(DAG_CBOR, dag_cbor.encode({"h": header, "p": asked}))
    return base64.urlsafe_b64encode(cid).rstrip(b"=").decode()


def _issuer_key(issuer: str) -> P256Key:
    try:
        key = public_key(issuer)
    except DidError as error:
        raise InvalidSignatureError(f"the capability's issuer: {error}") from None
    if not isinstance(key, P256Key):
        raise InvalidSignatureError(
            f"the capability is signed as by a passkey, but its issuer's key is {key.kind}"
        )
    return key


def _authenticator_data(metadata: Any) -> tuple[bytes, bytes]:
    try:
        fields = shape.fields(metadata, "the capability's metadata", _METADATA, _NO_FIELDS)
        encoded = shape.of_type(fields["aad"], bytes, "the metadata's 'aad'")
        aad = shape.fields(dag_cbor.decode(encoded), "the metadata's 'aad'", _AAD, _NO_FIELDS)
        auth_data = shape.of_type(aad["authData"], bytes, "the metadata's 'authData'")
        client_data = shape.of_type(aad["clientDataJSON"], bytes, "the metadata's 'clientDataJSON'")
    except (InvalidEventError, DagCborError) as error:
        raise InvalidSignatureError(str(error)) from None
    if len(auth_data) < _MIN_AUTH_DATA:
        raise InvalidSignatureError(
            f"the metadata's 'authData' has {len(auth_data)} bytes, fewer than {_MIN_AUTH_DATA}"
        )
    return auth_data, client_data


def _check_client_data(client_data: bytes, expected: str) -> None:
    try:
        fields = strict_json.loads(client_data)
    except ValueError as error:
        raise InvalidSignatureError(f"the passkey's client data is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("type") != "webauthn.get":
        raise InvalidSignatureError("the passkey's client data is of no sign-in ('webauthn.get')")
    if fields.get("challenge") != expected:
        raise InvalidSignatureError("the passkey has confirmed another capability than this one")
