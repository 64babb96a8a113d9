"""Files that a command writes: complete or not there at all, and never over another one unasked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from recon_node.cli.errors import CommandError


@contextmanager
def complete_file(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block ends well; `-` is standard output.

    Until then it is `.NAME.part` beside it, which is removed if the block fails: what was at
    `path` before stays as it was.

    Args:
        path: of the file.
        force: replace a file that exists.

    Raises:
        CommandError: the file exists, and `force` is not set; or it cannot be written.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    refuse_existing(path, force=force)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(path, force=force)  # it took a while: another command may have made one
        unfinished.replace(path)
    except OSError as error:
        if error.filename not in (str(unfinished), None):
            raise
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise `CommandError` if there is a file at `path`, unless `force` is set."""
    if not force and os.path.lexists(path):
        raise CommandError(f"{path} exists: choose another name, or replace it with --force")
