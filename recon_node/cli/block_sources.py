"""The blocks of files and directories from which history is imported."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

from recon_node.ceramic import MAX_CAR_SIZE
from recon_node.cli.output import CommandError
from recon_node.cli.sources import read_items
from recon_node.ipld import IpldError, car, multibase
from recon_node.ipld.car import BEGINNING_SIZE, looks_like_car, read_layout, sections, without_v2

LINES: Final = frozenset({".jsonl", ".ndjson", ".json", ".txt"})
"""Names of files with an event in each line."""
_SQLITE: Final = b"SQLite format 3\0"
_BLOCKS: Final = "ceramic_one_block"
"""The table in which a ceramic-one node keeps its blocks."""


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the blocks of a file, or of all files of a directory.

    A file is a CAR, or has a CAR in each line, or is the database of a ceramic-one node
    (`db.sqlite3`). In a directory, files that are none of these, and not called `*.jsonl`, are
    blocks themselves, as kubo and js-ceramic keep them (`blocks/6Z/CIQ....data`). Other databases
    there are skipped.

    Raises:
        CommandError: a file cannot be read, or is damaged.
    """
    try:
        if path.is_dir():
            for each in sorted(path.rglob("*")):
                if each.is_file():
                    yield from _of_file(each, is_block=each.suffix not in LINES)
        else:
            yield from _of_file(path, is_block=False)
    except OSError as error:
        where = error.filename or path
        raise CommandError(f"{where} cannot be read: {error.strerror or error}") from None


def _of_file(path: Path, *, is_block: bool) -> Iterator[bytes]:
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_SIZE)
        file.seek(0)
        if looks_like_car(beginning) or path.suffix.lower() == ".car":
            yield from _of_car(file, path)
        elif beginning.startswith(_SQLITE):
            yield from _of_ceramic_one(path, may_skip=is_block)
        elif is_block:
            block = file.read(MAX_CAR_SIZE + 1)
            if len(block) <= MAX_CAR_SIZE:
                yield block
        else:
            for item in read_items(file, str(path)):
                if item.problem is None:
                    data = without_v2(multibase.decode(item.data, multibase.MAX_NUMBER))
                    yield from car.decode(data).blocks.values()


def _of_ceramic_one(path: Path, *, may_skip: bool) -> Iterator[bytes]:
    """The blocks of a ceramic-one node, which may be running."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if (_BLOCKS,) in tables.fetchall():
                sql = f"SELECT bytes FROM {_BLOCKS} WHERE length(bytes) <= {MAX_CAR_SIZE}"
                yield from (block for (block,) in database.execute(sql))
            elif not may_skip:
                raise CommandError(f"{path} is a database, but not that of a ceramic-one node")
    except sqlite3.Error as error:
        raise CommandError(f"{path} cannot be read: {error}") from None


def _of_car(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        for section in sections(file, read_layout(file)):
            if section.size <= MAX_CAR_SIZE:
                file.seek(section.offset)
                yield file.read(section.size)
    except IpldError as error:
        raise CommandError(f"{path} is damaged: {error}") from None
