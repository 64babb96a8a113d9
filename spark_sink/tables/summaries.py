"""The table of summaries of long streams, which save reading these streams back.

Theory of operation. A row says all that later events of a stream can depend on, up to a position of
the feed (`recon_node.streams.StreamSummary`). Rows are only appended; the newest one of a stream
that is not ahead of a table is the one to use. Nothing depends on there being one: without it, the
stream is read from `raw_events`. So the table is written after all others, and whenever it is
damaged, or was made from another `raw_events` or by other rules, it is deleted and starts again
empty.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_sink.errors import SinkError
from spark_sink.schema import SUMMARIES, partition_of
from spark_sink.tables.delta import DeltaStore
from spark_sink.tables.location import FAULTS, Location, delete_below, file_system, is_delta
from spark_sink.tables.raw_files import RawFile
from spark_sink.tables.staging import Staged

_NO_LIMIT: Final = 2**63 - 1


class UnreadableError(Exception):
    """The table is damaged."""


@dataclass(frozen=True, slots=True)
class SummaryFiles:
    """The files of one version of the table. Can be sent to a worker."""

    files: tuple[RawFile, ...] = ()
    location: Location = Path()

    def among(self, streams: Iterable[bytes]) -> list[bytes]:
        """Return those of the streams that have a summary.

        Raises:
            UnreadableError: a file is missing or damaged.
        """
        return sorted({cid for (cid,) in self._rows(streams, ["stream_cid"], _NO_LIMIT)})

    def read(self, streams: Iterable[bytes], upto: int) -> dict[bytes, bytes]:
        """Return the newest summary of each stream that is not after a position.

        Raises:
            UnreadableError: as `among`.
        """
        rows = self._rows(streams, ["position", "stream_cid", "summary"], upto)
        return {cid: summary for _, cid, summary in sorted(rows)}

    def _rows(
        self, streams: Iterable[bytes], columns: list[str], upto: int
    ) -> Iterator[tuple[Any, ...]]:
        wanted: dict[int, list[bytes]] = defaultdict(list)
        files: dict[int, list[str]] = defaultdict(list)
        for file in self.files:
            files[file.partition].append(file.path)
        for cid in streams if files else ():
            wanted[partition_of(cid)].append(cid)
        for partition in wanted.keys() & files.keys():
            which = pc.field("stream_cid").isin(pa.array(wanted[partition], pa.binary()))
            try:
                dataset = ds.FileSystemDataset.from_paths(
                    files[partition],
                    schema=SUMMARIES.schema,
                    format=ds.ParquetFileFormat(),
                    filesystem=file_system(self.location),
                )
                rows = dataset.to_table(
                    columns=columns, filter=which & (pc.field("position") <= upto)
                )
            except FAULTS as error:
                raise UnreadableError(str(error)) from error
            yield from zip(*(column.to_pylist() for column in rows.columns), strict=True)


class Summaries:
    """The table at `path`, made from a certain `raw_events`; created when the first row is."""

    def __init__(self, path: Location, raw: DeltaStore) -> None:
        self._path = path
        # So a table that was made from another one is not used.
        self._source = f"{raw.epoch}/{raw.identity}"
        self._store: DeltaStore | None = None
        try:
            self._store = self._open() if is_delta(path) else None
        except (SinkError, *FAULTS):
            self.clear()

    def files(self) -> SummaryFiles:
        """List the files of the current version."""
        if self._store is None:
            return SummaryFiles()
        return SummaryFiles(self._store.files_upto(_NO_LIMIT).files, self._path)

    def append(self, rows: Staged, position: int) -> None:
        """Append summaries that were made in a step to a position."""
        if rows.num_rows:
            if self._store is None:
                self._store = self._open()
                self._store.keep_history(0.0)
            self._store.append(rows, position)

    def tidy(self, *, idle: bool) -> None:
        """Merge small files if it is time to; drop rows that newer ones replace."""
        if self._store is not None:
            try:
                self._store.tidy(idle=idle)
            except (SinkError, *FAULTS):
                self.clear()

    def clear(self) -> None:
        """Delete the table."""
        self._store = None
        delete_below(self._path.parent, self._path.name)

    def _open(self) -> DeltaStore:
        return DeltaStore(SUMMARIES, self._path, self._source)
