"""What is read of the answers of JSON-RPC endpoints.

An answer is untrusted. Only the fields that are needed are decoded, by their types: a few megabytes
of anything else, as Python objects, would hold up the node for seconds. What cannot be used is a
ValueError, and says nothing about an event.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from msgspec import Meta, Raw, Struct, field, json

from recon_node.ceramic.time_proof import MAX_TIME

_Hash = Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{64}\Z")]
_Hex = Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]*\Z")]
_Quantity = Annotated[str, Meta(pattern=r"^0x[0-7]?[0-9a-fA-F]{1,15}\Z")]
"""Of up to 63 bits, which is what SQLite and Arrow can hold."""
_Wei = Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{1,64}\Z")]
_LONGEST_INPUT: Final = 512
"""Digits of a transaction's input that are kept. An anchor has fewer, and thus another input."""


class Answer(Struct, rename="camel"):
    """About what has a hash."""

    hash: _Hash


class Transaction(Answer, rename="camel"):
    """The fields that we need of the answer to `eth_getTransactionByHash`."""

    input: _Hex
    block_hash: _Hash | None = None
    block_number: _Quantity | None = None

    def __post_init__(self) -> None:
        if len(self.input) % 2:
            raise ValueError("`input` has half a byte")
        self.input = self.input[: _LONGEST_INPUT + 2]


class Block(Answer):
    """The fields that we need of the answer to `eth_getBlockByHash`."""

    number: _Quantity
    timestamp: _Quantity

    def __post_init__(self) -> None:
        if self.time > MAX_TIME:
            raise ValueError(f"the time {self.time} is beyond the calendar")

    @property
    def time(self) -> int:
        """When it was made, in Unix seconds."""
        return int(self.timestamp, 16)


class Receipt(Answer, rename="camel"):
    """The fields that we need of the answer to `eth_getTransactionReceipt`."""

    hash: _Hash = field(name="transactionHash")
    block_hash: _Hash
    block_number: _Quantity
    status: _Quantity
    gas_used: _Wei
    effective_gas_price: _Wei
    contract_address: Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")] | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the transaction was not reverted."""
        return int(self.status, 16) == 1

    @property
    def cost(self) -> int:
        """Wei."""
        return int(self.gas_used, 16) * int(self.effective_gas_price, 16)


A = TypeVar("A", bound=Answer)


class _PricedBlock(Struct, rename="camel"):
    base_fee_per_gas: _Wei


def read_about(asked: str, kind: type[A], answer: Raw) -> A:
    """Read an answer that must be about what has the hash that was asked for."""
    about = json.decode(answer, type=kind)
    if about.hash.lower() != asked.lower():
        raise ValueError("it is about something else")
    return about


def read_block_number(answer: Raw) -> int:
    """Return the number of the block that is the answer."""
    return int(json.decode(answer, type=Block).number, 16)


def read_base_fee(answer: Raw) -> int:
    """Return the base fee of the block that is the answer, in wei."""
    return int(json.decode(answer, type=_PricedBlock).base_fee_per_gas, 16)


def read_hex(answer: Raw) -> str:
    """Return hexadecimal data, such as a transaction's hash."""
    return json.decode(answer, type=_Hex)


def read_wei(answer: Raw) -> int:
    """Return an amount of money, of up to 256 bits."""
    return int(json.decode(answer, type=_Wei), 16)


def read_quantity(answer: Raw) -> int:
    """Return a number of up to 63 bits."""
    return int(json.decode(answer, type=_Quantity), 16)
