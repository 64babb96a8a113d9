"""Reading the answers of JSON-RPC endpoints.

An answer is untrusted: its types are checked, and that it is about what was asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from recon_node.ceramic.auth.wallets import ADDRESS
from recon_node.ceramic.time_proof import HEX, QUANTITY

_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_MAX_QUANTITY: Final = 2**63 - 1  # what SQLite and Arrow can hold
_WEI: Final = re.compile(r"0x[0-9a-fA-F]{1,64}", re.ASCII)


class ShapeError(ValueError):
    """An answer does not have the shape that Ethereum's JSON-RPC specification gives it."""


class Transaction(TypedDict):
    """The fields that we need of the answer to `eth_getTransactionByHash`."""

    hash: str
    input: str
    blockHash: str | None
    blockNumber: str | None


class Block(TypedDict):
    """The fields that we need of the answer to `eth_getBlockByHash`."""

    hash: str
    number: str
    timestamp: str


class Receipt(TypedDict):
    """The fields that we need of the answer to `eth_getTransactionReceipt`."""

    blockHash: str
    blockNumber: int
    status: int
    cost: int
    """Wei."""


def read_transaction(tx_hash: str, answer: Any) -> Transaction:
    """Read the answer to `eth_getTransactionByHash`; raise ShapeError if it cannot be used."""
    fields = _object(answer)
    is_in_block = fields.get("blockHash") is not None and fields.get("blockNumber") is not None
    transaction = Transaction(
        hash=_text(fields, "hash", _HASH),
        input=_text(fields, "input", HEX),
        blockHash=_text(fields, "blockHash", _HASH) if is_in_block else None,
        blockNumber=_quantity(fields, "blockNumber") if is_in_block else None,
    )
    if transaction["hash"].lower() != tx_hash.lower():
        raise ShapeError("is about another transaction")
    return transaction


def read_block(block_hash: str, answer: Any) -> Block:
    """Read the answer to `eth_getBlockByHash`; raise ShapeError if it cannot be used."""
    fields = _object(answer)
    block = Block(
        hash=_text(fields, "hash", _HASH),
        number=_quantity(fields, "number"),
        timestamp=_quantity(fields, "timestamp"),
    )
    if block["hash"].lower() != block_hash.lower():
        raise ShapeError("is about another block")
    return block


def read_block_number(answer: Any) -> int:
    """Return the number of the block that is the answer; raise ShapeError if it has none."""
    return read_quantity(_object(answer).get("number"))


def read_receipt(answer: Any) -> Receipt:
    """Read the answer to `eth_getTransactionReceipt`; raise ShapeError if it cannot be used."""
    fields = _object(answer)
    return Receipt(
        blockHash=_text(fields, "blockHash", _HASH),
        blockNumber=read_quantity(fields.get("blockNumber")),
        status=read_quantity(fields.get("status")),
        cost=read_wei(fields.get("gasUsed")) * read_wei(fields.get("effectiveGasPrice")),
    )


def read_contract_address(answer: Any) -> str:
    """Return which contract a transaction created, by its receipt; raise ShapeError if none."""
    fields = _object(answer)
    if read_quantity(fields.get("status")) != 1:
        raise ShapeError("says that the transaction failed")
    return _text(fields, "contractAddress", ADDRESS)


def read_base_fee(answer: Any) -> int:
    """Return the base fee of the block that is the answer, in wei; raise ShapeError without one."""
    return read_wei(_object(answer).get("baseFeePerGas"))


def read_text(value: Any) -> str:
    """Return hexadecimal data, such as a transaction's hash; raise ShapeError for others."""
    return _text({"result": value}, "result", HEX)


def read_wei(value: Any) -> int:
    """Return an amount of money, of up to 256 bits; raise ShapeError for others."""
    if not isinstance(value, str) or not _WEI.fullmatch(value):
        raise ShapeError("has no amount where one should be")
    return int(value, 16)


def read_quantity(value: Any) -> int:
    """Return the number that 0x and hexadecimal digits stand for; raise ShapeError for others."""
    if not isinstance(value, str) or not QUANTITY.fullmatch(value):
        raise ShapeError("has no hexadecimal number where one should be")
    number = int(value, 16)
    if number > _MAX_QUANTITY:
        raise ShapeError(f"has the number {value}, which is too large")
    return number


def _object(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise ShapeError("is not an object")
    return answer


def _text(fields: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ShapeError(f"has no usable {name!r}")
    return value


def _quantity(fields: Mapping[str, Any], name: str) -> str:
    value: Any = fields.get(name)
    read_quantity(value)
    return str(value)
