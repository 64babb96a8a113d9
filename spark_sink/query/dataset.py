"""A table's files as a dataset of Arrow's: for what DuckDB alone cannot read, above all stores.

Theory of operation. A request of a store takes tens of milliseconds, and a table of streams has
hundreds of small files. Arrow asks for a file's size, its end and its columns, of four files at a
time. But Delta's log has the sizes. So small files are read at once, each in a single request,
ahead of Arrow. And the log has the first and the last StreamID of a file, by which files that a
query does not need are skipped.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from spark_sink.schema import PARTITION_COLUMN
from spark_sink.tables.delta_log import PARTITION, listed
from spark_sink.tables.location import (
    Location,
    StoreUrl,
    file_system,
    has_literal_path,
    storage_options,
)

_SMALL: Final = 128 * 1024
"""Bytes of a file up to which it is read whole."""
_AHEAD: Final = 32
"""How many small files are read ahead."""
_ID: Final = "stream_id"


def files_in_sql(path: Location, files: Iterable[str]) -> str | None:
    """Return what has the rows of files of a table in DuckDB's SQL; None if only Arrow has them."""
    if not isinstance(path, Path) or not has_literal_path(path):
        return None
    whole = (str(path.resolve() / file).replace("'", "''") for file in files)
    names = ", ".join(f"'{file}'" for file in whole)
    return (
        f"read_parquet([{names}], union_by_name=true, "
        f"hive_partitioning=true, hive_types={{'{PARTITION_COLUMN}': INTEGER}})"
    )


def dataset_of(path: Location, table: DeltaTable, files: Iterable[str]) -> ds.Dataset:
    """Return files of a table that DuckDB alone cannot read, as Arrow reads them.

    That is a table in an object store, or in a directory whose name DuckDB takes for a pattern.
    """
    schema = pa.schema(table.schema().to_arrow())
    spans = (f"min.{_ID}", f"max.{_ID}") if _ID in schema.names else ()
    facts = {name: rest for name, *rest in listed(table, "size_bytes", PARTITION, *spans)}
    names = list(files)
    sizes = {name: facts[name][0] for name in names}
    return ds.FileSystemDataset.from_paths(
        names,
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=file_system(path)
        if isinstance(path, Path)
        else PyFileSystem(_ReadAhead(path, sizes)),
        partitions=[_known(*facts[name][1:]) for name in names],
    )


def _known(partition: int, low: str | None = None, high: str | None = None) -> ds.Expression:
    """Return what holds for each row of a file."""
    known = ds.field(PARTITION_COLUMN) == partition
    if low is None or high is None:
        return known
    return known & (ds.field(_ID) >= low) & (ds.field(_ID) <= high)


class _ReadAhead(DeltaStorageHandler):
    """Files of a store with known sizes, in the order in which they are likely to be read."""

    def __init__(self, path: StoreUrl, sizes: dict[str, int]) -> None:
        super().__init__(path.url, storage_options(path), sizes)
        self._names = [name for name, size in sizes.items() if size <= _SMALL]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._pool = ThreadPoolExecutor(_AHEAD, "ahead")
        self._read: dict[str, Future[bytes]] = {}
        self._lock = Lock()

    def open_input_file(self, path: str) -> Any:
        """Open a file for random access."""
        place = self._places.get(path)
        if place is None:
            return super().open_input_file(path)
        with self._lock:
            for name in self._names[place : place + _AHEAD]:
                if name not in self._read:
                    self._read[name] = self._pool.submit(self._whole, name)
            read = self._read.pop(path)
        return pa.BufferReader(read.result())

    def _whole(self, name: str) -> bytes:
        with super().open_input_file(name) as file:
            return bytes(file.read())
