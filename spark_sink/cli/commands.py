"""The command `spark-sink`: keep tables of a node's events up to date, and look at them."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from spark_sink.cli.options import (
    Address,
    Directory,
    Heap,
    Hours,
    Master,
    Milliseconds,
    Setting,
    Size,
    node_options,
)
from spark_sink.cli.table_commands import optimize, query, rebuild, status, vacuum
from spark_sink.errors import INSTALL, SinkError
from spark_sink.query.show import show, to_json
from spark_sink.schema import DERIVED, RAW, TABLES

if TYPE_CHECKING:
    from spark_sink.run.runner import Runner
    from spark_sink.tables.directory import Format


_EXTRA = {"deltalake", "duckdb", "pandas", "pyspark"}


class _Group(click.Group):
    """Shows what went wrong as click shows errors: in one line, with exit code 1; of Ctrl-C 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # what shells expect; click alone says it with 1
            click.echo("Aborted!", err=True)
            ctx.exit(130)
        except SinkError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRA:
                raise
            raise click.ClickException(
                f"the package {package} is missing; install it {INSTALL}"
            ) from error


@click.group(
    cls=_Group,
    context_settings={
        "auto_envvar_prefix": "SPARK_SINK",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog="Try it: `spark-sink run --tables ./tables` beside a `recon-node run`, then `spark-sink "
    "query --tables ./tables 'FROM stream_tips'`. `spark-sink COMMAND --help` explains a command.",
)
@click.version_option(package_name="recon-node")
def main() -> None:
    """Tables of a Ceramic node's events, kept up to date by Spark.

    Every option can be given as an environment variable, as in SPARK_SINK_RUN_TABLES. The node, and
    its token, are those of RECON_NODE_URL, RECON_NODE_TOKEN and RECON_NODE_TOKEN_FILE, too.
    """


for command in (status, query, rebuild, optimize, vacuum):
    main.add_command(command)


@main.command(short_help="Keep tables up to date with a node's feed.")
@node_options()
@click.option(
    "--tables",
    type=Directory(),
    metavar="DIR",
    help="Directory of the tables; needed but for --format console.",
)
@click.option(
    "--table",
    "names",
    type=click.Choice(tuple(TABLES)),
    multiple=True,
    default=DERIVED,
    show_default="all",
    metavar="TABLE",
    help="Keep this table up to date, beside raw_events; can be repeated. Of: "
    f"{', '.join(TABLES)}.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet", "console"]),
    show_default="delta, or what is there",
    help="Of the tables. console: show the rows, keep nothing.",
)
@click.option(
    "--history",
    type=Hours(),
    default="1h",
    help="For how long older versions of the tables can be read: 90m, 7d.",
)
@click.option(
    "--checkpoint",
    type=Directory(),
    metavar="DIR",
    show_default="_checkpoint in the tables' directory",
    help="Directory of Spark's checkpoint.",
)
@click.option("--once", is_flag=True, help="Stop at the feed's head as it is now.")
@click.option(
    "--trigger", type=Milliseconds(), default="500ms", help="How often to look: 500ms, 2s, 1m."
)
@click.option(
    "--max-rows-per-batch",
    type=click.IntRange(1),
    metavar="N",
    show_default="50000, with --format parquet 10000",
    help="How many events are taken at once.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    show_default="as many as Spark has cores, at most 8",
    help="How many requests of a batch go to the node at once.",
)
@click.option(
    "--keep-free",
    type=Size(),
    default="64MB",
    help="Stop, cleanly, with less than that free on the disk of the tables; 0: never.",
)
@click.option(
    "--metrics", type=Address(), metavar="HOST:PORT", help="Serve numbers for Prometheus there."
)
@click.option(
    "--master",
    type=Master(),
    metavar="URL",
    show_default="local[2], local[1] with less than 2 GiB, or what spark-submit was told",
    help="The Spark that does the work: local[4], spark://HOST:7077.",
)
@click.option(
    "--spark-conf",
    type=Setting(),
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Spark; can be repeated.",
)
@click.option(
    "--driver-memory",
    type=Heap(),
    metavar="SIZE",
    show_default="1g, or a quarter of a container's memory",
    help="Heap of Spark's Java: 512m, 2g.",
)
@click.option("--verbose", is_flag=True, help="Show Spark's own warnings.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as when not on a terminal.")
def run(trigger: int, as_json: bool, table_format: str | None, **options: Any) -> None:
    """Keep the tables up to date with a node's feed, until Ctrl-C or SIGTERM.

    What was begun is finished by the next run; no event is skipped or counted twice. Says a line a
    batch. Exit code 0 when it was stopped, or came to the head with --once; 1 with an error in one
    line otherwise: the tables are whole then, too.

    \b
    Examples:
      spark-sink run --tables ./tables                 the node on this machine, until Ctrl-C
      spark-sink run --tables ./tables --once          up to now
      spark-sink run --tables ./tables --url http://node:5101 --token-file token
      spark-sink run --tables ./tables --table stream_states --history 7d
      spark-sink run --format console --table stream_tips
      spark-sink run --tables /shared/tables --master spark://HOST:7077
    """
    from spark_sink.run.runner import Runner, RunSettings

    console = table_format == "console"
    if console == (options["tables"] is not None):
        raise click.UsageError(
            "--format console keeps no tables: leave --tables out"
            if console
            else "say with --tables where the tables are, or take --format console"
        )
    options["spark_settings"] = dict(options.pop("spark_conf"))
    options["names"] = tuple(name for name in options["names"] if name != RAW)
    settings = RunSettings(
        trigger_ms=trigger,
        show_rows=console,
        table_format=cast("Format | None", None if console else table_format),
        **options,
    )
    teller = _Teller(_print_json if as_json or not sys.stdout.isatty() else _print_line)
    runner = Runner(settings, teller)
    teller.on_gone = partial(_stop_quietly, runner, at_once=console)
    _stop_on_signals(runner)
    runner.run()
    if teller.is_gone:
        raise SystemExit(1)


