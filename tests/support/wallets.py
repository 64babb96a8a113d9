"""A wallet that issues capabilities to a session, field by field, right or wrong as asked for.

The texts that are signed are put together here once more, after EIP-4361 and CAIP-122, so that
what verifies them is held to something else than itself.
"""

from typing import Any

import coincurve
from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import controller_of, eip55, keccak_256
from recon_node.ceramic.auth.wallets import address_of, personal_message
from recon_node.ipld import dag_cbor

SESSION = SigningKey(b"s" * 32)
AUDIENCE = controller_of(SESSION)
FIELDS: dict[str, Any] = {
    "aud": AUDIENCE,
    "domain": "notes.example",
    "version": "1",
    "nonce": "0e521e23ceea295ae861",
    "iat": "2024-08-29T09:59:07.116Z",
    "exp": "2100-01-01T00:00:00.000Z",
    "resources": ["ceramic://*"],
}


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
        text += "\nResources:" + "".join(f"\n- {resource}" for resource in payload["resources"])
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
