"""The proof of a time event: its `prev` is a leaf of a Merkle tree whose root is on a chain.

There are two checks, both pure. `check_path` needs the event alone: the path must lead from the
proof's root, through blocks that are lists of links, to the time event's prev. `check_transaction`
needs the transaction, which must hold the root; the time of its block is the event's. Whether it
succeeded does not count: the root was on the chain.

Sources: CAIP-168 and its EVM profile (https://namespaces.chainagnostic.org/eip155/caip168); for the
bytes of a `raw` transaction and the blocks up to which it counts, js-ceramic and ceramic-one.

In local networks there are times without a chain, which the maker of the time event states.
The proof names the chain `local:clock`, and its `txHash` holds the time itself: 24 zero bytes, then
Unix seconds as a big-endian number of 8 bytes. There is no transaction. Nothing proves such a time,
so only nodes of a local network that are set to (`development_time`) believe it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from recon_node.ceramic.auth.envelope import fields_of, of_type
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ipld import CID

MAX_PATH_DEPTH: Final = 64
"""Levels of a Merkle tree, enough for 2^64 events; anchor services make far smaller ones."""

MAX_TIME: Final = 253_402_300_799
"""Unix seconds at the end of the year 9999. Later times are mistakes: programs cannot show them."""
_HASH: Final = 32
"""Bytes of a transaction's hash, and of the digest of a root that a contract call anchors."""
_PROOF: Final = frozenset({"chainId", "root", "txHash"})
_OLD_PROOF: Final = frozenset({"blockNumber", "blockTimestamp"})
"""Fields of proofs of before 2023. What they say is not relied on: the chain is asked."""
_OPTIONAL: Final = _OLD_PROOF | {"txType"}
_RAW: Final = "raw"
"""The `txType` of proofs without one: those of before February 2023."""
# The first bytes of the keccak-256 of "anchorDagCbor(bytes32)". Any other four are accepted, as by
# ceramic-one: whatever function was called, the root was on the chain by then.
_ANCHOR_SELECTOR: Final = bytes.fromhex("97ad09eb")
# A `raw` transaction holds the root's CID as base16 text, "f01711220...", read as hexadecimal: this
# text has an odd number of digits, hence the leading zero.
_RAW_PREFIX: Final = b"\x0f"
# After these blocks, by chain, an anchor must be a call of the contract.
_LAST_RAW_BLOCKS: Final = {
    "eip155:1": 16_688_195,
    "eip155:5": 8_498_671,
    "eip155:100": 26_509_835,
    "eip155:11155111": 5_518_585,
    "eip155:1337": 1,
}
_CHAIN_ID: Final = re.compile(r"[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}", re.ASCII)  # CAIP-2
_MAX_TX_TYPE: Final = 100
"""Characters of a `txType`."""
# As Rust reads a number, and so ceramic-one: "+1" and "01" are 1.
_INDEX: Final = re.compile(r"\+?[0-9]{1,20}", re.ASCII)
_PLAIN_INDEX: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TimeProof:
    """Where the root of the Merkle tree was written: chain (CAIP-2), transaction and its type."""

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
        proof = fields_of(value, "the proof", _PROOF, _OPTIONAL)
        chain_id = of_type(proof["chainId"], str, "the proof's 'chainId'")
        if not _CHAIN_ID.fullmatch(chain_id):
            raise InvalidEventError(
                f"the proof's 'chainId' {chain_id[:50]!r} is not a chain (CAIP-2)"
            )
        for name in _OLD_PROOF & proof.keys():
            of_type(proof[name], int, f"the proof's '{name}'")
        tx_type = of_type(proof.get("txType", _RAW), str, "the proof's 'txType'")
        if len(tx_type) > _MAX_TX_TYPE:
            raise InvalidEventError(f"the proof's 'txType' has {len(tx_type)} characters, too many")
        return cls(
            chain_id=chain_id,
            root=of_type(proof["root"], CID, "the proof's 'root'"),
            tx_hash=of_type(proof["txHash"], CID, "the proof's 'txHash'"),
            tx_type=tx_type,
        )

    @property
    def transaction_hash(self) -> str:
        """The transaction's hash as providers take it, "0x" and 64 digits.

        Raises:
            InvalidEventError: `txHash` does not hold a hash of 32 bytes.
        """
        if len(self.tx_hash.digest) != _HASH:
            raise InvalidEventError(
                f"the proof's 'txHash' {self.tx_hash} is not a transaction's hash"
            )
        return "0x" + self.tx_hash.digest.hex()


