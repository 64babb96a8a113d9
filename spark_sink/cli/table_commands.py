"""The commands that look at the tables and look after them. None of them needs Java."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from spark_sink.cli.options import Hours, Moment, json_option, node_options, tables_option
from spark_sink.schema import TABLES

_names = click.argument("names", nargs=-1, type=click.Choice(tuple(TABLES)), metavar="[TABLE]...")


@click.command(short_help="Say how far and how old the tables are, and how big.")
@tables_option
@node_options(url=None, what="A node to compare with")
@click.option("--max-lag", type=click.IntRange(0), help="Exit code 1 when more events behind.")
@click.option(
    "--max-age", type=Hours(), help="Exit code 1 when a table's last commit is older: 10m."
)
@json_option
def status(as_json: bool, **options: Any) -> None:
    """Say how far the tables are: rows, position in the feed, size, version, and how old each is.

    With a node, also how many of its events each table lacks. Exit code 0 when all is well, and 1
    when there are no tables or one is damaged, when the node does not answer, has another log or a
    shorter one, or when --max-lag or --max-age is exceeded: a health check for a container.

    \b
    Examples:
      spark-sink status --tables ./tables
      spark-sink status --tables ./tables --url http://127.0.0.1:5101 --max-lag 10000
      spark-sink status --tables ./tables --max-age 1h --json | jq '.tables[].rows'
    """
    from spark_sink.upkeep.health import health_json, look, show_health

    if options["max_lag"] is not None and options["url"] is None:
        raise click.UsageError("--max-lag is a distance to a node: say which with --url")
    health, now = look(**options), datetime.now(UTC)
    if as_json:
        click.echo(json.dumps(health_json(health, now)))
    else:
        show_health(health, now)
        for trouble in health.troubles:
            click.echo(f"Error: {trouble}", err=True)
    if health.troubles:
        raise SystemExit(1)


@click.command(short_help="Ask the tables something in SQL.")
@tables_option
@click.argument("sql")
@click.option("--version", type=click.IntRange(0), help="Of the tables; the latest if left out.")
@click.option(
    "--as-of",
    type=Moment(),
    help="The tables as they were then: 2026-01-31T12:00:00Z, or 90m for that long ago.",
)
@json_option
def query(
    tables: Path, sql: str, version: int | None, as_of: datetime | None, as_json: bool
) -> None:
    """Ask the tables something in SQL, DuckDB's. Prints JSON lines where it is not on a terminal.

    CIDs, StreamIDs, DIDs and JSON are shown as what they are, other bytes as hex; decimals with all
    of their digits. Rows wider than the terminal are a line for each value. SQL of - is read from
    standard input; of several statements only the last may have an answer.

    \b
    Functions, for what is binary in the tables:
      cid(BLOB), from_cid(TEXT)                    a CID as text, and back
      stream_id(stream_type, stream_cid)           the StreamID of a stream
      stream_cid_of(TEXT)                          the stream_cid of a StreamID
      stream_id_string(BLOB), from_stream_id(TEXT) dimensions['model'] as text, and back
      stream_partition(stream_cid)                 the partition that a stream is in
      is_dag(dimensions)                           whether it is a shard of a DAG and the like

    \b
    Examples:
      spark-sink query --tables DIR "SHOW TABLES"
      spark-sink query --tables DIR "SELECT stream_id, event_height FROM stream_tips LIMIT 5"
      spark-sink query --tables DIR "SELECT decode(data)->'$.content' AS content
          FROM stream_states WHERE stream_id = 'kjzl6...'"
      spark-sink query --tables DIR --as-of 10m "SELECT count(*) FROM raw_events"
      spark-sink query --tables DIR "COPY (SELECT stream_id, cid(event_cid) AS tip, diverged
          FROM stream_tips) TO 'tips.csv'"
    """
    from spark_sink.cli.answers import ask

    if version is not None and as_of is not None:
        raise click.UsageError("--version or --as-of, not both")
    text = sys.stdin.read() if sql == "-" else sql
    if not text.strip(" \t\r\n;"):
        raise click.UsageError("there is no SQL: say what to ask")
    at = as_of if version is None else version
    ask(tables, text, at, as_json=as_json or not sys.stdout.isatty())


@click.command(short_help="Make a table anew.")
@tables_option
@click.argument("name", type=click.Choice(tuple(TABLES)), metavar="TABLE")
@node_options(what="Of raw_events: the node's HTTP API, to read it from")
def rebuild(tables: Path, name: str, url: str, token: str | None) -> None:
    """Make a table anew from raw_events, beside the old one, and put it in its place at the end.

    With raw_events itself, which is read from the node at --url as far as it was, all other tables
    are made anew; spark-sink run reads the rest. Readers go on meanwhile; stop spark-sink run
    first. Broken off, it has changed nothing until tables are put in their places. A Delta table is
    by one commit; Parquet files are one by one: readers find some of both for a moment.

    \b
    Tables: raw_events, conclusion_events, event_states, stream_tips, stream_states

    \b
    Examples:
      spark-sink rebuild --tables ./tables stream_tips
      spark-sink rebuild --tables ./tables raw_events --url http://127.0.0.1:5101
    """
    from spark_sink.source.feed import PATIENCE, Feed
    from spark_sink.tables.directory import lock
    from spark_sink.upkeep.maintenance import rebuild as rebuild_table

    with lock(tables, make=False):
        rebuild_table(tables, name, Feed(url, PATIENCE, token), _tell)
    click.echo(f"{name} is new")


@click.command(short_help="Sort the tables by stream, in few files.")
@tables_option
@_names
def optimize(tables: Path, names: tuple[str, ...]) -> None:
    """Sort the tables (all without TABLE) by stream, in few files: a stream is one small read then.

    Readers go on meanwhile; stop spark-sink run first.

    \b
    Examples:
      spark-sink optimize --tables ./tables
      spark-sink optimize --tables ./tables raw_events event_states
    """
    from spark_sink.tables.directory import lock
    from spark_sink.upkeep.maintenance import optimize as optimize_tables

    with lock(tables, make=False):
        for name, files in optimize_tables(tables, names).items():
            click.echo(f"{name:18} {files} files")


@click.command(short_help="Delete the files of old versions.")
@tables_option
@_names
@click.option(
    "--history",
    type=Hours(),
    show_default="as the table says: that of spark-sink run",
    help="For how long back versions stay: 90m, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only say how many files would be deleted.")
def vacuum(tables: Path, names: tuple[str, ...], history: float | None, dry_run: bool) -> None:
    """Delete the files that only versions older than --history need. They cannot be read after.

    spark-sink run does it now and then; this is for tables that it does not write at the time.

    \b
    Examples:
      spark-sink vacuum --tables ./tables --dry-run
      spark-sink vacuum --tables ./tables --history 0h stream_tips
    """
    from spark_sink.tables.directory import lock
    from spark_sink.upkeep.maintenance import vacuum as vacuum_tables

    with lock(tables, make=False):
        for name, files in vacuum_tables(tables, names, history, dry_run=dry_run).items():
            click.echo(f"{name:18} {files} files {'to delete' if dry_run else 'deleted'}")


def _tell(name: str, position: int, goal: int) -> None:
    click.echo(f"{name:18} position {position} of {goal}")
