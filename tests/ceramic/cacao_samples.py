"""Wallets of three kinds that issue capabilities."""

import base64
import hashlib
import json
from typing import Any, Protocol

from ceramic_samples import MODEL
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.signing import SigningKey
from support.wallets import SESSION, EthereumWallet, capability, payload_of, text_of

from recon_node.ceramic import Event
from recon_node.ceramic.auth.did import controller_of, sign
from recon_node.ceramic.builder import signed_event
from recon_node.ipld import CID, DAG_CBOR, dag_cbor, multibase

ISSUED = 1724925547
EXPIRES = 4102444800


class Wallet(Protocol):
    """Issues capabilities. Changes of the payload: None leaves a field out."""

    issuer: str

    def issue(self, **changes: Any) -> bytes: ...


class SolanaWallet:
    """Solana, Ed25519."""

    def __init__(self, secret: bytes = b"o" * 32) -> None:
        self.key = SigningKey(secret)
        self.address = multibase.encode(bytes(self.key.verify_key), "base58btc")[1:]
        self.issuer = f"did:pkh:solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp:{self.address}"

    def issue(self, **changes: Any) -> bytes:
        payload = payload_of(self.issuer, changes)
        text = text_of(payload, "Solana", self.address)
        signature = multibase.encode(sign(self.key, text.encode()), "base58btc")[1:]
        return capability("caip122", payload, {"t": "solana:ed25519", "s": signature})


class Passkey:
    """WebAuthn, P-256."""

    def __init__(self, secret: int = 7) -> None:
        self.key = ec.derive_private_key(secret, ec.SECP256R1())
        self.issuer = controller_of(self.key)

    def issue(
        self,
        *,
        raw: bool = False,
        client: dict[str, Any] | bytes | None = None,
        auth_data: bytes = bytes(32) + b"\x05\0\0\0\1",
        **changes: Any,
    ) -> bytes:
        """`client` changes what the browser says; as bytes it replaces it."""
        payload = payload_of(self.issuer, changes)
        asked = {k: v for k, v in payload.items() if k not in ("iss", "statement", "requestId")}
        cid = CID.of(DAG_CBOR, dag_cbor.encode({"h": {"t": "caip122"}, "p": asked}))
        if not isinstance(client, bytes):
            said = {"type": "webauthn.get", "challenge": base64url(cid)} | (client or {})
            client = json.dumps(said).encode()
        message = auth_data + hashlib.sha256(client).digest()
        signature = self.key.sign(message, ec.ECDSA(SHA256()))
        aad = dag_cbor.encode({"authData": auth_data, "clientDataJSON": client})
        text = base64url(sign(self.key, message) if raw else signature)
        return capability("caip122", payload, {"t": "webauthn:p256", "s": text, "m": {"aad": aad}})


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def init_under(block: bytes, controller: str, key: Any = SESSION) -> Event:
    """The init event of a stream of that controller, signed by the session under a capability."""
    header = {"controllers": [controller], "model": MODEL.to_bytes(), "sep": "model"}
    return signed_event(key, {"header": header, "data": {"title": "x"}}, capability=block)


ETHEREUM, SOLANA, PASSKEY = EthereumWallet(), SolanaWallet(), Passkey()
WALLETS: list[Wallet] = [ETHEREUM, SOLANA, PASSKEY]
