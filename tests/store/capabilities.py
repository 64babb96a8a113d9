"""A session that signs for an account by a capability."""

from store_helpers import MODEL
from support.wallets import SESSION as SESSION
from support.wallets import EthereumWallet

from recon_node.ceramic import Event, StreamId
from recon_node.ceramic.builder import signed_event

WALLET = EthereumWallet(b"w" * 32)
ACCOUNT = WALLET.issuer


def capability(
    model: StreamId, expiry: str | None = None, issued: str = "2024-01-01T00:00:00Z"
) -> bytes:
    return WALLET.issue(resources=[f"ceramic://*?model={model}"], exp=expiry, iat=issued)


def init_of(controller: str, model: StreamId = MODEL) -> Event:
    header = {"controllers": [controller], "model": model.to_bytes(), "sep": "model"}
    payload = {"header": header, "data": {"title": "x"}}
    return signed_event(SESSION, payload, capability=capability(model))


def change(init: Event, model: StreamId = MODEL) -> Event:
    payload = {"id": init.cid, "prev": init.cid, "data": []}
    return signed_event(SESSION, payload, capability=capability(model))
