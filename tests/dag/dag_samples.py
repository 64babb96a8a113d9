"""DAGs for the tests of this package: from a seed, or drawn by Hypothesis."""

import random
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from nacl.signing import SigningKey

from recon_node.ceramic import Event, Network
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import signed_event
from recon_node.dag import unixfs
from recon_node.dag.dag_events import DAG_MODEL
from recon_node.dag.protocol.shards import NO_ROOT
from recon_node.dag.unixfs import UnixFs
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, DAG_PB, RAW, dag_cbor, dag_pb
from recon_node.ipld.dag_pb import PbLink, PbNode

NETWORK = Network.local(7)
KEYS = [SigningKey(bytes([n]) * 32) for n in range(1, 4)]
NOW = 1_795_000_000

Blocks = dict[CID, bytes]


def make_dag(blocks: int, size: int, rng: random.Random) -> tuple[CID, Blocks]:
    """A DAG of so many raw leaves below one root."""
    leaves = {CID.of(RAW, data): data for data in (rng.randbytes(size) for _ in range(blocks))}
    root = dag_cbor.encode(list(leaves))
    cid = CID.of(DAG_CBOR, root)
    return cid, {cid: root, **leaves}


class Dag(dict[CID, bytes]):
    """The blocks of files and directories, made from the leaves upwards."""

    def raw(self, content: bytes) -> CID:
        cid = CID.of(RAW, content)
        self[cid] = content
        return cid

    def node(self, data: UnixFs, links: list[tuple[str, CID]]) -> CID:
        block = dag_pb.encode(
            PbNode(tuple(PbLink(cid, name) for name, cid in links), unixfs.encode(data))
        )
        cid = CID.of(DAG_PB, block)
        self[cid] = block
        return cid


def event_with(subject: bytes, data: object) -> Event:
    """An event about a DAG or an identifier, with any data."""
    header = {
        "controllers": [controller_of(KEYS[0])],
        "model": DAG_MODEL.to_bytes(),
        "sep": "dag",
        "dag": bytes(subject),
    }
    return signed_event(KEYS[0], {"header": header, "data": data})


@st.composite
def dags(draw: st.DrawFn) -> tuple[CID, Blocks]:
    """A DAG of several codecs in which blocks are linked from several others."""
    blocks: Blocks = {}
    made: list[CID] = []
    for number in range(draw(st.integers(1, 12))):
        targets = draw(st.lists(st.sampled_from(made), max_size=4)) if made else []
        padding = draw(st.binary(max_size=100))
        value: Any = {"n": number, "links": [*targets, {"deep": [NO_ROOT]}], "padding": padding}
        codec = draw(st.sampled_from([DAG_CBOR, DAG_JOSE, DAG_PB, RAW]))
        if codec == DAG_PB:
            block = dag_pb.encode(PbNode(tuple(PbLink(target) for target in targets), padding))
        else:
            block = padding if codec == RAW else dag_cbor.encode(value)
        made.append(CID.of(codec, block))
        blocks[made[-1]] = block
    root = dag_cbor.encode(made)
    blocks[CID.of(DAG_CBOR, root)] = root
    return CID.of(DAG_CBOR, root), blocks


def make_files(directory: Path, rng: random.Random, *sizes: int) -> Path:
    """A directory with files of these sizes, some of them in directories of their own."""
    directory.mkdir()
    for number, size in enumerate(sizes):
        folder = directory / f"folder {number % 3}" if number % 2 else directory
        folder.mkdir(exist_ok=True)
        (folder / f"file {number}.bin").write_bytes(rng.randbytes(size))
    return directory


def contents(directory: Path) -> dict[str, bytes | None]:
    """All files below a directory, and its directories (None)."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }
