"""The contract of this project, for chains that have none whose owner lets you in: `Anchors.sol`.

It does what the part of Ceramic's contract does that anchors, for everybody: the root is in the
input of the transaction, and in an event of the log, by which indexers find it.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from recon_node.anchoring.authority import AuthorityError
from recon_node.anchoring.evm import Chain
from recon_node.anchoring.keys import Signer
from recon_node.chain.rpc_answers import (
    read_base_fee,
    read_contract_address,
    read_quantity,
    read_text,
    read_wei,
)

BYTECODE: Final = bytes.fromhex(
    "6080604052348015600f57600080fd5b50608e80601d6000396000f3fe6080604052348015600f57600080fd5b50"
    "6004361060285760003560e01c806397ad09eb14602d575b600080fd5b603c60383660046076565b603e565b005b"
    "60405181815233907f37f9254ff1973d24d609016d6bb0aef8e6de91808811a546fad8eaa0e481d9d99060200160"
    "405180910390a250565b600060208284031215608757600080fd5b503591905056"
)
"""Of `Anchors.sol` by solc 0.8.26: evmVersion paris, optimizer with 1,000,000 runs, no metadata."""
_GAS: Final = 150_000
"""More than its creation takes, 93,000."""
_PAUSE: Final = 1.0
_PATIENCE: Final = 300.0
"""Seconds to wait for the transaction's block."""


async def deploy(chain: Chain, signer: Signer, max_fee: int) -> str:
    """Create a contract, and return its address.

    Args:
        chain: where.
        signer: of the account that pays.
        max_fee: wei per gas, at most.

    Raises:
        AuthorityError: it did not come into being.
        NoAnswerError: no endpoint answers.
    """

    async def number(method: str, *params: object) -> int:
        return await chain.ask(read_quantity, method, *params) or 0

    base_fee = await chain.ask(read_base_fee, "eth_getBlockByNumber", "latest", False) or 0
    tip = await chain.ask(read_wei, "eth_maxPriorityFeePerGas") or 0
    if base_fee + tip > max_fee:
        raise AuthorityError(
            f"the chain asks for {(base_fee + tip) / 1e9:.3g} gwei per gas, and anchor_max_fee is "
            f"{max_fee / 1e9:.3g}"
        )
    transaction: dict[str, Any] = {
        "type": 2,
        "chainId": int(chain.chain_id.partition(":")[2]),
        "nonce": await number("eth_getTransactionCount", signer.address, "pending"),
        "value": 0,
        "gas": _GAS,
        "maxFeePerGas": min(2 * base_fee + tip, max_fee),
        "maxPriorityFeePerGas": tip,
        "data": BYTECODE,
    }
    tx_hash, raw = signer.sign(transaction)
    await chain.ask(read_text, "eth_sendRawTransaction", "0x" + raw.hex())
    with trio.move_on_after(_PATIENCE):
        while True:
            found = await chain.ask(read_contract_address, "eth_getTransactionReceipt", tx_hash)
            if found is not None:
                return found
            await trio.sleep(_PAUSE)
    raise AuthorityError(f"the transaction {tx_hash} is not in a block after {_PATIENCE:g} seconds")