class _Teller:
    """Prints what happens, as long as there is who reads it; `| head` has seen enough early."""

    def __init__(self, show: Callable[[str, dict[str, Any]], None]) -> None:
        self._show = show
        self.is_gone = False
        self.on_gone: Callable[[], None] = lambda: None

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        """Tell of an event; no error of the output's ends what the pipeline is about to finish."""
        if self.is_gone:
            return
        try:
            self._show(event, facts)
        except BrokenPipeError:
            self.is_gone = True
            self.on_gone()


def _stop_quietly(runner: "Runner", *, at_once: bool) -> None:
    """Say no more, and end: after the batch under way if there is one, or `at_once`."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    if not runner.stop() or at_once:
        runner.clean()
        os._exit(1)


def _stop_on_signals(runner: "Runner") -> None:
    """Ctrl-C and SIGTERM: finish the batch under way; while there is none yet, or told so again, go
    at once.

    Spark may be starting then, which is not made to be interrupted: its Java ends when we do.
    """
    told: list[int] = []

    def stop(number: int, _: object) -> None:
        finishes = runner.stop()
        if not finishes or number in told:
            runner.clean()
            with suppress(RuntimeError):  # interrupted in the midst of a write
                sys.stdout.flush()
            os._exit(128 + number if finishes else 0)
        told.append(number)
        if sys.stderr.isatty():
            os.write(2, b"\nstopping after the batch under way; Ctrl-C again: at once\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _print_json(event: str, facts: dict[str, Any]) -> None:
    """A line as the node's own log has them."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"timestamp": now, "level": _LEVELS.get(event, "info"), "event": event}
    click.echo(to_json({**line, **show(facts)}))


_LEVELS = {"waiting": "warning", "no_workers": "warning"}

_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "starting": lambda f: (
        f"{f['url']} (log {f['epoch']}) to {f['tables']}, from position {f['position']} to "
        f"{f['head']} and on; Spark starts, which takes some seconds"
    ),
    "started": lambda f: (
        "Spark is there" + (f"; numbers at {f['metrics']}" if f["metrics"] else "")
    ),
    "batch": lambda f: (
        f"batch {f['batch']:<6} {f['rows']:>6} rows {f['streams']:>6} streams   position "
        f"{f['position']:<10} {'lag ' + str(f['lag']) if f['lag'] is not None else '':12} "
        f"{f['seconds']:.2f} s"
    ),
    "no_workers": lambda f: (
        f"no worker of the Spark cluster {f['master']} has answered yet; waiting for one, for at "
        f"most {f['patience']:.0f} s"
    ),
    "row": lambda f: f"{f['table']:18} {to_json(show(f['row']))}",
    "waiting": lambda f: (
        f"the node at {f['url']} does not answer; waiting for it"
        + (f", for at most {f['patience']:.0f} s" if "patience" in f else "")
    ),
    "resumed": lambda f: f"the node at {f['url']} answers again",
    "stopped": lambda f: f"stopped at position {f['position']}, {f['rows']} rows in this run",
}


def _print_line(event: str, facts: dict[str, Any]) -> None:
    click.echo(_LINES[event](facts))
