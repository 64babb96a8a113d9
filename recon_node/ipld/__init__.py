"""Floor 1, IPLD: varints, CIDs, DAG-CBOR, DAG-PB, CARv1 and multibase.

Pure functions over `bytes`. All input is checked; what is refused raises an `IpldError` whose
message is user-facing.
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
    "VarintError",
    "car",
    "cid_head",
    "dag_cbor",
    "dag_pb",
    "multibase",
    "read_cid",
    "varint",
]
