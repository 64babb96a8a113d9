"""Links of blocks: those that the strict decoders know, and of blocks that only others accept."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    IDENTITY,
    RAW,
    DagCborError,
    LinksError,
    cid_of_block,
    dag_cbor,
    dag_pb,
    links,
)
from recon_node.ipld.dag_pb import PbLink, PbNode
from recon_node.ipld.links import CBOR, DAG_JSON, JSON

A, B = CID.of(RAW, b"a"), CID.of(DAG_PB, b"b")
V0 = CID(B[2:])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([A, B, V0]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def of(codec: int, block: bytes) -> list[CID]:
    return links(CID.of(codec, block), block)


def linked(value: Any) -> Iterator[CID]:
    if isinstance(value, CID):
        yield cid_of_block(value)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from linked(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from linked(inner)


@given(VALUES)
def test_links_of_dag_cbor_are_those_of_the_decoded_value(value: Any) -> None:
    block = dag_cbor.encode(value)
    assert of(DAG_CBOR, block) == list(linked(dag_cbor.decode(block)))


@given(VALUES.map(dag_cbor.encode), st.data())
def test_whatever_the_decoder_reads_has_links(block: bytes, draw: st.DataObject) -> None:
    changed = bytearray(block)
    changed[draw.draw(st.integers(0, len(block) - 1))] = draw.draw(st.integers(0, 255))
    try:
        links = of(DAG_CBOR, bytes(changed))
    except LinksError:
        links = None
    with suppress(DagCborError):
        named = list(linked(dag_cbor.decode(bytes(changed))))
        if not any(cid.hash_code == IDENTITY for cid in named):
            assert links == named


LINK = b"\xd8\x2a\x58\x25\0" + A


@pytest.mark.parametrize(
    "block",
    [
        b"\x82\x62\xff\xfe" + LINK,  # text that is not UTF-8, as in old Filecoin blocks
        b"\xa2\x62bb\x01\x61a" + LINK,  # keys out of order
        b"\x82\x18\x01" + LINK,  # a number in a longer form
        b"\x82\xf9\x7e\x00" + LINK,  # a short NaN
        b"\x81" * 300 + LINK,
        b"\xd9\x00\x2a\x58\x25\0" + A,
    ],
)
def test_blocks_are_followed_that_are_not_strict(block: bytes) -> None:
    assert of(DAG_CBOR, block) == [A]


def test_an_identity_cid_brings_the_links_of_its_block() -> None:
    inner = dag_cbor.encode([A])
    inside = CID(b"\x01\x71\x00" + bytes([len(inner)]) + inner)
    assert of(DAG_CBOR, dag_cbor.encode([inside, B, CID(b"\x01\x55\x00\x00")])) == [A, B]


@pytest.mark.parametrize(
    ("codec", "block", "expected"),
    [
        (DAG_PB, dag_pb.encode(PbNode((PbLink(A, "a"), PbLink(V0, "b")))), [A, B]),
        (DAG_JOSE, dag_cbor.encode({"payload": bytes(A), "link": B, "signatures": []}), [A, B]),
        (DAG_JOSE, dag_cbor.encode({"payload": b"?", "signatures": []}), []),
        (DAG_JSON, f'[{{"/": "{A}"}}, {{"a": {{"/": "{V0}"}}}}]'.encode(), [A, B]),
        (DAG_JSON, b'{"/": {"bytes": "AQ"}, "f": 1e3}', []),
        (RAW, LINK, []),
        (CBOR, LINK, []),
        (JSON, f'{{"/": "{A}"}}'.encode(), []),
    ],
)
def test_links_by_codec(codec: int, block: bytes, expected: list[CID]) -> None:
    assert of(codec, block) == expected


@pytest.mark.parametrize(
    ("codec", "block", "complaint"),
    [
        (DAG_CBOR, b"\xff", "an item without a length at byte 0"),
        (DAG_CBOR, b"\x82\x01", "end within"),
        (DAG_CBOR, b"\x42a", "1 bytes are missing"),
        (DAG_CBOR, b"\x01\x01", "1 bytes are left over at byte 1"),
        (DAG_CBOR, b"\xd8\x2a\x01", "no CID in the link"),
        (DAG_CBOR, b"\xd8\x2a\x41\0", "no CID"),
        (DAG_CBOR, b"\xd8\x2a\x41\1", "no CID"),
        (DAG_PB, b"\xff", "not DAG-PB"),
        (DAG_JSON, b"[", "Expecting value"),
        (DAG_JSON, b'{"/": "x"}', "not a CID"),
        (DAG_JSON, b"[" * 100_000, "recursion"),
        (0x78, b"", "the codec 0x78 is unknown"),
    ],
)
def test_links_that_cannot_be_read(codec: int, block: bytes, complaint: str) -> None:
    with pytest.raises(LinksError, match=complaint):
        of(codec, block)
