"""The commands that look at the tables and look after them. None of them needs Java."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from spark_sink.cli_options import Hours, json_option, tables_option, token_option
from spark_sink.schema import TABLES
from spark_sink.show import show

_names = click.argument("names", nargs=-1, type=click.Choice(tuple(TABLES)), metavar="[TABLE]...")


@click.command()
@tables_option
@click.option("--url", help="A node to compare with.")
@token_option
@json_option
def status(tables: Path, url: str | None, token: str | None, as_json: bool) -> None:
    """How far the tables are: position in the feed, rows, version, size, and lag behind a node."""
    from spark_sink.feed import Feed
    from spark_sink.status import table_status

    found = table_status(tables)
    head = Feed(url, patience=0, token=token).head() if url else None
    same = head is not None and head.epoch == found[0].epoch
    lags = [head.head - table.position if head and same else None for table in found]
    if as_json:
        rows = [{**asdict(t), "lag": lag} for t, lag in zip(found, lags, strict=True)]
        click.echo(json.dumps({"tables": rows, "node": None if head is None else asdict(head)}))
        return
    for table, lag in zip(found, lags, strict=True):
        version = "" if table.version is None else f", version {table.version}"
        click.echo(
            f"{table.name:18} position {table.position:<10} {table.rows} rows, "
            f"{table.files} files, {table.size / 1e6:.1f} MB{version}"
            + ("" if lag is None else f", {lag} behind")
        )
    click.echo(f"of the log         {found[0].epoch}")
    if head is not None:
        note = "" if same else f"another log: {head.epoch}"
        click.echo(f"{'node':18} position {head.head:<10} {note}".rstrip())


@click.command()
@tables_option
@click.argument("sql")
@click.option("--version", type=click.IntRange(0), help="Of the tables; the latest if left out.")
@json_option
def query(tables: Path, sql: str, version: int | None, as_json: bool) -> None:
    """Ask the tables something in SQL, DuckDB's; CIDs are shown as text, JSON lines off a terminal.

    Functions: cid(BLOB), stream_id(stream_type, BLOB), stream_id_string(BLOB), from_cid(TEXT),
    stream_cid_of(STREAMID).

    Example: spark-sink query --tables DIR "SELECT stream_id, event_height FROM stream_tips"
    """
    from spark_sink.query import run_query

    answer = run_query(tables, sql, version)
    rows = [{name: show(value) for name, value in row.items()} for row in answer.to_pylist()]
    if as_json or not sys.stdout.isatty():
        for row in rows:
            click.echo(json.dumps(row, default=str))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in answer.schema.names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


@click.command()
@tables_option
@click.argument("name", type=click.Choice(tuple(TABLES)), metavar="TABLE")
@click.option("--url", help="The node's HTTP API, to read raw_events from.")
@token_option
def rebuild(tables: Path, name: str, url: str | None, token: str | None) -> None:
    """Make a table anew from raw_events, beside the old one, and put it in its place at the end.

    With raw_events itself, which is read from the node at --url, all other tables are made anew.
    """
    from spark_sink.feed import Feed
    from spark_sink.tables import lock
    from spark_sink.upkeep import rebuild as rebuild_table

    feed = Feed(url, patience=0, token=token) if url else None
    with lock(tables, make=False):
        rebuild_table(tables, name, feed, _tell)
    click.echo(f"{name} is new")


@click.command()
@tables_option
@_names
def optimize(tables: Path, names: tuple[str, ...]) -> None:
    """Sort the tables (all without TABLE) by stream, in few files: a stream is one small read then.

    Readers go on meanwhile; stop spark-sink run first.
    """
    from spark_sink.tables import lock
    from spark_sink.upkeep import optimize as optimize_tables

    with lock(tables, make=False):
        for name, files in optimize_tables(tables, names).items():
            click.echo(f"{name:18} {files} files")


@click.command()
@tables_option
@_names
@click.option("--history", type=Hours(), help="What to keep; as the table says if left out.")
@click.option("--dry-run", is_flag=True, help="Only say how many files would be deleted.")
def vacuum(tables: Path, names: tuple[str, ...], history: float | None, dry_run: bool) -> None:
    """Delete the files that only versions older than --history need. They cannot be read after."""
    from spark_sink.tables import lock
    from spark_sink.upkeep import vacuum as vacuum_tables

    with lock(tables, make=False):
        for name, files in vacuum_tables(tables, names, history, dry_run=dry_run).items():
            click.echo(f"{name:18} {files} files {'to delete' if dry_run else 'deleted'}")


def _tell(name: str, position: int, goal: int) -> None:
    click.echo(f"{name:18} position {position} of {goal}")


def _cell(value: Any) -> str:
    return "\n".join(map(_cell, value)) if isinstance(value, list) else str(value)
