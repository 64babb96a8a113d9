"""What has changed in a table since a token, for programs that keep a copy or react to changes.

A token is a version of the table and its position. Rows with new events have later positions: the
latest version shows them, whatever has become of those in between. Rows that changed without an
event, because their model got one, are in the change data feed, which reaches back only as far as
its files are kept. If it does not reach back to the token, or the table was rebuilt, all rows come
again, after a change of the kind `reset`: a program that writes rows by their keys has the right
ones in the end in any case. Only `spark-sink forget` deletes rows, and then all others come again,
too. `TablesError` says what is not a token, or which table cannot be read.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from copy import copy
from itertools import chain
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_sink.errors import TablesError, cannot_open, must_rebuild
from spark_sink.schema import TableSpec
from spark_sink.tables.catalog import path_of, spec_of
from spark_sink.tables.delta_log import (
    CHANGE_TYPE,
    data_files,
    epoch_of,
    identity_of,
    position_of,
    read_commit,
)
from spark_sink.tables.location import Location, find_delta_table
from spark_sink.tables.retention import held
from spark_sink.tables.staging import DataFile, read_parts

APPENDED: Final = ("raw_events", "conclusion_events")
"""Tables whose rows never change."""
_TOGETHER: Final = 32 * 1024 * 1024
"""Bytes of files whose events are sorted at once."""
_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes of rows that are in memory at once, or a larger row: strangers write content of megabytes,
of which a file has a hundred times as much as its size."""
_MAX_SHOWN: Final = 100
"""Characters of a text that an error quotes."""
_NEW: Final = ("insert", "update_postimage")

Kind = Literal["reset", "row"]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a table has been read.

    Attributes:
        table: the id that distinguishes it from any other, also at the same path.
        version: of the table.
        position: of the feed that it included.
    """

    table: str
    version: _Natural
    position: _Natural

    def __str__(self) -> str:
        return urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token."""
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return msgspec.json.decode(data, type=cls)
        except (ValueError, msgspec.DecodeError):
            beginning = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
            raise TablesError(f"{beginning!r} is not a token of `spark-sink changes`") from None


class GoneError(Exception):
    """What a commit has changed is not kept any more."""


def changed_rows(
    table: DeltaTable, version: int, schema: pa.Schema
) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
    """Yield the rows that a commit concerns, with what it did to them; may raise `GoneError`."""
    try:
        for batch in table.load_cdf(starting_version=version, ending_version=version):
            rows = pa.table(batch)
            yield rows.select(schema.names).cast(schema), rows[CHANGE_TYPE].cast(pa.string())
    except Exception as error:  # the reader of the answer raises no class of its own
        raise GoneError(str(error)) from error