def anchor_call(root: CID) -> bytes:
    """Return the input of a transaction that anchors a root by a call of the contract."""
    return _ANCHOR_SELECTOR + root.digest


def expected_input(proof: TimeProof) -> bytes:
    """Return the input of the transaction that anchors the proof's root, by its `txType`.

    Raises:
        InvalidEventError: neither "f(bytes32)" nor "raw", or a root that does not fit the input.
    """
    if proof.tx_type == "f(bytes32)":
        if len(proof.root.digest) != _HASH:
            raise InvalidEventError(f"the proof's 'root' {proof.root} lacks a digest of 32 bytes")
        return anchor_call(proof.root)
    if proof.tx_type == _RAW:
        return _RAW_PREFIX + proof.root
    raise InvalidEventError(
        f"the proof's 'txType' {proof.tx_type[:50]!r} is unknown; it must be 'f(bytes32)' or 'raw'"
    )


def check_transaction(proof: TimeProof, data: bytes, block_number: int) -> None:
    """Check the input and the block of the proof's transaction.

    Raises:
        InvalidEventError: the transaction does not say what the proof claims.
    """
    expected = expected_input(proof)
    skipped = len(_ANCHOR_SELECTOR) if proof.tx_type == "f(bytes32)" else 0
    if data[skipped:] != expected[skipped:]:
        raise InvalidEventError(
            f"the transaction {proof.transaction_hash} does not anchor the proof's root "
            f"{proof.root}: its input is 0x{data[:50].hex()}, not 0x{expected.hex()}"
        )
    limit = _LAST_RAW_BLOCKS.get(proof.chain_id)
    if proof.tx_type == _RAW and limit is not None and block_number > limit:
        raise InvalidEventError(
            f"the transaction {proof.transaction_hash} anchors by 'raw' in block {block_number}; "
            f"on {proof.chain_id} that only counts up to block {limit}"
        )


def has_plain_path(path: str) -> bool:
    """Whether a path that `check_path` accepts is spelled as anchor services spell it.

    Anybody could make any number of events of one anchor by other spellings, such as "+0" or "00".
    """
    return not path or all(map(_PLAIN_INDEX.fullmatch, path.split("/")))


def check_path(root: CID, path: str, prev: CID, read_block: Callable[[CID, str], Any]) -> None:
    """Walk from `root` along `path` ("0/1/0"), which must end at `prev`.

    `read_block` returns the decoded block of a CID; its second argument names the block in errors.
    An empty path means that the root is the tree's only leaf.

    Raises:
        InvalidEventError: the path ends elsewhere, or leaves the tree.
    """
    indexes = path.split("/") if path else []
    if len(indexes) > MAX_PATH_DEPTH:
        raise InvalidEventError(
            f"the proof's path is {len(indexes)} deep; the limit is {MAX_PATH_DEPTH}"
        )
    cid = root
    for position, index in enumerate(indexes):
        node = of_type(read_block(cid, f"node {position}"), list, f"node {position}")
        if not _INDEX.fullmatch(index) or int(index) >= len(node):
            raise InvalidEventError(f"the proof's path {path[:200]!r} leaves the Merkle tree")
        cid = of_type(node[int(index)], CID, f"entry {index} of node {position}")
    if cid != prev:
        raise InvalidEventError(f"the proof's path ends at {cid}, not at the prev {prev}")


DEVELOPMENT_CHAIN: Final = "local:clock"
"""As proofs name it (CAIP-2)."""
_PADDING: Final = bytes(24)


def transaction_of(time: int) -> bytes:
    """Return what stands for a transaction at a time, in Unix seconds."""
    return _PADDING + time.to_bytes(8, "big")


def development_time_of(proof: TimeProof) -> int:
    """Return the time that a proof of `local:clock` states, in Unix seconds.

    Raises:
        InvalidEventError: it states none.
    """
    digest = proof.tx_hash.digest
    time = int.from_bytes(digest[len(_PADDING) :], "big")
    if digest != transaction_of(time & (2**64 - 1)) or time > MAX_TIME:
        raise InvalidEventError(f"the proof's 'txHash' {proof.tx_hash} does not state a time")
    return time
