"""The output of `spark-sink status`: the tables, how far behind a node they are, and problems."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from deltalake import DeltaTable

from recon_node.base.errors import without_passwords
from recon_node.base.terminal import counted, echo, human_size
from spark_sink.errors import SinkError
from spark_sink.schema import RAW
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.catalog import (
    TableStatus,
    find_own_table,
    read_unprocessed,
    table_status,
    text_of,
)
from spark_sink.tables.delta_log import Reading, epoch_of, position_of, reading_of
from spark_sink.tables.location import Location
from spark_sink.upkeep.check import check_counts

_CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""How much the clocks of two machines may differ."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the tables.

    Attributes:
        tables: each of them.
        reading: the log that `raw_events` is filled from, and how far it was read; None if there
            is no such table.
        node: the feed with which they are compared.
        head: where it ends; None if it does not answer.
        lag: how many of its events each table lacks, if the node's log continues the table.
        troubles: problems, one line each.
        unprocessed: streams that are set aside, with the reasons.
    """

    tables: list[TableStatus]
    reading: Reading | None
    node: Feed | None
    head: Head | None
    lag: dict[str, int]
    troubles: list[str]
    unprocessed: list[dict[str, Any]]


def check_health(
    tables: Location,
    urls: Sequence[str],
    token: str | None,
    max_lag: int | None,
    max_age: float | None,
) -> Health:
    """Check the tables, and compare them with a node.

    Args:
        tables: where they are.
        urls: of nodes; the one whose log the tables follow counts.
        token: of the nodes.
        max_lag: how many events the tables may be behind that node.
        max_age: how many hours old their last commit may be.
    """
    statuses = table_status(tables)
    counts = check_counts(tables, statuses)
    raw = find_own_table(tables / RAW)
    reading = None if raw is None else reading_of(raw)
    node, head, troubles = _ask_one(urls, token, reading)
    troubles += counts
    lag: dict[str, int] = {}
    if node is not None and head is not None:
        lag, misfits = _lag(statuses, node, head, raw)
        troubles += misfits
    for name, behind in lag.items():
        if max_lag is not None and behind > max_lag:
            troubles.append(
                f"{name} is {counted(behind, 'event')} behind the node; the limit is {max_lag}"
            )
    if max_age is not None:
        troubles += _wrong_ages(statuses, timedelta(hours=max_age))
    return Health(statuses, reading, node, head, lag, troubles, read_unprocessed(tables))


def _lag(
    tables: Sequence[TableStatus], node: Feed, head: Head, raw: DeltaTable | None
) -> tuple[dict[str, int], list[str]]:
    """Return how many events of a node each table lacks, and which do not fit its log."""
    lag: dict[str, int] = {}
    misfits: dict[str, None] = {}
    for table in tables:
        read, behind = _read_by(table, raw)
        try:
            node.check(read.position, read.epoch, head)
        except SinkError as error:
            misfits[str(error)] = None
        else:
            lag[table.name] = head.head - read.position + behind
    return lag, [*misfits]


def _wrong_ages(tables: Sequence[TableStatus], longest: timedelta) -> Iterator[str]:
    now = datetime.now(UTC)
    for table in tables:
        age = now - table.committed_at
        if age > longest:
            yield (
                f"the last commit of {table.name} was {_span(age)} ago; the limit is "
                f"{_span(longest)}"
            )
        if age < -_CLOCKS_DIFFER:
            yield (
                f"the last commit of {table.name} is {_span(-age)} in the future: this machine's "
                "clock went back, or that of the writer is ahead"
            )


def show_health(health: Health, now: datetime) -> None:
    """Print the state of the tables as text."""
    width = len(str(max(table.position for table in health.tables)))
    rows = [
        (
            table.name,
            f"position {table.position:<{width}}",
            counted(table.rows, "row"),
            counted(table.files, "file"),
            human_size(table.size),
            f"{human_size(table.total - table.size)} kept",
            f"version {table.version}",
            f"{_span(now - table.committed_at)} old",
            *([f"{health.lag[table.name]} behind"] if table.name in health.lag else []),
        )
        for table in health.tables
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        echo("  ".join(cells))
    for stream in health.unprocessed:
        echo(f"set aside: {stream['stream_id']}: {stream['reason']}")
    live = sum(table.size for table in health.tables)
    total = sum(table.total for table in health.tables)
    echo(
        f"on disk: {human_size(total)}, of which {human_size(live)} are the latest versions, and "
        f"{human_size(total - live)} are kept for older ones (run --history, --history-size)"
    )
    logs = sorted({table.epoch for table in health.tables})
    echo(f"log: {', '.join(logs)}")
    if health.reading is not None and health.reading.epoch not in logs:
        read = health.reading
        echo(f"filled from log {read.epoch} now, which was read up to position {read.position}")
    if health.node is not None and health.head is not None:
        url = without_passwords(health.node.url)
        echo(f"the node at {url} is at position {health.head.head}")


def health_json(health: Health, now: datetime) -> dict[str, Any]:
    """Return the state of the tables as JSON: times in UTC, `age` in seconds, `lag` or null."""
    return {
        "tables": [
            {
                **asdict(table),
                "committed_at": text_of(table.committed_at),
                "age": round((now - table.committed_at).total_seconds(), 3),
                "lag": health.lag.get(table.name),
            }
            for table in health.tables
        ],
        "reading": health.reading
        and {"log": health.reading.epoch, "position": health.reading.position},
        "node": health.node
        and {
            "url": without_passwords(health.node.url),
            **(msgspec.structs.asdict(health.head) if health.head else {}),
        },
        "troubles": health.troubles,
        "unprocessed": health.unprocessed,
    }


def _ask_one(
    urls: Sequence[str], token: str | None, reading: Reading | None
) -> tuple[Feed | None, Head | None, list[str]]:
    """Return the node with the log that is read, or else one that answers, and what is wrong."""
    answers: list[tuple[Feed, Head]] = []
    troubles: list[str] = []
    for url in urls:
        node = Feed(url, patience=0, token=token)
        try:
            head = node.head()
        except SinkError as error:
            troubles.append(str(error))
            continue
        if reading is None or head.epoch == reading.epoch:
            return node, head, []
        answers.append((node, head))
    if answers:
        return *answers[0], troubles
    return (Feed(urls[0]) if urls else None), None, troubles


def _read_by(table: TableStatus, raw: DeltaTable | None) -> tuple[Reading, int]:
    """Return how far which log was read, and by how many events a table is behind that."""
    if raw is None or epoch_of(raw) != table.epoch:
        return Reading(table.epoch, table.position), 0
    return reading_of(raw), position_of(raw) - table.position


def _span(age: timedelta) -> str:
    """Format a time span in its largest unit: 4 s, 5 min, 3 h, 2 d."""
    seconds = max(0, round(age.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
