"""The command `spark-sink`: keep tables of a node's events up to date, and look at them."""

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from spark_sink.cli_options import Hours, Milliseconds, token_option
from spark_sink.cli_tables import optimize, query, rebuild, status, vacuum
from spark_sink.errors import SinkError
from spark_sink.schema import DERIVED
from spark_sink.show import show

if TYPE_CHECKING:
    from spark_sink.runner import Runner
    from spark_sink.tables import Format


_EXTRA = {"deltalake", "duckdb", "pandas", "pyspark"}


class _Group(click.Group):
    """Shows what went wrong as click shows errors: in one line, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SinkError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {
                "deltalake",
                "duckdb",
                "pandas",
                "pyspark",
            }:
                raise
            raise click.ClickException(
                f"the package {error.name} is missing: pip install 'recon-node[spark]'"
            ) from error


@click.group(
    cls=_Group,
    context_settings={
        "auto_envvar_prefix": "SPARK_SINK",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
    },
)
@click.version_option(package_name="recon-node")
def main() -> None:
    """Tables of a Ceramic node's events, kept up to date by Spark.

    Every option can be given as an environment variable, as in SPARK_SINK_RUN_URL.
    """


for command in (status, query, rebuild, optimize, vacuum):
    main.add_command(command)


@main.command()
@click.option("--url", required=True, help="The node's HTTP API, as in http://127.0.0.1:5101.")
@token_option
@click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the tables; needed but for --format console.",
)
@click.option(
    "--table",
    "names",
    type=click.Choice(DERIVED),
    multiple=True,
    default=DERIVED,
    show_default="all",
    help="A table to keep up to date, beside raw_events; can be repeated.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet", "console"]),
    help="Of the tables. console: show the rows, keep nothing.  [default: delta, or what is there]",
)
@click.option(
    "--history",
    type=Hours(),
    default="1h",
    help="For how long older versions of the tables can be read.",
)
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of Spark's checkpoint.  [default: _checkpoint in the tables' directory]",
)
@click.option("--once", is_flag=True, help="Stop at the feed's head as it is now.")
@click.option("--trigger", type=Milliseconds(), default="500ms", help="How often to look.")
@click.option("--max-rows-per-batch", type=click.IntRange(1), default=10_000, help="Rows a batch.")
@click.option("--partitions", type=click.IntRange(1), default=2, help="Requests at once.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve numbers for Prometheus there.")
@click.option("--master", default="local[2]", help="Where Spark works.")
@click.option("--driver-memory", default="1g", help="Heap of Spark's Java.")
@click.option("--verbose", is_flag=True, help="Show Spark's own warnings.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as when not on a terminal.")
def run(trigger: int, as_json: bool, table_format: str | None, **options: Any) -> None:
    """Keep the tables up to date with a node's feed, until Ctrl-C or SIGTERM.

    What was begun is finished by the next run; no event is skipped or counted twice.
    """
    from spark_sink.runner import Runner, RunSettings

    console = table_format == "console"
    if console == (options["tables"] is not None):
        raise click.UsageError(
            "--format console keeps no tables: leave --tables out"
            if console
            else "say with --tables where the tables are, or take --format console"
        )
    settings = RunSettings(
        trigger_ms=trigger,
        show_rows=console,
        table_format=cast("Format | None", None if console else table_format),
        **options,
    )
    runner = Runner(settings, _print_json if as_json or not sys.stdout.isatty() else _print_line)
    _stop_on_signals(runner)
    runner.run()


def _stop_on_signals(runner: "Runner") -> None:
    """Ctrl-C and SIGTERM: finish the batch under way; while there is none yet, go at once.

    Spark may be starting then, which is not made to be interrupted: its Java ends when we do.
    """

    def stop(*_: object) -> None:
        if not runner.stop():
            runner.clean()
            sys.stdout.flush()
            os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _print_json(event: str, facts: dict[str, Any]) -> None:
    """A line as the node's own log has them."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"timestamp": now, "level": _LEVELS.get(event, "info"), "event": event}
    click.echo(json.dumps({**line, **show(facts)}, default=str))


_LEVELS = {"waiting": "warning"}

_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "started": lambda f: (
        f"{f['url']} (log {f['epoch']}) to {f['tables']}, from position {f['position']}; "
        f"the feed is at {f['head']}" + (f"; numbers at {f['metrics']}" if f["metrics"] else "")
    ),
    "batch": lambda f: (
        f"batch {f['batch']:<6} {f['rows']:>6} rows {f['streams']:>6} streams   position "
        f"{f['position']:<10} {'lag ' + str(f['lag']) if f['lag'] is not None else '':12} "
        f"{f['seconds']:.2f} s"
    ),
    "row": lambda f: f"{f['table']:18} {json.dumps(show(f['row']), default=str)}",
    "waiting": lambda f: f"the node at {f['url']} does not answer; waiting for it",
    "resumed": lambda f: f"the node at {f['url']} answers again",
    "stopped": lambda f: f"stopped at position {f['position']}, {f['rows']} rows in this run",
}


def _print_line(event: str, facts: dict[str, Any]) -> None:
    click.echo(_LINES[event](facts))
