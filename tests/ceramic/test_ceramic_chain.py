"""What the transaction of a time event must be."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ceramic import InvalidEventError, TimeProof, check_transaction, expected_input
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
INPUT = bytes.fromhex("97ad09eb7d6b5b17e15037a18de992fc3ad1efa7662b1a598b6d9c243a5e9463edc050d1")
BLOCK = 0x65DEA1
# Of the EVM profile of CAIP-168, the example of `raw`.
RAW = TimeProof(
    chain_id="eip155:1",
    root=CID.parse("bafyreiaxdhr5jbabn7enmbb5wpmnm3dwpncbqjcnoneoj22f3sii5vfg74"),
    tx_hash=CID.parse("bagjqcgzanbud4sqdsywfp2mckuj57qsffsovgyjhh7sxebkqwr335hzy2zbq"),
    tx_type="raw",
)


def test_the_transaction_of_a_proof() -> None:
    assert SEPOLIA.transaction_hash == TX_HASH
    assert expected_input(SEPOLIA) == INPUT
    check_transaction(SEPOLIA, INPUT, BLOCK)


def test_a_raw_transaction_holds_the_root_as_base16_text() -> None:
    text = multibase.encode(RAW.root, "base16")
    assert "0" + text == expected_input(RAW).hex()
    check_transaction(RAW, expected_input(RAW), 16_688_195)


def test_raw_transactions_count_up_to_a_block() -> None:
    with pytest.raises(InvalidEventError, match="only counts up to block 16688195"):
        check_transaction(RAW, expected_input(RAW), 16_688_196)
    check_transaction(replace(RAW, chain_id="eip155:137"), expected_input(RAW), 0xFFFFFFF)


@given(st.binary(min_size=4, max_size=4))
def test_any_function_may_have_been_called_with_the_root(selector: bytes) -> None:
    check_transaction(SEPOLIA, selector + INPUT[4:], BLOCK)


@given(st.integers(4 * 8, 36 * 8 - 1))
def test_every_bit_of_the_root_counts(bit: int) -> None:
    changed = bytearray(INPUT)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidEventError, match="does not anchor the proof's root"):
        check_transaction(SEPOLIA, changed, BLOCK)


@pytest.mark.parametrize("data", [b"", INPUT[:3], INPUT[:-1], INPUT + b"\0", INPUT[4:]])
def test_inputs_of_another_length(data: bytes) -> None:
    with pytest.raises(InvalidEventError, match="does not anchor"):
        check_transaction(SEPOLIA, data, BLOCK)


def test_proofs_that_do_not_fit_a_transaction() -> None:
    with pytest.raises(InvalidEventError, match="'txType' 'f' is unknown"):
        expected_input(replace(SEPOLIA, tx_type="f"))
    with pytest.raises(InvalidEventError, match="lacks a digest of 32 bytes"):
        expected_input(replace(SEPOLIA, root=CID(bytes([1, 0x71, 0, 1, 7]))))
    with pytest.raises(InvalidEventError, match="not a transaction's hash"):
        _ = replace(SEPOLIA, tx_hash=CID(bytes([1, 0x71, 0, 1, 7]))).transaction_hash


def test_times_beyond_the_calendar_are_mistakes() -> None:
    """Clients and tables could not show them, and raise errors that nobody expects."""

    def at(time: int) -> TimeProof:
        tx_hash = CID(SEPOLIA.tx_hash[:-32] + transaction_of(time))
        return replace(SEPOLIA, chain_id=DEVELOPMENT_CHAIN, tx_hash=tx_hash)

    assert datetime.fromtimestamp(development_time_of(at(MAX_TIME)), UTC).year == 9999
    for time in (MAX_TIME + 1, 2**40, 2**63 - 1, 2**64 - 1):
        with pytest.raises(InvalidEventError, match="does not state a time"):
            development_time_of(at(time))
