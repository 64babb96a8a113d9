"""What a chain's provider answered, and what follows from it for a time event."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ceramic import (
    ChainAnswerError,
    InvalidEventError,
    TimeProof,
    check_transaction,
    expected_input,
)
from recon_node.ceramic.time_proof import (
    DEVELOPMENT_CHAIN,
    MAX_TIME,
    development_time_of,
    transaction_of,
)
from recon_node.ipld import CID, multibase

# A transaction on Sepolia and its proof, as the tests of ceramic-one have them.
SEPOLIA = TimeProof(
    chain_id="eip155:11155111",
    root=CID.parse("bafyreid5nnnrpykqg6qy32ms7q5nd35hmyvruwmlnwocios6srr63qcq2e"),
    tx_hash=CID.parse("bagjqcgzadp7fstu7fz5tfi474ugsjqx5h6yvevn54w5m4akayhegdsonwciq"),
    tx_type="f(bytes32)",
)
TX_HASH = "0x1bfe594e9f2e7b32a39fe50d24c2fd3fb15255bde5bace0140c1c861c9cdb091"
INPUT = "0x97ad09eb7d6b5b17e15037a18de992fc3ad1efa7662b1a598b6d9c243a5e9463edc050d1"
BLOCK_HASH = "0x783cd5a6febe13d08ac0d59fa7e666483d5e476542b29688a6f0bec3d15febd4"
TIME = 1725913338
# Of the EVM profile of CAIP-168, the example of `raw`.
RAW = TimeProof(
    chain_id="eip155:1",
    root=CID.parse("bafyreiaxdhr5jbabn7enmbb5wpmnm3dwpncbqjcnoneoj22f3sii5vfg74"),
    tx_hash=CID.parse("bagjqcgzanbud4sqdsywfp2mckuj57qsffsovgyjhh7sxebkqwr335hzy2zbq"),
    tx_type="raw",
)


def transaction(proof: TimeProof = SEPOLIA, **changes: Any) -> dict[str, Any]:
    return {
        "hash": proof.transaction_hash,
        "input": "0x" + expected_input(proof).hex(),
        "blockHash": BLOCK_HASH,
        "blockNumber": "0x65dea1",
    } | changes


def block(**changes: Any) -> dict[str, Any]:
    return {"hash": BLOCK_HASH, "number": "0x65dea1", "timestamp": hex(TIME)} | changes


def test_the_transaction_of_a_proof() -> None:
    assert SEPOLIA.transaction_hash == TX_HASH
    assert "0x" + expected_input(SEPOLIA).hex() == INPUT
    assert check_transaction(SEPOLIA, transaction(input=INPUT), block()) == TIME


def test_hexadecimal_of_either_case() -> None:
    loud = transaction(hash="0x" + TX_HASH[2:].upper(), blockHash="0x" + BLOCK_HASH[2:].upper())
    assert check_transaction(SEPOLIA, loud | {"input": "0x" + INPUT[2:].upper()}, block()) == TIME


def test_a_raw_transaction_holds_the_root_as_base16_text() -> None:
    text = multibase.encode(RAW.root, "base16")
    assert "0x0" + text == "0x" + expected_input(RAW).hex()
    assert check_transaction(RAW, transaction(RAW), block(number=hex(16_688_195))) == TIME


def test_raw_transactions_count_up_to_a_block() -> None:
    with pytest.raises(InvalidEventError, match="only counts up to block 16688195"):
        check_transaction(RAW, transaction(RAW), block(number=hex(16_688_196)))
    elsewhere = replace(RAW, chain_id="eip155:137")
    assert check_transaction(elsewhere, transaction(elsewhere), block(number="0xfffffff")) == TIME


@given(st.binary(min_size=4, max_size=4))
def test_any_function_may_have_been_called_with_the_root(selector: bytes) -> None:
    called = transaction(input=f"0x{selector.hex()}{INPUT[10:]}")
    assert check_transaction(SEPOLIA, called, block()) == TIME


@given(st.integers(4 * 8, 36 * 8 - 1))
def test_every_bit_of_the_root_counts(bit: int) -> None:
    changed = bytearray.fromhex(INPUT[2:])
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidEventError, match="does not anchor the proof's root"):
        check_transaction(SEPOLIA, transaction(input="0x" + changed.hex()), block())


@pytest.mark.parametrize("data", ["0x", INPUT[:-2], INPUT + "00", "0x" + INPUT[10:]])
def test_inputs_of_another_length(data: str) -> None:
    with pytest.raises(InvalidEventError, match="does not anchor"):
        check_transaction(SEPOLIA, transaction(input=data), block())


def test_proofs_that_do_not_fit_a_transaction() -> None:
    with pytest.raises(InvalidEventError, match="'txType' 'f' is unknown"):
        expected_input(replace(SEPOLIA, tx_type="f"))
    with pytest.raises(InvalidEventError, match="lacks a digest of 32 bytes"):
        expected_input(replace(SEPOLIA, root=CID(bytes([1, 0x71, 0, 1, 7]))))
    with pytest.raises(InvalidEventError, match="not a transaction's hash"):
        _ = replace(SEPOLIA, tx_hash=CID(bytes([1, 0x71, 0, 1, 7]))).transaction_hash


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hash": BLOCK_HASH}, "asked for the transaction"),
        ({"blockHash": None}, "is not in a block yet"),
        ({"blockHash": TX_HASH}, "lies in the block"),
        ({"hash": None}, "'hash' is not hexadecimal data: None"),
        ({"input": 7}, "'input' is not hexadecimal data: 7"),
        ({"input": "0x123"}, "'input' is not hexadecimal data"),
        ({"blockHash": "latest"}, "'blockHash' is not hexadecimal data"),
    ],
)
def test_answers_that_say_nothing(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ChainAnswerError, match=complaint):
        check_transaction(SEPOLIA, transaction() | changes, block())


@pytest.mark.parametrize(
    "value", [None, 1725913338, "", "0x", "1725913338", "0x-1", "0x" + "f" * 17]
)
def test_blocks_without_a_time(value: Any) -> None:
    for name in ("timestamp", "number"):
        with pytest.raises(ChainAnswerError, match=f"'{name}' is not a hexadecimal number"):
            check_transaction(SEPOLIA, transaction(), block(**{name: value}))
    with pytest.raises(ChainAnswerError, match="'timestamp' is not a hexadecimal number: None"):
        check_transaction(SEPOLIA, transaction(), {"hash": BLOCK_HASH, "number": "0x1"})


def test_times_beyond_the_calendar_are_mistakes() -> None:
    """Clients and tables could not show them, and raise errors that nobody expects."""

    def at(time: int) -> TimeProof:
        tx_hash = CID(SEPOLIA.tx_hash[:-32] + transaction_of(time))
        return replace(SEPOLIA, chain_id=DEVELOPMENT_CHAIN, tx_hash=tx_hash)

    assert datetime.fromtimestamp(development_time_of(at(MAX_TIME)), UTC).year == 9999
    last = block(timestamp=hex(MAX_TIME))
    assert check_transaction(SEPOLIA, transaction(), last) == MAX_TIME
    for time in (MAX_TIME + 1, 2**40, 2**63 - 1, 2**64 - 1):
        with pytest.raises(InvalidEventError, match="does not state a time"):
            development_time_of(at(time))
        with pytest.raises(ChainAnswerError, match="beyond the calendar"):
            check_transaction(SEPOLIA, transaction(), block(timestamp=hex(time)))
