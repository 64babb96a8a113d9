"""A table as plain Parquet files: for readers that know nothing else.

Parquet has no transactions, so exactly once rests on two things. Each file is written beside its
place and renamed into it, so that a reader sees it before or after, whole. And which rows belong
into which file is fixed: of an event the file of its feed position (10,000 a file), of a stream
that of its partition. So a row is in one place, whatever is done again after a crash, and a reader
of all `*.parquet` files finds each row once.

`_position.json` says how far the table is, and which files it had then; it is renamed into place
after the files. Until it is, some rows may be ahead of it, but none is missing or there twice.
Files come, and none goes: one that was named and is gone was deleted by someone else, which is an
error. That a file is an older copy of itself is not noticed.

Files are written anew when a row of theirs changes, and there are no older versions: Delta is the
better choice where it can be read.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_sink.errors import another_log, cannot_open, damaged, other_columns, other_rules
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables.large import ordered_slices
from spark_sink.tables.raw_files import RawFile, RawFiles
from spark_sink.tables.staging import Staged, Stager, read_rows

POSITION_FILE: Final = "_position.json"
_ROWS_A_FILE: Final = 10_000
_ROW_GROUP: Final = 8192
# Bytes of rows that are in memory at once, beside those of one file.
_AT_ONCE: Final = 1024 * 1024 * 1024


class ParquetStore:
    """The table `spec` in the directory `path`, of the log `epoch`; made when it is not there.

    With `for_replacement` its columns may be other ones, and files of it gone.

    Raises:
        FeedChangedError: it was made from another log.
        TablesError: it is damaged, or was written by another version.
    """

    def __init__(
        self, spec: TableSpec, path: Path, epoch: str, *, for_replacement: bool = False
    ) -> None:
        self.spec = spec
        self.path = path
        self.epoch = epoch
        self.position = 0
        self.under_way = 0
        self._names: set[str] = set()  # of its files
        self._for_replacement = for_replacement
        self._open()
        if not for_replacement:
            self._check()

    def stager(self) -> Stager | None:
        """None: rows come into their files here, not where they are made."""
        return None

    def clear_staging(self) -> None:
        """There are no such files."""

    def append(self, rows: Staged, position: int) -> Staged:
        """Add rows, after which the table is at `position`; returns them."""
        for part in rows.portions(self.spec.schema, _AT_ONCE):
            self._put_in_files(part)
        self._tell(position, self.under_way)
        return rows

    def put(self, rows: pa.Table, position: int) -> None:
        """Put rows in the place of those with the same key, or beside the others; the table then
        is at `position`."""
        self._put_in_files(rows)
        self._tell(position, self.under_way)

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Put rows in the place of those with the same key, as they are at the position `towards`,
        which is not reached by this."""
        self._tell(self.position, towards)
        self._put_in_files(rows)

    def replace(self, other: "ParquetStore") -> None:
        """Put the rows and the position of `other` in the place of all that is here, file by file:
        a crash leaves some of both in raw_events, each row once, and a derived table to do again.
        """
        is_raw = self.spec.name == RAW
        names = {file.name for file in other.files()}
        kept = names if is_raw else set()
        self._names &= kept
        self._tell(self.position if is_raw else 0, 0)
        for file in self.files():
            if file.name not in kept:
                file.unlink()
        for file in other.files():
            file.rename(self.path / file.name)
        self._names = names
        self._tell(other.position, 0)

    def keep_history(self, hours: float) -> None:
        """There are no older versions here."""

    def tidy(self, *, idle: bool) -> None:
        """There is nothing to tidy."""

    def files(self) -> list[Path]:
        """The table's files, in the order of their names."""
        return files_of(self.path)

    def files_upto(self, position: int) -> RawFiles:
        """Of raw_events: the files with rows up to a position."""
        firsts = ((file, int(file.stem.removeprefix("part-"))) for file in self.files())
        return RawFiles(
            tuple(
                RawFile(file, None, first, first + _ROWS_A_FILE - 1, file.stat().st_size)
                for file, first in firsts
                if first <= position
            )
        )

    def streams_of_models(self, models: Iterable[bytes]) -> list[bytes]:
        """Of a derived table: the streams whose model's StreamID, as bytes, is one of these."""
        ids = set(models)
        found = self._select(["stream_cid", "dimensions"])
        pairs = zip(found["stream_cid"].to_pylist(), found["dimensions"].to_pylist(), strict=True)
        return sorted({cid for cid, dimensions in pairs if dict(dimensions)["model"] in ids})

    def _select(
        self, columns: list[str], where: Any = None, files: list[Path] | None = None
    ) -> pa.Table:
        paths = [str(file) for file in (self.files() if files is None else files)]
        dataset = ds.dataset(paths, schema=self.spec.schema, format="parquet")
        return dataset.to_table(columns=columns, filter=where)

    def _by_file(self, rows: pa.Table) -> dict[str, list[int]]:
        column = self.spec.key if self.spec.is_history else PARTITION_COLUMN
        found: dict[str, list[int]] = defaultdict(list)
        for index, value in enumerate(rows[column].to_pylist()):
            found[self._file(value)].append(index)
        return found

    def _file(self, value: int) -> str:
        """The file of a feed position, or of a partition."""
        if not self.spec.is_history:
            return f"part-{value:02}.parquet"
        return f"part-{(value - 1) // _ROWS_A_FILE * _ROWS_A_FILE + 1:012}.parquet"

    def _put_in_files(self, rows: pa.Table) -> None:
        for file, indices in self._by_file(rows).items():
            self._put_in_file(file, rows.take(indices))

    def _put_in_file(self, name: str, rows: pa.Table) -> None:
        path = self.path / name
        if name in self._names or path.exists():
            old = read_rows(path)
            others = pc.invert(pc.is_in(old[self.spec.key], rows[self.spec.key].combine_chunks()))
            rows = pa.concat_tables([old.filter(others).cast(self.spec.schema), rows])
        _write(path, lambda part: self._write_rows(part, rows))
        self._names.add(name)

    def _write_rows(self, path: Path, rows: pa.Table) -> None:
        schema = self.spec.schema
        with pq.ParquetWriter(path, schema) as writer:
            for part in ordered_slices(rows, (self.spec.key,), _ROW_GROUP):
                writer.write_table(part.cast(schema), row_group_size=_ROW_GROUP)

    def _tell(self, position: int, under_way: int) -> None:
        facts = {
            "epoch": self.epoch,
            "position": position,
            "under_way": under_way,
            "rules": self.spec.rules,
            "files": sorted(self._names),
        }
        _write(self.path / POSITION_FILE, lambda part: part.write_text(json.dumps(facts)))
        self.position = position
        self.under_way = under_way

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        found = read_position(self.path)
        if found is None:
            self._tell(0, 0)
            return
        if found.epoch != self.epoch:
            raise another_log(self.path, found.epoch, self.epoch)
        self.position, self.under_way = found.position, found.under_way
        if self.position == self.under_way == 0:  # what is there was left by something broken off
            for file in self.files():
                file.unlink()
            return
        if found.rules != self.spec.rules and not self._for_replacement:
            raise other_rules(self.path)
        self._names = {*found.files, *(file.name for file in self.files())}
        if self.spec.name == RAW:  # an older version named no files
            self._names |= {self._file(p) for p in range(1, self.position + 1, _ROWS_A_FILE)}

    def _check(self) -> None:
        check_files(self.path, self._names)
        for file in self.files():
            try:
                is_ours = pq.read_schema(file) == self.spec.schema
            except (OSError, pa.ArrowInvalid) as error:
                raise damaged(self.path, f"{file.name} is not a Parquet file ({error})") from error
            if not is_ours:
                raise other_columns(self.path)


