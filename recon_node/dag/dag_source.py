"""Where a DAG comes from: a CAR file, a directory, or any other file."""

import os
import stat
from pathlib import Path

from recon_node.base.errors import reason_of
from recon_node.dag.car_source import CarFile
from recon_node.dag.errors import DagError
from recon_node.dag.file_tree import FileTree, Preserve
from recon_node.dag.unixfs import FileLayout
from recon_node.ipld import CID
from recon_node.ipld.car import BEGINNING_SIZE, looks_like_car

DagSource = CarFile | FileTree
"""A DAG that can be read block by block."""


def open_source(
    path: Path,
    root: CID | None = None,
    max_block: int | None = None,
    *,
    all_blocks: bool = False,
    preserve: Preserve = Preserve(),  # noqa: B008 - immutable
) -> DagSource:
    """Open the DAG in a CAR file; for a directory or any other file, its UnixFS.

    A file is a CAR if it begins like one, or has a name that ends in ".car". A symlink is
    followed.

    Args:
        path: what to open.
        root: of the DAG, for a CAR file with several or none.
        max_block: bytes that a block of a file may have; by default, files are cut as usual.
        all_blocks: of a CAR file, whether to push the blocks that are not below the root, too.
        preserve: which attributes of files and directories are kept.

    Raises:
        DagError: see `CarFile` and `FileTree`; or options of CAR files with another file.
    """
    try:
        target = Path(os.path.realpath(path, strict=True))
        is_file = stat.S_ISREG(target.stat().st_mode)
        if is_file:
            with target.open("rb") as file:
                begins_like_car = looks_like_car(file.read(BEGINNING_SIZE))
            if path.suffix.lower() == ".car" or begins_like_car:
                return CarFile(target, root, all_blocks=all_blocks)
    except OSError as error:
        raise DagError(f"{path} cannot be read: {reason_of(error)}") from None
    if root is not None or all_blocks:
        raise DagError(f"{path} is not a CAR: only of a CAR can root and blocks be chosen")
    layout = FileLayout()
    if max_block is not None:
        layout = FileLayout.within(max_block, nodes=bool(preserve))
    return FileTree(target, layout, preserve)