class Changes:
    """The changes of a table or view from a token, that of the last call, to now.

    Attributes:
        token: for the next call.
        table: in its latest version.
        spec: what the table is like.
        epoch: of the log that it was made from.
    """

    def __init__(self, directory: Location, name: str, since: Token | None) -> None:
        self._path = path_of(directory, name)
        for is_last in (False, True):
            table = find_delta_table(self._path)
            if table is None:
                raise TablesError(f"there is no table {name} in {directory}")
            self.table: DeltaTable = table
            try:
                self.token = Token(identity_of(table), table.version(), position_of(table))
                break
            except DeltaError as error:  # `forget` deletes at once what it was opened by
                if is_last:
                    raise cannot_open(self._path, error) from error
        self.spec: TableSpec = spec_of(name, self.table)
        self.epoch = epoch_of(self.table)
        self._begin(since)

    def after(self, since: Token | None) -> Changes:
        """Return the changes from another token up to the same version."""
        changes = copy(self)
        changes._begin(since)
        return changes

    def _begin(self, since: Token | None) -> None:
        is_same = since is not None and since.table == self.token.table
        is_older = is_same and since is not None and since.version <= self.token.version
        self._since = since if is_older else None
        self._is_first = since is None

    def rows(self) -> Iterator[tuple[Kind, pa.Table]]:
        """Yield the rows that are new or have changed; of a reset, an empty table."""
        with held(self._path, self.token.version):
            if self._since is not None:
                try:
                    yield from self._after(self._since)
                    return
                except GoneError:
                    pass
            if not self._is_first:
                yield "reset", self.spec.schema.empty_table()
            yield from self._between(0)

    def all_rows(self) -> Iterator[pa.Table]:
        """Yield all rows of the table."""
        with held(self._path, self.token.version):
            for _, rows in self._between(0):
                yield rows

    def _after(self, since: Token) -> Iterator[tuple[Kind, pa.Table]]:
        """Yield older rows that were changed, and at last those with new positions.

        Most changes of a row give it a new position, and then its latest state is enough.
        """
        if self.spec.name not in APPENDED:
            for version in range(since.version + 1, self.token.version + 1):
                if not self._updates(version):
                    continue
                for rows, kinds in changed_rows(self.table, version, self.spec.schema):
                    changed = rows.filter(pc.is_in(kinds, pa.array(_NEW)))
                    changed = changed.filter(pc.field(self.spec.order) <= since.position)
                    if changed.num_rows:
                        yield "row", changed
        yield from self._between(since.position)

    def _updates(self, version: int) -> bool:
        """Return whether a commit has changed rows that were there."""
        try:
            entries = read_commit(self._path, version)
        except FileNotFoundError as error:
            raise GoneError from error
        if any("cdc" in entry for entry in entries):
            return True
        if any(entry.get("remove", {}).get("dataChange") for entry in entries):
            raise GoneError  # all rows were replaced
        return False

    def _between(self, after: int) -> Iterator[tuple[Kind, pa.Table]]:
        """Yield the rows of the latest version with positions after this one."""
        files = data_files(self.table, self.spec, self._path)
        later = [file for file in files if file.last is None or file.last > after]
        for group in _in_order(later) if self.spec.rows_are_events else ([file] for file in later):
            for rows in self._ordered(group, pc.field(self.spec.order) > after):
                yield "row", rows

    def _ordered(self, files: list[DataFile], wanted: pc.Expression) -> Iterator[pa.Table]:
        """Yield the wanted rows of some files, those of a stream in their order.

        If they do not fit in memory, those of one half, by stream and position, come first.
        """
        order, schema = self.spec.order, self.spec.schema
        parts = [schema.empty_table()]
        size = 0
        for part in _read(files, schema, wanted):
            parts.append(part)
            size += part.nbytes
            if size > _AT_ONCE and sum(map(len, parts)) > 1:
                break
        else:
            if size:
                yield pa.concat_tables(parts).sort_by(order)
            return
        del parts, part
        keys = pa.schema([schema.field("stream_cid"), schema.field(order)])
        second = self._second_half(pa.concat_tables(_read(files, keys, wanted)))
        yield from self._ordered(files, wanted & ~second)
        yield from self._ordered(files, wanted & second)

    def _second_half(self, keys: pa.Table) -> pc.Expression:
        """Return what is true of the second half of rows, by their stream and position."""
        by_stream, by_position = keys.column_names
        ordered = keys.sort_by([(by_stream, "ascending"), (by_position, "ascending")])
        middle = ordered.slice(keys.num_rows // 2, 1)
        stream, position = (column[0] for column in middle.columns)
        if middle.equals(ordered.slice(0, 1)):  # it would be divided for ever
            raise must_rebuild(self._path, f"has two rows of a stream at position {position}")
        is_later = (pc.field(by_stream) == stream) & (pc.field(by_position) >= position)
        return (pc.field(by_stream) > stream) | is_later


def _read(files: list[DataFile], schema: pa.Schema, wanted: pc.Expression) -> Iterator[pa.Table]:
    return chain.from_iterable(
        read_parts(file.location, file.path, file.partition, schema, wanted) for file in files
    )


def _in_order(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Group files so that the events of a stream come in their order, if each group's do.

    A stream is in one partition, so files of others, and those with later events only, can wait.
    """
    if sum(file.size for file in files) <= _TOGETHER:
        yield files
        return
    group: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.partition, file.first or 0)):
        is_later = all(other.last is not None and other.last < (file.first or 0) for other in group)
        if group and (file.partition != group[0].partition or is_later):
            yield group
            group = []
        group.append(file)
    yield group