@dataclass(frozen=True, slots=True)
class Position:
    """The log and the feed position that a table is at; the one that rows were last revised
    towards; the names of the files that it had then, none where an older version wrote it; and the
    version of the rules that its rows are computed by."""

    epoch: str
    position: int
    under_way: int
    files: frozenset[str]
    rules: int | None


def read_position(path: Path) -> Position | None:
    """What a Parquet table says of itself; None when it is no table.

    Raises:
        TablesError: the file that says so is damaged.
    """
    try:
        facts = json.loads((path / POSITION_FILE).read_text())
        names = frozenset(map(str, facts.get("files", ())))
        rules = None if facts.get("rules") is None else int(facts["rules"])
        return Position(
            str(facts["epoch"]), int(facts["position"]), int(facts["under_way"]), names, rules
        )
    except FileNotFoundError:
        return None
    except (AttributeError, ValueError, KeyError, TypeError):
        raise cannot_open(path, f"{POSITION_FILE} is damaged") from None


def check_files(path: Path, names: Iterable[str]) -> None:
    """Are these files of a Parquet table there?

    Raises:
        TablesError: they are not.
    """
    if gone := sorted(set(names).difference(file.name for file in files_of(path))):
        raise damaged(path, f"{gone[0]}{' and others are' if gone[1:] else ' is'} gone")


def files_of(path: Path) -> list[Path]:
    """The files of a Parquet table, in the order of their names."""
    return sorted(path.glob("part-*.parquet"))


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file that is there in full or not at all, also when the machine fails."""
    part = path.with_name(f".{path.name}.new")
    write(part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
