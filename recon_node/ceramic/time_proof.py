"""The proof of a time event: its `prev` is a leaf of a Merkle tree whose root is on a chain.

Two checks, both pure. `check_path` needs the event alone: the path must lead from the proof's root,
through blocks that are lists of links, to the time event's prev. `check_transaction` judges what a
provider of the chain has answered: the transaction must hold the root, and the time of its block
is the event's. The two things that can be wrong there are kept apart: a transaction that says
something else makes the event invalid for ever; an answer that is no answer says nothing about it.

Sources: CAIP-168 and its EVM profile (https://namespaces.chainagnostic.org/eip155/caip168); for the
bytes of a `raw` transaction and the blocks up to which it counts, js-ceramic and ceramic-one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from recon_node.ceramic import shape
from recon_node.ceramic.errors import ChainAnswerError, InvalidEventError
from recon_node.ipld import CID

# A tree of this depth has room for 2^64 events; anchor services make far smaller ones.
MAX_PATH_DEPTH: Final = 64

_PROOF: Final = frozenset({"chainId", "root", "txHash", "txType"})
_NO_FIELDS: Final[frozenset[str]] = frozenset()
# The first bytes of the keccak-256 of "anchorDagCbor(bytes32)".
_ANCHOR_SELECTOR: Final = bytes.fromhex("97ad09eb")
# A `raw` transaction holds the root's CID as base16 text, "f01711220...", read as hexadecimal: that
# text has an odd number of digits, hence a zero before it.
_RAW_PREFIX: Final = b"\x0f"
# From these blocks on, an anchor must be a call of the contract.
_LAST_RAW_BLOCKS: Final = {
    "eip155:1": 16_688_195,
    "eip155:5": 8_498_671,
    "eip155:100": 26_509_835,
    "eip155:11155111": 5_518_585,
    "eip155:1337": 1,
}
_CHAIN_ID: Final = re.compile(r"[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}", re.ASCII)  # CAIP-2
_MAX_TX_TYPE: Final = 100
_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*+", re.ASCII)
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimeProof:
    """Where the root of the Merkle tree was written: chain (CAIP-2), transaction and its kind."""

    chain_id: str
    root: CID
    tx_hash: CID
    tx_type: str

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Check the decoded proof block of a time event.

        Raises:
            InvalidEventError: a field is missing, unknown, of a wrong type or too long.
        """
        proof = shape.fields(value, "the proof", _PROOF, _NO_FIELDS)
        chain_id = shape.of_type(proof["chainId"], str, "the proof's 'chainId'")
        if not _CHAIN_ID.fullmatch(chain_id):
            raise InvalidEventError(
                f"the proof's 'chainId' {chain_id[:50]!r} is not a chain (CAIP-2)"
            )
        tx_type = shape.of_type(proof["txType"], str, "the proof's 'txType'")
        if len(tx_type) > _MAX_TX_TYPE:
            raise InvalidEventError(f"the proof's 'txType' has {len(tx_type)} characters, too many")
        return cls(
            chain_id=chain_id,
            root=shape.of_type(proof["root"], CID, "the proof's 'root'"),
            tx_hash=shape.of_type(proof["txHash"], CID, "the proof's 'txHash'"),
            tx_type=tx_type,
        )

    @property
    def transaction_hash(self) -> str:
        """The transaction's hash as providers are asked for it, "0x" and 64 digits.

        Raises:
            InvalidEventError: `txHash` holds no hash of 32 bytes.
        """
        if len(self.tx_hash.digest) != 32:
            raise InvalidEventError(
                f"the proof's 'txHash' {self.tx_hash} is not a transaction's hash"
            )
        return "0x" + self.tx_hash.digest.hex()


def expected_input(proof: TimeProof) -> bytes:
    """The input that the proof's transaction must have, by its `txType`.

    Raises:
        InvalidEventError: neither "f(bytes32)" nor "raw", or a root that no such input can hold.
    """
    if proof.tx_type == "f(bytes32)":
        if len(proof.root.digest) != 32:
            raise InvalidEventError(f"the proof's 'root' {proof.root} has no digest of 32 bytes")
        return _ANCHOR_SELECTOR + proof.root.digest
    if proof.tx_type == "raw":
        return _RAW_PREFIX + proof.root
    raise InvalidEventError(
        f"the proof's 'txType' {proof.tx_type[:50]!r} is unknown; it must be 'f(bytes32)' or 'raw'"
    )


