"""Layer 1, IPLD: CIDs and varints, DAG-CBOR, DAG-PB, CARs and multibase.

Pure functions over `bytes`. All input is checked; what is refused raises an `IpldError` whose
message is user-facing. In reading order:

    cid        CIDs, and varints, their numbers
    multibase  bytes as text
    dag_cbor   strict DAG-CBOR
    dag_pb     DAG-PB, the codec of files in IPFS
    dag_json   DAG-JSON, which is only written
    car        CARs in memory, and CAR files of any size
    links      the links of a block, whatever its codec
    errors     what goes wrong
"""

from recon_node.ipld import car, dag_cbor, dag_json, dag_pb, multibase
from recon_node.ipld.car import Car
from recon_node.ipld.cid import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    IDENTITY,
    MAX_DIGEST,
    MAX_INLINE,
    MAX_VARINT,
    RAW,
    SHA2_256,
    cid_head,
    cid_of_block,
    decode_varint,
    encode_varint,
    read_cid,
)
from recon_node.ipld.errors import (
    CarError,
    CidError,
    DagCborError,
    DagPbError,
    IpldError,
    LinksError,
    MultibaseError,
    VarintError,
)
from recon_node.ipld.links import links

__all__ = [
    "CID",
    "DAG_CBOR",
    "DAG_JOSE",
    "DAG_PB",
    "IDENTITY",
    "MAX_DIGEST",
    "MAX_INLINE",
    "MAX_VARINT",
    "RAW",
    "SHA2_256",
    "Car",
    "CarError",
    "CidError",
    "DagCborError",
    "DagPbError",
    "IpldError",
    "LinksError",
    "MultibaseError",
    "VarintError",
    "car",
    "cid_head",
    "cid_of_block",
    "dag_cbor",
    "dag_json",
    "dag_pb",
    "decode_varint",
    "encode_varint",
    "links",
    "multibase",
    "read_cid",
]
