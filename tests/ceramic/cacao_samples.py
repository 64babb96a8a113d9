"""Wallets of three kinds that issue capabilities, field by field, right or wrong as asked for.

The texts that are signed are put together here once more, after EIP-4361 and CAIP-122, so that
what verifies them is held to something else than itself.
"""

import base64
import hashlib
import json
from typing import Any, Protocol

import coincurve
from ceramic_samples import MODEL
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.signing import SigningKey

from recon_node.ceramic import Event
from recon_node.ceramic.auth.did import eip55, keccak_256, sign
from recon_node.ceramic.auth.wallets import address_of, personal_message
from recon_node.ceramic.builder import controller_of, signed_event
from recon_node.ipld import CID, DAG_CBOR, dag_cbor, multibase

SESSION = SigningKey(b"s" * 32)
AUDIENCE = controller_of(SESSION)
ISSUED = 1724925547
EXPIRES = 4102444800
FIELDS: dict[str, Any] = {
    "aud": AUDIENCE,
    "domain": "notes.example",
    "version": "1",
    "nonce": "0e521e23ceea295ae861",
    "iat": "2024-08-29T09:59:07.116Z",
    "exp": "2100-01-01T00:00:00.000Z",
    "resources": ["ceramic://*"],
}


class Wallet(Protocol):
    """Issues capabilities. Changes of the payload: None leaves a field out."""

    issuer: str

    def issue(self, **changes: Any) -> bytes: ...


def payload_of(issuer: str, changes: dict[str, Any]) -> dict[str, Any]:
    fields = FIELDS | {"iss": issuer} | changes
    return {name: value for name, value in fields.items() if value is not None}


def capability(kind: str, payload: Any, signature: Any) -> bytes:
    return dag_cbor.encode({"h": {"t": kind}, "p": payload, "s": signature})


def text_of(payload: dict[str, Any], chain: str, address: str, *, legacy: bool = False) -> str:
    reference = payload["iss"].split(":")[3]
    order = ["aud", "version", "nonce", "iat", "exp", "nbf", "requestId"]
    order.insert(7 if legacy else 2, "chain")
    labels = ["URI", "Version", "Nonce", "Issued At", "Expiration Time", "Not Before", "Request ID"]
    labels.insert(7 if legacy else 2, "Chain ID")
    values = payload | {"chain": reference}
    text = f"{payload['domain']} wants you to sign in with your {chain} account:\n{address}\n\n"
    text += f"{payload['statement']}\n\n" if "statement" in payload else ""
    text += "\n".join(
        f"{label}: {values[name]}"
        for label, name in zip(labels, order, strict=True)
        if name in values
    )
    if payload.get("resources"):
        text += "\nResources:" + "".join(f"\n- {each}" for each in payload["resources"])
    return text


class EthereumWallet:
    """Ethereum, EIP-191."""

    def __init__(self, secret: bytes = b"e" * 32, chain: str = "eip155:1") -> None:
        self.key = coincurve.PrivateKey(secret)
        self.address = address_of(self.key.public_key)
        self.issuer = f"did:pkh:{chain}:{self.address}"

    def sign(self, text: str) -> bytes:
        """r, s and v of `personal_sign`."""
        message = personal_message(text.encode())
        signature = self.key.sign_recoverable(message, hasher=keccak_256)
        return signature[:64] + bytes([27 + signature[64]])

    def issue(self, *, layout: str = "as given", kind: str = "eip4361", **changes: Any) -> bytes:
        payload = payload_of(self.issuer, changes)
        address = eip55(self.address) if layout == "EIP-55" else payload["iss"].split(":")[4]
        text = text_of(payload, "Ethereum", address, legacy=layout == "legacy")
        return capability(kind, payload, {"t": "eip191", "s": "0x" + self.sign(text).hex()})


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
