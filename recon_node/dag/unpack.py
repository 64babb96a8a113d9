"""Writing a UnixFS DAG back to files, directories and symlinks.

DAGs are not trusted: names that lead out of the directory (`..`, a slash, a NUL) are refused, and
existing files are never overwritten. Symlinks are made as they are, wherever they lead, but nothing
is written through them. Of the permissions, those to run as the file's owner or group are not set.
The size is known before anything is written. Everything is written next to its place first, and
moved there when it is complete.

A DAG of two megabytes can name petabytes: a node may link to one child thousands of times, at
several levels. So each node is looked at once, and what is below it is multiplied, not walked.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from recon_node.base.errors import reason_of
from recon_node.dag.errors import DagError, Omissions, path_text
from recon_node.dag.unixfs import (
    DIRECTORIES,
    Attributes,
    NodeType,
    Read,
    directory_entries,
    entry_name,
    file_content,
    read_node,
)
from recon_node.ipld import CID, IDENTITY, IpldError

MAX_EXTENT: Final = 1 << 60
"""Bytes and entries above this are not counted any more: 1 EiB."""
_ENTRY_SIZE: Final = 4096
"""Bytes that a file, directory or symlink takes beside its content, on most file systems."""
_NODE_SIZE: Final = 256
"""Bytes that a node counts as at least: endless tiny ones take time, if not space."""


class UnpackedSize(NamedTuple):
    """What a DAG takes when it is written."""

    size: int
    """Bytes of a disk."""
    entries: int
    """Files, directories and symlinks."""


@dataclass(slots=True)
class _Node:
    cid: CID
    size: int
    """Bytes of its block: what it adds to a file, or the work of reading it again."""
    links: list[tuple[CID, bool]]
    """The nodes below, and whether each is an entry of a directory."""
    unseen: Iterator[CID]


def measure(root: CID, read: Read) -> UnpackedSize:
    """Return what the file, directory or symlink `root` takes.

    Raises:
        DagError: a node is not UnixFS.
        IpldError: a node cannot be decoded.
    """
    measured: dict[CID, UnpackedSize] = {}
    path = [_open(root, read)]
    while path:
        node = path[-1]
        child = next((cid for cid in node.unseen if cid not in measured), None)
        if child is not None:
            path.append(_open(child, read))
            continue
        measured[node.cid] = _sum(node, measured)
        path.pop()
    return _as_entry(measured[root])


def _open(cid: CID, read: Read) -> _Node:
    block = cid.digest if cid.hash_code == IDENTITY else read(cid)
    data, pb_links = read_node(cid, lambda _: block)
    links = [(link.cid, entry_name(data, link) is not None) for link in pb_links]
    return _Node(cid, len(block), links, iter(dict.fromkeys(child for child, _ in links)))


def _sum(node: _Node, measured: dict[CID, UnpackedSize]) -> UnpackedSize:
    size, entries = max(node.size, _NODE_SIZE), 0
    for cid, is_entry in node.links:
        below = _as_entry(measured[cid]) if is_entry else measured[cid]
        size, entries = size + below.size, entries + below.entries
    return UnpackedSize(min(size, MAX_EXTENT), min(entries, MAX_EXTENT))


def _as_entry(extent: UnpackedSize) -> UnpackedSize:
    return UnpackedSize(extent.size + _ENTRY_SIZE, extent.entries + 1)


_PERMISSIONS: Final = 0o777
_OWNERS: Final = 0o700


@dataclass(slots=True)
class Unpacked:
    """What was written: the number of files, and of what could not be kept."""

    files: int = 0
    symlinks: int = 0
    not_kept: list[str] = field(default_factory=list)
    """The paths of symlinks that could not be made, and of files whose attributes could not be
    set, below the target."""

    def left_out(self) -> Omissions | None:
        """Return what could not be kept."""
        return Omissions.of(self.not_kept, "symlinks, permissions or times could not be kept")


def unpack_dag(
    root: CID, read: Read, target: Path, allow: Callable[[int, str], None] | None = None
) -> Unpacked:
    """Write the file, directory or symlink `root` as `target`, which must not exist.

    Args:
        root: of the DAG.
        read: returns the block of a CID.
        target: where to write.
        allow: called with the bytes of the disk that this takes and a description, before anything
            is written; it raises what is to be raised if that is too much.

    Raises:
        DagError: `target` exists, the DAG is not UnixFS or has refused names, or writing fails.
            Nothing is left behind then.
    """
    if os.path.lexists(target):
        raise DagError(f"{target} already exists; not overwriting")
    draft = target.with_name(f".{target.name}.unpacking")
    try:
        _remove(draft)  # left by a process that was killed
        if allow is not None:
            size, entries = measure(root, read)
            things, disk = f"{entries:,} files, directories and symlinks", os.statvfs(target.parent)
            allow(size, things)
            if disk.f_files and entries > disk.f_favail:  # 0 where a file system has no limit
                raise DagError(
                    f"{things} do not fit on the disk of {target.parent}, which has room for "
                    f"{disk.f_favail:,} more"
                )
        unpacked = _write(root, read, draft)
        draft.rename(target)
    except OSError as error:
        raise DagError(f"{target} cannot be written: {reason_of(error)}") from None
    except IpldError as error:
        raise DagError(f"{root} is not a file or directory: {error}") from None
    finally:
        _remove(draft)
    return unpacked


def _remove(path: Path) -> None:
    """Remove a draft, however deep its directories are; what it leaves would be in the way of all
    further attempts."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    directories = [path]
    for directory in directories:  # grows while it is walked
        directory.chmod(_OWNERS)  # it may be without permission by now
        for inner in directory.iterdir():
            if not inner.is_symlink() and inner.is_dir():  # a link may lead where nobody may look
                directories.append(inner)
            else:
                inner.unlink()
    for directory in reversed(directories):
        directory.rmdir()


def _write(root: CID, read: Read, target: Path) -> Unpacked:
    done = Unpacked()
    left = [(root, target)]
    attributes: list[tuple[Path, Attributes]] = []
    while left:
        cid, path = left.pop()
        data, _ = read_node(cid, read)
        if data.type in DIRECTORIES:
            path.mkdir()
            names: set[str] = set()
            for name, link in directory_entries(cid, read):
                left.append((link.cid, path / _checked(name, names)))
        elif data.type is NodeType.SYMLINK:
            try:
                path.symlink_to(os.fsdecode(data.data))
            except (OSError, ValueError):  # the file system has none
                done.not_kept.append(path_text(path.relative_to(target)))
                continue
            done.symlinks += 1
        else:
            with path.open("xb") as file:
                file.writelines(file_content(cid, read))
            done.files += 1
        attributes.append((path, data.attributes))
    for path, kept in reversed(attributes):  # of a directory, after everything in it was written
        if not _set_attributes(path, kept):
            done.not_kept.append(path_text(path.relative_to(target)))
    return done


def _set_attributes(path: Path, attributes: Attributes) -> bool:
    with suppress(OSError, OverflowError, NotImplementedError):
        if attributes.mode is not None and not path.is_symlink():
            path.chmod(attributes.mode & _PERMISSIONS)
        if attributes.mtime is not None:
            times = (attributes.mtime, attributes.mtime)
            os.utime(path, ns=times, follow_symlinks=False)
        return True
    return False


def _checked(name: str, names: set[str]) -> str:
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise DagError(f"an entry named {name!r} is refused: it could lead elsewhere")
    if name in names:
        raise DagError(f"a directory has two entries named {name!r}")
    names.add(name)
    return name
