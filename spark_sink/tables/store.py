"""What a format must do for a table."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from spark_sink.schema import TableSpec
from spark_sink.tables.raw_files import RawFiles
from spark_sink.tables.staging import Staged, Stager


class Store(Protocol):
    """A table on disk; its rows and its position change together."""

    spec: TableSpec
    path: Path
    epoch: str

    @property
    def position(self) -> int:
        """The feed position that the table includes."""

    @property
    def under_way(self) -> int:
        """The position of the latest `revise`: some rows may be as they are there."""

    def stager(self) -> Stager | None:
        """What writes the files that `append` takes; in a worker, for it can be sent there. None
        where rows come into files by `append` itself."""

    def clear_staging(self) -> None:
        """Delete the files that were written for `append`, and did not come to it."""

    def append(self, rows: Staged, position: int) -> Staged:
        """Add rows that are not in the table, which then is at `position`; returns them where they
        are now."""

    def put(self, rows: pa.Table, position: int) -> None:
        """Put rows in the place of those with the same key, or beside the others; the table then
        is at `position`."""

    def revise(self, rows: pa.Table, towards: int) -> None:
        """Put rows in the place of those with the same key, as they are at the position `towards`,
        which is not reached by this."""

    def keep_history(self, hours: float) -> None:
        """For how long what is replaced can be read in older versions."""

    def tidy(self, *, idle: bool) -> None:
        """Make few files of many, where it is time to."""

    def files_upto(self, position: int) -> RawFiles:
        """Of raw_events: the files with rows up to a position."""

    def streams_of_models(self, models: Iterable[bytes]) -> list[bytes]:
        """Of a derived table: the streams whose model's StreamID, as bytes, is one of these."""
