"""The commands that inspect and maintain the tables. None of them needs Java."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recon_node.base.errors import reason_of
from recon_node.base.files import draft_of, move_into_place, read_small
from recon_node.base.terminal import counted, echo, json_option, print_json, print_result
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ceramic.auth.did import did_spellings
from spark_sink.cli.options import HOURS, MOMENT, node_options, nodes_options, tables_option
from spark_sink.errors import TablesError
from spark_sink.schema import TABLES

if TYPE_CHECKING:
    from spark_sink.tables.location import Location

_MAX_TOKEN = 64 * 1024
"""Bytes of a file with a token of `spark-sink changes`."""
_MAX_SQL = 1024 * 1024
"""Characters of a statement."""
_MAX_VERSION = 2**63 - 1
_names = click.argument("names", nargs=-1, metavar="[TABLE|VIEW]...")


@click.command(short_help="Show how complete, old and large the tables are.")
@tables_option()
@nodes_options(
    url=None,
    url_help="URL of a node to compare with; can be repeated: the one that the tables follow "
    "counts.",
)
@click.option(
    "--max-lag",
    type=click.IntRange(0),
    metavar="N",
    help="Exit with 1 if a table is more than N events behind.",
)
@click.option(
    "--max-age", type=HOURS, help="Exit with 1 if a table's last commit is older, such as 10m."
)
@json_option
def status(as_json: bool, **options: Any) -> None:
    """Show the rows, feed position, size, version and age of each table and view.

    With a node, also show how many of its events each table lacks. As a health check: exits with 1
    if there are no tables, or one is damaged or lacks rows that it should have by its position;
    if the node does not answer or has a different or shorter log, or if --max-lag or --max-age is
    exceeded; otherwise with 0.

    \b
    Examples:
      spark-sink status --tables ./tables
      spark-sink status --tables ./tables --url http://127.0.0.1:5101 --max-lag 10000
      spark-sink status --tables ./tables --max-age 1h --json | jq '.tables[].rows'
    """
    from spark_sink.upkeep.health import check_health, health_json, show_health

    if options["max_lag"] is not None and not options["urls"]:
        raise click.UsageError("--max-lag compares with a node: name it with --url")
    health, now = check_health(**options), datetime.now(UTC)
    if as_json:
        print_json(health_json(health, now))
    else:
        show_health(health, now)
        for trouble in health.troubles:
            echo(f"Error: {trouble}", err=True)
    if health.troubles:
        raise SystemExit(1)


@click.command(short_help="Check that the tables are complete and sound.")
@tables_option()
@click.option("--deep", is_flag=True, help="Read every row, too.")
@json_option
def check(tables: Location, deep: bool, as_json: bool) -> None:
    """Check that each table has as many rows as its position requires, and that its files exist.

    With --deep, every row is read, to check that all files are sound, that no table lacks an event
    or a stream, that each event matches its CID, and that no row is there twice. Exit code 1 if
    anything is wrong; then rebuild the table. spark-sink run can go on meanwhile.

    \b
    Examples:
      spark-sink check --tables ./tables
      spark-sink check --tables ./tables --deep
    """
    from spark_sink.tables.catalog import table_status
    from spark_sink.upkeep.check import check_counts, check_files, check_rows

    statuses = table_status(tables)
    troubles = check_counts(tables, statuses)
    if deep:
        on_progress = _print_progress if sys.stderr.isatty() else lambda *_: None
        troubles += check_rows(tables, statuses, on_progress)
    else:
        troubles += check_files(tables)
    rows = sum(table.rows for table in statuses)
    read = "read and sound" if deep else "counted"
    text = (
        f"{counted(len(statuses), 'table')}: {counted(rows, 'row')} {read}" if not troubles else ""
    )
    for trouble in troubles if not as_json else ():
        echo(f"Error: {trouble}", err=True)
    if as_json or text:
        print_result({"rows": rows, "deep": deep, "troubles": troubles}, text, as_json=as_json)
    if troubles:
        raise SystemExit(1)


@click.command(short_help="Compare the tables with a node.")
@tables_option()
@node_options()
@json_option
def verify(tables: Location, url: str, token: str | None, as_json: bool) -> None:
    """Verify that raw_events has exactly what the node has delivered, up to the same position.

    Both sides hash their EventIds by Sha256a (CIP-124), whole and by model; a sort value that is
    not a model of the tables is shown by its hash. If the hashes differ, the events in which they
    do are found by comparing parts of parts, as nodes do it with each other. Exit code 1 if there
    are any.

    \b
    Example:
      spark-sink verify --tables ./tables --url http://127.0.0.1:5101
    """
    from spark_sink.query.verify import event_of, verify

    compared = verify(tables, url, token)
    mine, node = compared["tables"], compared["node"]
    if as_json:
        print_json(compared)
    else:
        for name, model in compared["models"].items():
            of_tables, at_node = model["tables"], model["node"]
            differs = f"differs: {at_node['events']:,} at the node"
            verdict = "equal" if of_tables == at_node else differs
            events = counted(of_tables["events"], "event")
            echo(f"{name}  {events}  {of_tables['sha256a']}  {verdict}")
        for event in compared["missing"]:
            echo(f"missing in the tables: {event_of(event)}")
        for event in compared["extra"]:
            echo(f"not at the node: {event_of(event)}")
        verdict = "the node has the same" if compared["equal"] else f"the node: {node['sha256a']}"
        echo(f"{counted(mine['events'], 'event')} up to position {compared['upto']}, {verdict}")
        echo(f"sha256a {mine['sha256a']}")
    if not compared["equal"]:
        raise SystemExit(1)


@click.command(short_help="Query the tables with SQL.")
@tables_option()
@click.argument("sql")
@click.option(
    "--version",
    type=click.IntRange(0, _MAX_VERSION),
    metavar="N",
    help="Version to query; default: the latest.",
)
@click.option(
    "--as-of",
    type=MOMENT,
    help="Query the tables as of a time: 2026-01-31T12:00:00Z, or 90m for that long ago.",
)
@click.option("--wide", is_flag=True, help="Do not cut long values on a terminal.")
@json_option
def query(
    tables: Location,
    sql: str,
    version: int | None,
    as_of: datetime | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Query the tables with DuckDB's SQL. Prints JSON lines if not on a terminal.

    CIDs, StreamIDs, DIDs and JSON are decoded, other bytes are shown as hex, and decimals keep all
    of their digits. On a terminal, rows that are wider take one line per value, and values are cut
    at 500 characters without --wide; JSON, and files that COPY writes, have all of them. With - the
    SQL is read from standard input. Of several statements, only the last may return rows.

    \b
    Functions for binary columns:
      cid(BLOB), from_cid(TEXT)                    a CID as text, and back
      stream_id(stream_type, stream_cid)           the StreamID of a stream
      stream_cid_of(TEXT)                          the stream_cid of a StreamID
      stream_id_string(BLOB), from_stream_id(TEXT) dimensions['model'] as text, and back
      stream_partition(stream_cid)                 the partition of a stream
      is_dag(dimensions)                           whether a stream belongs to a DAG

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
    from spark_sink.cli.query_output import ask

    if version is not None and as_of is not None:
        raise click.UsageError("use --version or --as-of, not both")
    text = sys.stdin.read(_MAX_SQL + 1) if sql == "-" else sql
    if len(text) > _MAX_SQL:
        raise click.UsageError(f"the SQL has more than {_MAX_SQL:,} characters")
    text.encode()  # what is not UTF-8 is an error
    if not text.strip(" \t\r\n;"):
        raise click.UsageError("the SQL is empty")
    at = as_of if version is None else version
    ask(tables, text, at, as_json=as_json or not sys.stdout.isatty(), wide=wide)


@click.command(short_help="Print the changes of a table since the last time.")
@tables_option()
@click.argument("name", metavar="TABLE")
@click.option("--since", metavar="TOKEN", help="The token that the last call printed.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read the token from FILE, if it exists, and write the new one to it at the end.",
)
def changes(tables: Location, name: str, since: str | None, checkpoint: Path | None) -> None:
    """Print the rows of TABLE that are new or have changed since TOKEN, as JSON lines.

    TABLE is a table, or a typed view of a model.

    {"row": {...}} is a row as it is now; if one comes twice, the last counts.
    {"token": "..."}, the last line, is for the next call; without a token, all rows come.
    {"reset": true} says that all rows follow, because changes are not kept for that long (run
    --changes) or the table was made anew; writing them by their keys is right in any case. Rows are
    deleted only by spark-sink forget, after which all others come again: a copy must delete those
    that do not come.

    With --checkpoint, the next call goes on where this one ended. If this one fails, it repeats.

    \b
    Examples:
      spark-sink changes --tables ./tables stream_states --checkpoint states.token | ./import
      spark-sink changes --tables ./tables raw_events --since eyJ0YWJsZSI6...
    """
    from spark_sink.query.changes import Changes, Token
    from spark_sink.query.show import as_dicts, show, to_json

    if since is not None and checkpoint is not None:
        raise click.UsageError("use --since or --checkpoint, not both")
    if checkpoint is not None:
        since = _read_checkpoint(checkpoint)
    change_feed = Changes(tables, name, None if since is None else Token.parse(since))
    for kind, rows in change_feed.rows():
        if kind == "reset":
            echo(to_json({"reset": True}))
        for row in as_dicts(rows):
            echo(to_json({"row": show(row)}))
    echo(to_json({"token": str(change_feed.token)}))
    sys.stdout.flush()
    if checkpoint is not None:
        try:
            with draft_of(checkpoint, wait=True) as draft:
                draft.write_text(f"{change_feed.token}\n")
                move_into_place(draft, checkpoint)
        except OSError as error:
            raise TablesError(
                f"the checkpoint {checkpoint} cannot be written ({reason_of(error)}): the "
                "same rows come again next time"
            ) from None


def _read_checkpoint(file: Path) -> str | None:
    """Return the token in a file; None if there is no such file yet, in a directory that is."""
    from spark_sink.query.changes import Token

    try:
        if not file.exists() and file.parent.is_dir():
            return None
        text = read_small(file, _MAX_TOKEN).decode("ascii").strip()
        Token.parse(text)
        return text
    except OSError as error:
        raise TablesError(f"the checkpoint {file}: {reason_of(error)}") from None
    except (UnicodeDecodeError, TablesError):  # what it holds may be a secret
        raise TablesError(
            f"the checkpoint {file} does not hold a token of `spark-sink changes`: delete it to "
            "get all rows again, or name another file"
        ) from None


@click.command(short_help="Rebuild a table.")
@tables_option()
@click.argument("name", type=click.Choice(tuple(TABLES)), metavar="TABLE")
@node_options(url_help="URL of the node's HTTP API, to rebuild raw_events from.")
@json_option
def rebuild(tables: Location, name: str, url: str, token: str | None, as_json: bool) -> None:
    """Rebuild a table from raw_events, and replace the old one when it is complete.

    Rebuilding raw_events reads it from the node at --url, up to its old position, and rebuilds all
    other tables too; spark-sink run then reads the rest. Stop spark-sink run first; readers can
    continue. Each table is replaced in one commit, and interrupting it changes nothing before that.

    \b
    Tables: raw_events, conclusion_events, event_states, stream_tips, stream_states,
    unprocessed_streams

    \b
    Examples:
      spark-sink rebuild --tables ./tables stream_tips
      spark-sink rebuild --tables ./tables raw_events --url http://127.0.0.1:5101
    """
    from spark_sink.source.feed_client import DEFAULT_PATIENCE, Feed
    from spark_sink.tables.tables import lock
    from spark_sink.upkeep.maintenance import rebuild as rebuild_table

    with lock(tables, make=False):
        positions = rebuild_table(tables, name, Feed(url, DEFAULT_PATIENCE, token), _print_progress)
    facts = [{"name": table, "position": position} for table, position in positions.items()]
    print_result({"tables": facts}, f"{name} is rebuilt", as_json=as_json)


@click.command(short_help="Sort the tables by stream, into few files.")
@tables_option()
@_names
@json_option
def optimize(tables: Location, names: tuple[str, ...], as_json: bool) -> None:
    """Sort tables and views (default: all) by stream, into few files, to read streams fast.

    Stop spark-sink run first; readers can continue.

    \b
    Examples:
      spark-sink optimize --tables ./tables
      spark-sink optimize --tables ./tables raw_events event_states
    """
    from spark_sink.tables.tables import lock
    from spark_sink.upkeep.maintenance import optimize as optimize_tables

    with lock(tables, make=False):
        counts = optimize_tables(tables, names)
    _print_files(counts, "", {}, as_json=as_json)


@click.command(short_help="Delete the files of old versions.")
@tables_option()
@_names
@click.option(
    "--history",
    type=HOURS,
    show_default="the setting stored in the table by spark-sink run",
    help="How far back versions are kept: 90m, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only count the files that would be deleted.")
@json_option
def vacuum(
    tables: Location, names: tuple[str, ...], history: float | None, dry_run: bool, as_json: bool
) -> None:
    """Delete files that only versions older than --history need. Those versions become unreadable.

    spark-sink run does this regularly; use this command while it is stopped.

    \b
    Examples:
      spark-sink vacuum --tables ./tables --dry-run
      spark-sink vacuum --tables ./tables --history 0h stream_tips
    """
    from spark_sink.tables.tables import lock
    from spark_sink.upkeep.maintenance import vacuum as vacuum_tables

    with lock(tables, make=False):
        counts = vacuum_tables(tables, names, history, dry_run=dry_run)
    done = "to delete" if dry_run else "deleted"
    _print_files(counts, done, {"deleted": not dry_run}, as_json=as_json)


def _print_files(counts: dict[str, int], what: str, more: dict[str, Any], *, as_json: bool) -> None:
    facts = [{"name": name, "files": files} for name, files in counts.items()]
    lines = (f"{name:18} {counted(files, 'file')} {what}" for name, files in counts.items())
    text = "\n".join(map(str.rstrip, lines))
    print_result({"tables": facts, **more}, text, as_json=as_json)


@click.command(short_help="Remove streams from all tables, with their history.")
@tables_option()
@click.argument("whom", nargs=-1, required=True, metavar="STREAM|CONTROLLER...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def forget(tables: Location, whom: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove streams from all tables and views, with all older versions of their rows.

    Name a stream by its StreamID, or all streams of a controller by its DID. In raw_events, the
    rows stay without the bytes of the events; later events of these streams are left out as well.
    Stop spark-sink run first. docs/tables.md lists the copies elsewhere.

    \b
    Examples:
      spark-sink forget --tables ./tables kjzl6kcym7w8y...
      spark-sink forget --tables ./tables did:key:z6Mk... --yes
    """
    from spark_sink.tables.tables import lock
    from spark_sink.upkeep.maintenance import forget as forget_streams
    from spark_sink.upkeep.maintenance import streams_of

    controllers = {name for name in whom if name.startswith("did:")}
    try:
        streams = {bytes(StreamId.parse(name).cid) for name in whom if name not in controllers}
    except StreamIdError as error:
        raise click.BadParameter(str(error), param_hint="'STREAM|CONTROLLER'") from None
    with lock(tables, make=False):
        theirs = streams_of(tables, controllers)
        for name in sorted(controllers):
            if set(theirs.values()).isdisjoint(did_spellings(name)):
                echo(f"Warning: {tables} has no stream of {name}, or no longer", err=True)
        streams |= theirs.keys()
        if not yes:
            text = (
                f"Remove {counted(len(streams), 'stream')} from the tables in {tables}, for good?"
            )
            click.confirm(text, abort=True, err=True)
        rows = forget_streams(tables, streams)
    lines = [f"{name:24} {counted(count, 'row'):>13}" for name, count in rows.items()]
    lines.append("The node and its peers still have the events: docs/tables.md lists the copies")
    facts = {"streams": len(streams), "tables": rows}
    print_result(facts, "\n".join(lines), as_json=as_json)


def _print_progress(name: str, position: int, goal: int) -> None:
    echo(f"{name:18} position {position} of {goal}", err=True)
