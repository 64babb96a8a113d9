"""Floor 1, IPLD: the bytes that everything above is made of.

Varints, CIDs (raw bytes inside), DAG-CBOR, DAG-PB, CARv1 and multibase. Pure functions over
`bytes`; everything read is checked, and whatever is refused is an `IpldError` with a message for
people.
"""

from recon_node.ipld import car, dag_cbor, dag_pb, multibase, varint
from recon_node.ipld.car import Car
from recon_node.ipld.cid import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    IDENTITY,
    MAX_DIGEST,
    RAW,
    SHA2_256,
    cid_head,
    read_cid,
)
from recon_node.ipld.dag_pb import DAG_PB
from recon_node.ipld.errors import (
    CarError,
    CidError,
    DagCborError,
    DagPbError,
    IpldError,
    MultibaseError,
    UnixFsError,
    VarintError,
)

__all__ = [
    "CID",
    "DAG_CBOR",
    "DAG_JOSE",
    "DAG_PB",
    "IDENTITY",
    "MAX_DIGEST",
    "RAW",
    "SHA2_256",
    "Car",
    "CarError",
    "CidError",
    "DagCborError",
    "DagPbError",
    "IpldError",
    "MultibaseError",
    "UnixFsError",
    "VarintError",
    "car",
    "cid_head",
    "dag_cbor",
    "dag_pb",
    "multibase",
    "read_cid",
    "varint",
]
