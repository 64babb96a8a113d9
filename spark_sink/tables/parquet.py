"""A table of plain Parquet files, for readers that support nothing else.

Parquet has no transactions, so exactly-once depends on two rules. Each file is written under
another name and renamed, so that readers see either the old or the new file. And each row belongs
to a fixed file: an event by its feed position (10,000 per file), a stream by its partition. So a
row has one place, whatever is repeated after a crash, and a reader of all `*.parquet` files finds
each row once.

`_position.json` has the table's position and the names of its files; it is renamed into place after
them. Until then, some rows may be ahead of it, but none is missing or duplicated. Files are never
removed: a missing file was deleted by someone else, which is an error. A file that was replaced by
an older copy is not noticed.

A changed row rewrites its file, and there are no older versions: use Delta if readers support it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from recon_node.files import draft_of, move_into_place
from spark_sink.errors import another_log, cannot_open, damaged, other_columns, other_rules
from spark_sink.schema import PARTITION_COLUMN, RAW, TableSpec
from spark_sink.tables.raw_files import RawFile, RawFiles, ordered_slices
from spark_sink.tables.staging import Staged, Stager, read_rows

POSITION_FILE: Final = "_position.json"
_POSITIONS_PER_FILE: Final = 10_000
_ROW_GROUP: Final = 8192
# Bytes of rows in memory at a time, besides those of one file.
_APPEND_BYTES: Final = 1024 * 1024 * 1024


class ParquetStore:
    """The table `spec` in the directory `path`, of the log `epoch`; created if it does not exist.

    With `for_replacement` it may have other columns, and lack files. See `directory.Store` for the
    methods.

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
        """Return None: `append` writes the files."""
        return None

    def clear_staging(self) -> None:
        """Do nothing: there are no staged files."""

    def append(self, rows: Staged, position: int) -> Staged:
        """Append rows; return them."""
        for part in rows.portions(self.spec.schema, _APPEND_BYTES):
            self._put_in_files(part)
        self._write_position(position, self.under_way)
        return rows

    def put(self, rows: pa.Table, position: int) -> None:
        """Insert or update rows."""
        self._put_in_files(rows)
        self._write_position(position, self.under_way)

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Update rows ahead of the position."""
        self._write_position(self.position, towards)
        self._put_in_files(rows)

    def replace(self, other: "ParquetStore") -> None:
        """Replace all rows and the position by those of `other`, file by file.

        After a crash in between, raw_events has some files of both, with each row once, and a
        derived table starts again at position 0.
        """
        is_raw = self.spec.name == RAW
        names = {file.name for file in other.files()}
        kept = names if is_raw else set()
        self._names &= kept
        self._write_position(self.position if is_raw else 0, 0)
        for file in self.files():
            if file.name not in kept:
                file.unlink()
        for file in other.files():
            file.rename(self.path / file.name)
        self._names = names
        self._write_position(other.position, 0)

    def keep_history(self, hours: float) -> None:
        """Do nothing: there are no older versions."""

    def tidy(self, *, idle: bool) -> None:
        """Do nothing: there are no small files."""

    def files(self) -> list[Path]:
        """Return the table's files, by name."""
        return files_of(self.path)

    def files_upto(self, position: int) -> RawFiles:
        """List the files with rows up to a position."""
        firsts = ((file, int(file.stem.removeprefix("part-"))) for file in self.files())
        return RawFiles(
            tuple(
                RawFile(file, None, first, first + _POSITIONS_PER_FILE - 1, file.stat().st_size)
                for file, first in firsts
                if first <= position
            )
        )

    def streams_of_models(self, models: Iterable[bytes]) -> list[bytes]:
        """Return the streams of these models."""
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
        """Return the file of a feed position, or of a partition."""
        if not self.spec.is_history:
            return f"part-{value:02}.parquet"
        return f"part-{(value - 1) // _POSITIONS_PER_FILE * _POSITIONS_PER_FILE + 1:012}.parquet"

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

    def _write_position(self, position: int, under_way: int) -> None:
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
            self._write_position(0, 0)
            return
        if found.epoch != self.epoch:
            raise another_log(self.path, found.epoch, self.epoch)
        self.position, self.under_way = found.position, found.under_way
        if self.position == self.under_way == 0:  # leftovers of an interrupted run
            for file in self.files():
                file.unlink()
            return
        if found.rules != self.spec.rules and not self._for_replacement:
            raise other_rules(self.path)
        self._names = {*found.files, *(file.name for file in self.files())}
        if self.spec.name == RAW:  # an older version recorded no files
            self._names |= {self._file(p) for p in range(1, self.position + 1, _POSITIONS_PER_FILE)}

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
    """The state of a Parquet table.

    Attributes:
        epoch: the log that it was made from.
        position: the feed position that it includes.
        under_way: the goal of the latest `revise`.
        files: their names; empty if an older version wrote the table.
        rules: the version of the rules that computed its rows.
    """

    epoch: str
    position: int
    under_way: int
    files: frozenset[str]
    rules: int | None


def read_position(path: Path) -> Position | None:
    """Read the state of a Parquet table; None if there is none.

    Raises:
        TablesError: the file with the state is damaged.
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
    """Check that these files of a Parquet table exist.

    Raises:
        TablesError: one is missing.
    """
    if gone := sorted(set(names).difference(file.name for file in files_of(path))):
        raise damaged(path, f"{gone[0]}{' and others are' if gone[1:] else ' is'} missing")


def files_of(path: Path) -> list[Path]:
    """Return the files of a Parquet table, by name."""
    return sorted(path.glob("part-*.parquet"))


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file atomically and durably."""
    with draft_of(path) as draft:
        write(draft)
        move_into_place(draft, path)
