"""A session that signs for an account by a capability."""

from __future__ import annotations

import coincurve
from nacl.signing import SigningKey
from store_helpers import MODEL

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.auth.did import keccak_256
from recon_node.ceramic.auth.wallets import address_of, personal_message
from recon_node.ceramic.builder import controller_of, signed_event
from recon_node.ipld import dag_cbor

SESSION = SigningKey(b"s" * 32)

WALLET = coincurve.PrivateKey(b"w" * 32)

ADDRESS = address_of(WALLET.public_key)

ACCOUNT = f"did:pkh:eip155:1:{ADDRESS}"


def capability(
    model: StreamId, expiry: str | None = None, issued: str = "2024-01-01T00:00:00Z"
) -> bytes:
    resource = f"ceramic://*?model={model}"
    text = (
        f"notes.example wants you to sign in with your Ethereum account:\n{ADDRESS}\n\n"
        f"URI: {controller_of(SESSION)}\nVersion: 1\nChain ID: 1\nNonce: 12345678\n"
        f"Issued At: {issued}\n"
        + (f"Expiration Time: {expiry}\n" if expiry else "")
        + f"Resources:\n- {resource}"
    )
    signature = WALLET.sign_recoverable(personal_message(text.encode()), hasher=keccak_256)
    payload = {
        "iss": ACCOUNT,
        "aud": controller_of(SESSION),
        "domain": "notes.example",
        "version": "1",
        "nonce": "12345678",
        "iat": issued,
        "resources": [resource],
    } | ({"exp": expiry} if expiry else {})
    signed = signature[:64] + bytes([27 + signature[64]])
    return dag_cbor.encode(
        {"h": {"t": "eip4361"}, "p": payload, "s": {"t": "eip191", "s": "0x" + signed.hex()}}
    )


def init_of(controller: str, model: StreamId = MODEL) -> Event:
    header = {"controllers": [controller], "model": model.to_bytes(), "sep": "model"}
    payload = {"header": header, "data": {"title": "x"}}
    return signed_event(SESSION, payload, capability=capability(model))


def change(init: Event, model: StreamId = MODEL) -> Event:
    payload = {"id": init.cid, "prev": init.cid, "data": []}
    return signed_event(SESSION, payload, capability=capability(model))
