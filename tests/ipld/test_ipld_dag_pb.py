"""DAG-PB: well-known CIDs, Google's protobuf as oracle, and strictness."""

import os
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import CID, DAG_PB, RAW, DagPbError, dag_pb, encode_varint, multibase
from recon_node.ipld.dag_pb import PbLink, PbNode


def _schema() -> Any:
    """PBNode as the specification words it, but for names: they are not always UTF-8."""
    file = descriptor_pb2.FileDescriptorProto(name="dag_pb.proto", package="t", syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    link, node = file.message_type.add(name="PBLink"), file.message_type.add(name="PBNode")
    optional, repeated = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    link.field.add(name="Hash", number=1, type=field.TYPE_BYTES, label=optional)
    link.field.add(name="Name", number=2, type=field.TYPE_BYTES, label=optional)
    link.field.add(name="Tsize", number=3, type=field.TYPE_UINT64, label=optional)
    node.field.add(
        name="Links", number=2, type=field.TYPE_MESSAGE, label=repeated, type_name=".t.PBLink"
    )
    node.field.add(name="Data", number=1, type=field.TYPE_BYTES, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.PBNode"))


ORACLE = _schema()

LINKS = st.builds(
    PbLink,
    st.binary().map(lambda block: CID.of(RAW, block)),
    st.binary().map(os.fsdecode),
    st.integers(0, 2**63 - 1),
)
NODES = st.builds(PbNode, st.lists(LINKS).map(tuple), st.none() | st.binary())


@pytest.mark.parametrize(
    ("data", "v0"),
    [
        (b"\x08\x01", "zQmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"),  # empty directory
        (b"\x08\x02\x18\x00", "zQmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),  # empty file
    ],
)
def test_the_best_known_nodes_of_ipfs(data: bytes, v0: str) -> None:
    block = dag_pb.encode(PbNode((), data))
    assert CID.of(DAG_PB, block) == b"\x01\x70" + multibase.decode(v0)
    assert dag_pb.decode(block) == PbNode((), data)


@given(NODES)
def test_protobuf_reads_what_we_write(node: PbNode) -> None:
    block = dag_pb.encode(node)
    assert dag_pb.encode(dag_pb.decode(block)) == block
    theirs = ORACLE.FromString(block)
    assert (theirs.Data if theirs.HasField("Data") else None) == node.data
    assert [(link.Hash, link.Name, link.Tsize) for link in theirs.Links] == [
        (link.cid, os.fsencode(link.name), link.size)
        for link in sorted(node.links, key=lambda link: os.fsencode(link.name))
    ]


@given(st.binary(max_size=80) | NODES.map(dag_pb.encode))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        node = dag_pb.decode(data)
    except DagPbError:
        return
    theirs = ORACLE.FromString(data)
    assert [link.Name for link in theirs.Links] == [os.fsencode(link.name) for link in node.links]
    assert theirs.Data == (node.data or b"")


def _link(name: bytes = b"") -> bytes:
    body = b"\x0a\x24" + FILE + b"\x12" + encode_varint(len(name)) + name + b"\x18\x00"
    return b"\x12" + encode_varint(len(body)) + body


FILE = CID.of(RAW, b"")


def test_data_may_come_before_the_links() -> None:
    first = dag_pb.decode(b"\x0a\x02\x08\x01" + _link(b"a") + _link(b"b"))
    assert first == PbNode((PbLink(FILE, "a"), PbLink(FILE, "b")), b"\x08\x01")
    assert dag_pb.encode(first) == _link(b"a") + _link(b"b") + b"\x0a\x02\x08\x01"


def test_a_link_by_cid_v0_is_the_cid_v1_of_the_same_block() -> None:
    target = CID.of(DAG_PB, b"")
    body = b"\x0a\x22" + target[2:]
    [link] = dag_pb.decode(b"\x12" + encode_varint(len(body)) + body).links
    assert link == PbLink(target)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (b"\xff" * 9 + b"\x01", 2**64 - 1),  # -1, to some writers
        (b"\xff" * 8 + b"\x7f", 2**63 - 1),
        (b"\x85\x00", 5),
        (b"\x80" * 9 + b"\x00", 0),
    ],
)
def test_sizes_are_numbers_of_protobuf(size: bytes, expected: int) -> None:
    """As @ipld/dag-pb 4.1 and go-codec-dagpb read them, and protobuf does."""
    body = b"\x0a\x24" + FILE + b"\x18" + size
    block = b"\x12" + bytes([0x80 | len(body), 0]) + body
    assert dag_pb.decode(block) == PbNode((PbLink(FILE, "", expected),))
    assert ORACLE.FromString(block).Links[0].Tsize == expected


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (b"\x12\x0a\x18" + b"\xff" * 9, "the bytes end within the varint"),
        (b"\x12\x0b\x18" + b"\xff" * 9 + b"\x02", "does not fit in 64 bits"),
        (b"\x0a\x00\x0a\x00", "data twice"),
        (_link() + b"\x0a\x00" + _link(), "data is between its links"),
        (b"\x0a\x00" + _link() + b"\x0a\x00", "data twice"),
        (b"\x0a\x05abc", "2 bytes are missing"),
        (b"\x1a\x00", "an unknown field at byte 0"),
        (b"\x12\x00", "a link without its hash"),
        (b"\x12\x04\x12\x00\x12\x00", "repeated or out of order"),
    ],
)
def test_other_forms_are_refused(block: bytes, complaint: str) -> None:
    with pytest.raises(DagPbError, match=complaint):
        dag_pb.decode(block)
