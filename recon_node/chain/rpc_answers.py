"""What is read of the answers of JSON-RPC endpoints.

An answer is untrusted. Only the fields that are needed are decoded, by their types: a few megabytes
of anything else, as Python objects, would hold up the node for seconds. What cannot be used is a
ValueError, and says nothing about an event.
"""

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


class Placed(Answer, rename="camel", kw_only=True):
    """About what may be in a block."""

    block_hash: _Hash | None = None
    block_number: _Quantity | None = None

    @property
    def number(self) -> int:
        """Of the block; 0 if it is in none."""
        return int(self.block_number or "0x0", 16)


class Transaction(Placed, kw_only=True):
    """The fields that we need of the answer to `eth_getTransactionByHash`."""

    input: _Hex

    def __post_init__(self) -> None:
        if len(self.input) % 2:
            raise ValueError("`input` has half a byte")
        self.input = self.input[: _LONGEST_INPUT + 2].lower()


class Block(Answer):
    """The fields that we need of the answer to `eth_getBlockByNumber`."""

    number: _Quantity
    timestamp: _Quantity
    transactions: Raw = Raw(b"[]")

    def __post_init__(self) -> None:
        if self.time > MAX_TIME:
            raise ValueError(f"the time {self.time} is beyond the calendar")

    @property
    def time(self) -> int:
        """When it was made, in Unix seconds."""
        return int(self.timestamp, 16)


class Receipt(Placed, rename="camel", kw_only=True):
    """The fields that we need of the answer to `eth_getTransactionReceipt`."""

    hash: _Hash = field(name="transactionHash")
    status: _Quantity
    gas_used: _Quantity
    effective_gas_price: _Quantity

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


def read_head(answer: Raw) -> tuple[int, int]:
    """Return the number of a block, and its time in Unix seconds."""
    block = json.decode(answer, type=Block)
    return int(block.number, 16), block.time


def read_block_with(tx_hash: str, answer: Raw) -> tuple[str, bool, int]:
    """Return a block's hash, whether it has a transaction, and its time in Unix seconds."""
    block = json.decode(answer, type=Block)
    has_it = tx_hash.lower().encode() in bytes(block.transactions).lower()
    return block.hash.lower(), has_it, block.time


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
