"""What a DAG takes is added up before it is written, and nothing is left of a pull that stops."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dag_samples import Dag
from hypothesis import given
from hypothesis import strategies as st
from support import forking

from recon_node.dag import unixfs
from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import NodeType, UnixFs
from recon_node.dag.unpack import MAX_EXTENT, measure, unpack_dag
from recon_node.ipld import CID, RAW, dag_pb

HAMT = UnixFs(NodeType.HAMT, hash_type=0x22, fanout=256)
LEAST, ENTRY = 256, 4096
"""What a node and an entry count as, written down again."""


def walked(dag: Dag, cid: CID, *, entry: bool = True) -> tuple[int, int]:
    """The same sum, by walking all paths."""
    if cid.codec == RAW:
        size, entries = max(len(dag[cid]), LEAST), 0
    else:
        node = dag_pb.decode(dag[cid])
        assert node.data is not None
        data = unixfs.decode(node.data)
        size, entries = max(len(dag[cid]), LEAST), 0
        for link in node.links:
            below = walked(
                dag,
                link.cid,
                entry=data.type is NodeType.DIRECTORY
                or (data.type is NodeType.HAMT and len(link.name) > 2),
            )
            size, entries = size + below[0], entries + below[1]
    return (size + ENTRY, entries + 1) if entry else (size, entries)


@given(st.data())
def test_the_sum_is_that_of_all_paths(data: st.DataObject) -> None:
    dag = Dag()
    nodes = [dag.raw(b"x" * data.draw(st.sampled_from([0, 1, 256, 1000]))) for _ in range(2)]
    for _ in range(data.draw(st.integers(0, 5))):
        kind = data.draw(st.sampled_from([UnixFs(NodeType.FILE), UnixFs(NodeType.DIRECTORY), HAMT]))
        links = data.draw(st.lists(st.sampled_from(nodes), max_size=4))
        names = ("0A", "0Aname", "FFother")
        nodes.append(dag.node(kind, [(data.draw(st.sampled_from(names)), cid) for cid in links]))
    assert measure(nodes[-1], dag.__getitem__) == walked(dag, nodes[-1])


BOMBS = {
    "a file": (UnixFs(NodeType.FILE), "", 900_000),
    "empty files": (UnixFs(NodeType.FILE), "", 0),
    "directories": (UnixFs(NodeType.DIRECTORY), "e{}", 1),
    "shards without entries": (HAMT, "0A", 0),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_measured_and_not_walked(tmp_path: Path, kind: str) -> None:
    node, name, content = BOMBS[kind]
    dag = Dag()
    cid = dag.raw(bytes(content))
    for _ in range(10):
        cid = dag.node(node, [(name.format(k), cid) for k in range(1000)])
    refused: list[int] = []

    def allow(size: int, what: str) -> None:
        refused.append(size)
        raise DagError("too large")

    with pytest.raises(DagError, match="too large"):
        unpack_dag(cid, dag.__getitem__, tmp_path / "out", allow)
    assert refused[0] >= MAX_EXTENT
    assert not list(tmp_path.iterdir())


def test_work_counts_as_well_as_space(tmp_path: Path) -> None:
    """An empty file of 80 kB, read 8 million times, takes no space and a day."""
    dag = Dag()
    cid = dag.node(UnixFs(NodeType.FILE, block_sizes=(0,) * 40_000), [])
    for _ in range(3):
        cid = dag.node(UnixFs(NodeType.FILE), [("", cid)] * 200)
    assert measure(cid, dag.__getitem__).size > 8_000_000 * 80_000


def test_entries_must_fit_on_the_disk(tmp_path: Path) -> None:
    dag = Dag()
    cid = dag.raw(b"")
    for _ in range(6):
        cid = dag.node(UnixFs(NodeType.DIRECTORY), [(f"{k}", cid) for k in range(1000)])
    with pytest.raises(DagError, match="do not fit on the disk"):
        unpack_dag(cid, dag.__getitem__, tmp_path / "out", lambda size, what: None)
    assert not list(tmp_path.iterdir())


def test_directories_may_be_as_deep_as_they_like(tmp_path: Path) -> None:
    dag = Dag()
    cid = dag.raw(b"")
    for _ in range(5000):
        cid = dag.node(UnixFs(NodeType.DIRECTORY), [("d", cid)])
    assert measure(cid, dag.__getitem__) == (5001 * (ENTRY + LEAST), 5001)
    for _ in range(2):  # what was left of the first attempt ended the second one, too
        with pytest.raises(DagError, match="cannot be written: File name too long"):
            unpack_dag(cid, dag.__getitem__, tmp_path / "out")
        assert not list(tmp_path.iterdir())


CHILD = """
import signal, sys
from pathlib import Path
from recon_node.cli.command import output_draft
from recon_node.dag import unixfs
from recon_node.dag.unpack import unpack_dag
from recon_node.ipld import CID, DAG_PB, RAW, dag_pb

target = Path(sys.argv[1])
written = CID.of(RAW, b"written")
links = [dag_pb.PbLink(CID.of(RAW, b"awaited"), "a"), dag_pb.PbLink(written, "b")]
data = unixfs.encode(unixfs.UnixFs(unixfs.NodeType.DIRECTORY))
block = dag_pb.encode(dag_pb.PbNode(tuple(links), data))
root = CID.of(DAG_PB, block)

def read(cid):
    if cid in (root, written):
        return {root: block, written: b"written"}[cid]
    print(sorted(path.name for path in target.parent.iterdir()), flush=True)
    signal.pause()

with output_draft(target):
    unpack_dag(root, read, target)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    child = forking.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout.readline() == "['.out.part', '.out.unpacking']\n"
        child.send_signal(number)
        assert child.wait(30) != 0
    finally:
        child.kill()
        child.wait()
    assert not list(tmp_path.iterdir())
