"""The command `spark-sink`: keep tables of a node's events up to date, and look at them."""

import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_sink.errors import SinkError

if TYPE_CHECKING:
    from spark_sink.runner import Runner

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000}


class Milliseconds(click.ParamType[int]):
    """A time such as 500ms, 2s or 1m; plain numbers are milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in milliseconds."""
        match = re.fullmatch(r"(\d+)\s*(ms|s|m)?", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a time such as 500ms, 2s or 1m", param, ctx)
        return int(match[1]) * _UNITS[match[2] or "ms"]


class _Group(click.Group):
    """Shows what went wrong as click shows errors: in one line, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SinkError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"deltalake", "pandas", "pyspark"}:
                raise
            raise click.ClickException(
                f"the package {error.name} is missing: pip install 'recon-node[spark]'"
            ) from error


tables_option = click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the tables.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON.")


token_option = click.option(
    "--token",
    envvar="RECON_NODE_TOKEN",
    help="What the node's API asks for; better in RECON_NODE_TOKEN.",
)


@click.group(
    cls=_Group, context_settings={"auto_envvar_prefix": "SPARK_SINK", "show_default": True}
)
@click.version_option(package_name="recon-node")
def main() -> None:
    """Tables of a Ceramic node's events, kept up to date by Spark.

    Every option can be given as an environment variable, as in SPARK_SINK_RUN_URL.
    """


@main.command()
@click.option("--url", required=True, help="The node's HTTP API, as in http://127.0.0.1:5101.")
@token_option
@tables_option
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of Spark's checkpoint.  [default: _checkpoint in the tables' directory]",
)
@click.option("--once", is_flag=True, help="Stop at the feed's head as it is now.")
@click.option("--trigger", type=Milliseconds(), default="500ms", help="How often to look.")
@click.option("--max-rows-per-batch", type=click.IntRange(1), default=10_000, help="Rows a batch.")
@click.option("--partitions", type=click.IntRange(1), default=2, help="Requests at once.")
@click.option("--master", default="local[2]", help="Where Spark works.")
@click.option("--driver-memory", default="1g", help="Heap of Spark's Java.")
@click.option("--verbose", is_flag=True, help="Show Spark's own warnings.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as when not on a terminal.")
def run(trigger: int, as_json: bool, **options: Any) -> None:
    """Keep the tables up to date with a node's feed, until Ctrl-C or SIGTERM.

    What was begun is finished by the next run; no event is skipped or counted twice.
    """
    from spark_sink.runner import Runner, RunSettings

    tell = _print_json if as_json or not sys.stdout.isatty() else _print_line
    runner = Runner(RunSettings(trigger_ms=trigger, **options), tell)
    _stop_on_signals(runner)
    runner.run()


@main.command()
@tables_option
@click.option("--url", help="A node to compare with.")
@token_option
@json_option
def status(tables: Path, url: str | None, token: str | None, as_json: bool) -> None:
    """How far the tables are."""
    from spark_sink.feed import Feed
    from spark_sink.status import table_status

    found = table_status(tables)
    head = Feed(url, patience=0, token=token).head() if url else None
    if as_json:
        node = None if head is None else asdict(head)
        click.echo(json.dumps({"tables": [asdict(table) for table in found], "node": node}))
        return
    for table in found:
        click.echo(
            f"{table.name:12} position {table.position:<10} {table.rows} rows, "
            f"{table.files} files, {table.size / 1e6:.1f} MB, version {table.version}"
        )
    click.echo(f"of the log   {found[0].epoch}")
    if head is not None:
        same = head.epoch == found[0].epoch
        behind = f"{head.head - found[0].position} behind" if same else f"another log: {head.epoch}"
        click.echo(f"{'node':12} position {head.head:<10} {behind}")


@main.command()
@tables_option
@click.argument("sql")
@json_option
def query(tables: Path, sql: str, as_json: bool) -> None:
    """Ask the tables something in SQL; CIDs are shown as text, JSON lines off a terminal.

    Example: spark-sink query --tables DIR "SELECT stream_id, event_height FROM stream_tips"
    """
    from spark_sink.status import run_query, show

    answer = run_query(tables, sql)
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


def _cell(value: Any) -> str:
    return "\n".join(map(_cell, value)) if isinstance(value, list) else str(value)


def _stop_on_signals(runner: "Runner") -> None:
    """Ctrl-C and SIGTERM: finish the batch under way; while there is none yet, go at once."""

    def stop(*_: object) -> None:
        if not runner.stop():
            sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _print_json(event: str, facts: dict[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    click.echo(json.dumps({"time": now, "event": event, **facts}))


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "started": lambda f: (
        f"{f['url']} (log {f['epoch']}) to {f['tables']}, from position {f['position']}; "
        f"the feed is at {f['head']}"
    ),
    "batch": lambda f: (
        f"batch {f['batch']:<6} {f['rows']:>6} rows {f['streams']:>6} tips   position "
        f"{f['position']:<10} {'lag ' + str(f['lag']) if f['lag'] is not None else '':12} "
        f"{f['seconds']:.2f} s"
    ),
    "waiting": lambda f: f"the node at {f['url']} does not answer; waiting for it",
    "resumed": lambda f: f"the node at {f['url']} answers again",
    "stopped": lambda f: f"stopped at position {f['position']}, {f['rows']} rows in this run",
}


def _print_line(event: str, facts: dict[str, Any]) -> None:
    click.echo(_LINES[event](facts))