def check_transaction(
    proof: TimeProof, transaction: Mapping[str, Any], block: Mapping[str, Any]
) -> int:
    """The time of the event: that of the block with the proof's transaction, in Unix seconds.

    `transaction` and `block` are what `eth_getTransactionByHash` and `eth_getBlockByHash` answered,
    the latter for the transaction's `blockHash`.

    Raises:
        InvalidEventError: the transaction does not say what the proof says it does.
        ChainAnswerError: the answers lack a field, do not belong together, or are about another
            transaction, or one that is in no block yet. Ask again.
    """
    expected = expected_input(proof)
    _check_answers(proof, transaction, block)
    timestamp = _quantity(block, "timestamp")
    number = _quantity(block, "number")
    found = _hex(transaction, "input")
    if bytes.fromhex(found[2:]) != expected:
        raise InvalidEventError(
            f"the transaction {proof.transaction_hash} does not anchor the proof's root "
            f"{proof.root}: its input is {found[:100]}, not 0x{expected.hex()}"
        )
    limit = _LAST_RAW_BLOCKS.get(proof.chain_id)
    if proof.tx_type == "raw" and limit is not None and number >= limit:
        raise InvalidEventError(
            f"the transaction {proof.transaction_hash} anchors by 'raw' in block {number}; "
            f"on {proof.chain_id} that counts before block {limit} only"
        )
    return timestamp


def _check_answers(
    proof: TimeProof, transaction: Mapping[str, Any], block: Mapping[str, Any]
) -> None:
    """The transaction is the one asked for, and lies in that block."""
    if _hex(transaction, "hash").lower() != proof.transaction_hash:
        raise ChainAnswerError(
            f"asked for the transaction {proof.transaction_hash}, the provider answered with "
            f"{transaction['hash'][:100]}"
        )
    if transaction.get("blockHash") is None:
        raise ChainAnswerError(f"the transaction {proof.transaction_hash} is in no block yet")
    if _hex(transaction, "blockHash").lower() != _hex(block, "hash").lower():
        raise ChainAnswerError(
            f"the transaction {proof.transaction_hash} lies in the block "
            f"{transaction['blockHash'][:100]}, the provider answered with {block['hash'][:100]}"
        )


def _hex(answer: Mapping[str, Any], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ChainAnswerError(f"the provider's {name!r} is not hexadecimal data: {value!r:.100}")
    return value


def _quantity(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise ChainAnswerError(
            f"the provider's {name!r} is not a hexadecimal number: {value!r:.100}"
        )
    return int(value, 16)


def check_path(root: CID, path: str, prev: CID, read_block: Callable[[CID, str], Any]) -> None:
    """Walk from `root` along `path` ("0/1/0"), which must end at `prev`.

    `read_block` gives the decoded block of a CID; its second argument names the block for people.
    An empty path means that the tree has one leaf only, its root.

    Raises:
        InvalidEventError: it does not end there, or cannot be walked.
    """
    indexes = path.split("/") if path else []
    if len(indexes) > MAX_PATH_DEPTH:
        raise InvalidEventError(
            f"the proof's path is {len(indexes)} deep; the limit is {MAX_PATH_DEPTH}"
        )
    cid = root
    for position, index in enumerate(indexes):
        node = shape.of_type(read_block(cid, f"node {position}"), list, f"node {position}")
        if not _INDEX.fullmatch(index) or int(index) >= len(node):
            raise InvalidEventError(f"the proof's path {path[:200]!r} leaves the Merkle tree")
        cid = shape.of_type(node[int(index)], CID, f"entry {index} of node {position}")
    if cid != prev:
        raise InvalidEventError(f"the proof's path ends at {cid}, not at the prev {prev}")
