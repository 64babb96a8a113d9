"""Older versions of a Delta table, by number or by time.

A version is readable while its log entries and all of its files exist. `vacuum`, and `spark-sink
run` itself, delete files that only versions older than the history need. So if a version is
readable, all later ones are.
"""

from bisect import bisect_right
from datetime import UTC, datetime
from pathlib import PurePath

from deltalake import DeltaTable

from spark_sink.errors import TablesError, cannot_open
from spark_sink.tables.delta_files import LOG, names_of, read_commit
from spark_sink.tables.location import FAULTS, Location, file_system, files_below, open_delta_table

#: A version: its number, a time, or None for the latest.
At = int | datetime | None


def open_at(path: Location, at: At) -> DeltaTable:
    """Open the Delta table at `path` as of a version.

    Raises:
        TablesError: the version is not readable; the message says which are.
    """
    try:
        latest = open_delta_table(path)
    except FAULTS as error:
        raise cannot_open(path, error) from error
    if at is None:
        return latest
    table = _load(path, at)
    if table is None or not _is_whole(path, table):
        raise TablesError(_not_there(path, at, latest.version()))
    return table


def committed_at(path: Location, version: int) -> datetime:
    """Return when a version of the Delta table at `path` was committed."""
    kind = "json"
    try:
        for entry in read_commit(path, version):
            if info := entry.get("commitInfo"):
                return datetime.fromtimestamp(info["timestamp"] / 1000, UTC)
    except FileNotFoundError:  # older than the log
        kind = "checkpoint.parquet"
    written: datetime = file_system(path).get_file_info(f"{LOG}/{version:020}.{kind}").mtime
    return written


def text_of(moment: datetime) -> str:
    """Format a time for display, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _load(path: Location, at: int | datetime) -> DeltaTable | None:
    """Open a version of the table; None if it does not exist."""
    version = at if isinstance(at, int) else _version_of(path, at)
    try:
        return None if version is None else open_delta_table(path, version)
    except FAULTS:
        return None


def _version_of(path: Location, moment: datetime) -> int | None:
    """Return the latest version at a time; None before the first.

    delta-rs uses the files' modification times, which a copy of the table loses, and returns the
    first version for earlier times. After a clock has gone back, there are times that were twice,
    and either version is right; but no version is later than the last one.
    """
    names = (PurePath(file.path) for file in files_below(path, LOG))
    versions = sorted(int(n.stem) for n in names if n.suffix == ".json" and n.stem.isdecimal())
    if versions and committed_at(path, versions[-1]) <= moment:
        return versions[-1]
    later = bisect_right(versions, moment, key=lambda version: committed_at(path, version))
    return versions[later - 1] if later else None


def _is_whole(path: Location, table: DeltaTable) -> bool:
    there = {file.path for file in files_below(path)}
    return there.issuperset(names_of(table))


def _not_there(path: Location, at: int | datetime, latest: int) -> str:
    oldest, low = latest, 0
    while low < oldest:
        middle = (low + oldest) // 2
        table = _load(path, middle)
        if table is not None and _is_whole(path, table):
            oldest = middle
        else:
            low = middle + 1
    what = f"has no version {at}" if isinstance(at, int) else f"has no version of {text_of(at)}"
    first = text_of(committed_at(path, oldest))
    kept = "; spark-sink run --history sets how long they are kept" if oldest else ""
    return (
        f"{path.name} {what} that can be read: its versions are {oldest} (of {first}) to "
        f"{latest} (of {text_of(committed_at(path, latest))}){kept}"
    )
