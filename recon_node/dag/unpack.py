"""Writing a UnixFS DAG back to files and directories.

DAGs are not trusted: names that lead out of the directory (`..`, a slash, a NUL) are refused,
existing files are never overwritten, and symlinks are not created. Everything is first written next
to its place and moved there when complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from recon_node.dag import unixfs
from recon_node.dag.errors import DagError
from recon_node.dag.unixfs import NodeType, UnixFs
from recon_node.ipld import CID, DAG_PB, IDENTITY, RAW, IpldError, dag_pb
from recon_node.ipld.dag_pb import PbNode

Read = Callable[[CID], bytes]

MAX_DEPTH: Final = 64
"""Levels of nodes in a file, or in a sharded directory: far more than real ones have."""


def unpack_dag(root: CID, read: Read, target: Path) -> int:
    """Write the file or directory `root` as `target`, which must not exist.

    `read` returns the block of a CID.

    Returns:
        The number of files written.

    Raises:
        DagError: `target` exists, the DAG is not UnixFS or has refused names, or writing fails.
            Nothing is left behind then.
    """
    if os.path.lexists(target):
        raise DagError(f"{target} already exists; not overwriting")
    draft = target.with_name(f".{target.name}.unpacking")
    try:
        _remove(draft)  # left by a process that was killed
        files = _write(root, read, draft)
        draft.rename(target)
    except OSError as error:
        raise DagError(f"{target} cannot be written: {error.strerror or error}") from None
    except IpldError as error:
        raise DagError(f"{root} is not a file or directory: {error}") from None
    finally:
        _remove(draft)
    return files


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(root: CID, read: Read, target: Path) -> int:
    files = 0
    left = [(root, target)]
    while left:
        cid, path = left.pop()
        if _is_directory(cid, read):
            path.mkdir()
            names: set[str] = set()
            for name, entry in _entries(cid, read, 0):
                left.append((entry, path / _checked(name, names)))
        else:
            with path.open("xb") as file:
                _write_file(cid, read, file, 0)
            files += 1
    return files


def _checked(name: str, names: set[str]) -> str:
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name or name in names:
        raise DagError(f"an entry named {name!r} is refused: it could lead elsewhere")
    names.add(name)
    return name


def _is_directory(cid: CID, read: Read) -> bool:
    return cid.codec == DAG_PB and _node(cid, read)[1].type in (NodeType.DIRECTORY, NodeType.HAMT)


def _entries(cid: CID, read: Read, depth: int) -> Iterator[tuple[str, CID]]:
    """The entries of a directory. In a sharded one, names start with a position in hex; a name that
    is just a position links to a shard."""
    _check_depth(depth)
    node, data = _node(cid, read)
    if data.type is NodeType.DIRECTORY:
        yield from ((link.name, link.cid) for link in node.links)
        return
    if data.type is not NodeType.HAMT or not data.fanout:
        raise DagError(f"{cid} is not part of a directory")
    width = len(f"{data.fanout - 1:x}")
    for link in node.links:
        if len(link.name) > width:
            yield link.name[width:], link.cid
        else:
            yield from _entries(link.cid, read, depth + 1)


def _write_file(cid: CID, read: Read, file: BinaryIO, depth: int) -> int:
    """Write the content below a node and return its size in bytes."""
    _check_depth(depth)
    if cid.codec == RAW:
        return file.write(_block(cid, read))
    node, data = _node(cid, read)
    if data.type not in (NodeType.FILE, NodeType.RAW):
        raise DagError(f"{cid} is a {data.type.name.lower()}, which is not supported")
    size = file.write(data.data)
    for link in node.links:
        size += _write_file(link.cid, read, file, depth + 1)
    if data.file_size is not None and data.file_size != size:
        raise DagError(f"{cid} should have {data.file_size} bytes of content, and has {size}")
    return size


def _node(cid: CID, read: Read) -> tuple[PbNode, UnixFs]:
    if cid.codec != DAG_PB:
        raise DagError(
            f"{cid} is not a file or directory: its codec {cid.codec:#x} is neither DAG-PB nor raw"
        )
    node = dag_pb.decode(_block(cid, read))
    if node.data is None:
        raise DagError(f"{cid} is not a file or directory: its node has no data")
    return node, unixfs.decode(node.data)


def _block(cid: CID, read: Read) -> bytes:
    return cid.digest if cid.hash_code == IDENTITY else read(cid)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise DagError(f"the nodes of a file are nested deeper than {MAX_DEPTH}")
