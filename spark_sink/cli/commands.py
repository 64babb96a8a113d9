"""The command `spark-sink run`, and the group of all commands."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recon_node.base import timing
from recon_node.base.program import stop_signals
from recon_node.base.terminal import ByteSize, CommandError, ProgramGroup, echo
from spark_sink.cli.event_printer import EventPrinter, json_lines_option
from spark_sink.cli.export_commands import export
from spark_sink.cli.options import (
    ADDRESS,
    HEAP,
    HOURS,
    MASTER,
    MILLISECONDS,
    SPARK_SETTING,
    Directory,
    nodes_options,
    tables_option,
)
from spark_sink.cli.serve import serve
from spark_sink.cli.table_commands import (
    changes,
    check,
    forget,
    optimize,
    query,
    rebuild,
    status,
    vacuum,
    verify,
)
from spark_sink.cli.view_commands import view
from spark_sink.errors import INSTALL, SinkError
from spark_sink.schema import DERIVED, RAW, TABLES, UNPROCESSED

if TYPE_CHECKING:
    from spark_sink.run.runner import Runner


_LOG_FILE = "spark-sink.log"
_STANDARD_ERROR = 2
_HISTORY = 1.0
"""Hours for which older versions are kept, unless they take too much space."""
_QUICK_STOP = 1.0
"""Seconds without a word, in which most stops are over."""
_STOP_TIMEOUT = 8.0
"""Seconds for a stop: service managers and containers wait for ten before they kill."""
_EXTRA = {"confluent_kafka", "deltalake", "duckdb", "pandas", "psycopg", "pyspark"}


_MAX_SHOWN = 100
"""Characters of an argument that an error quotes."""
_ENV_PREFIX = "SPARK_SINK"
"""What the environment variables of options begin with."""


class _Group(ProgramGroup):
    """Reports errors in one line, as click does, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SinkError as error:
            raise CommandError(str(error)) from error
        except UnicodeEncodeError as error:  # Python's text for bytes that are not UTF-8
            text = repr(error.object[:_MAX_SHOWN])
            raise CommandError(f"{text} is not text in UTF-8") from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRA:
                raise
            raise CommandError(f"the package {package} is missing; install it {INSTALL}") from error


@click.group(
    cls=_Group,
    context_settings={
        "auto_envvar_prefix": _ENV_PREFIX,
        "show_default": True,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog="Try it: start `recon-node run`, then `spark-sink run --tables ./tables`, then "
    "`spark-sink query --tables ./tables 'FROM stream_tips'`. "
    "For details, see `spark-sink COMMAND --help`.",
)
@click.version_option(package_name="recon-node")
def main() -> None:
    """Keep tables of a Ceramic node's events up to date with Spark.

    Every option can be set by an environment variable, such as SPARK_SINK_RUN_TABLES. The node and
    its token can also be set by RECON_NODE_URL, RECON_NODE_TOKEN and RECON_NODE_TOKEN_FILE.
    """
    # delta-rs logs what an error of ours says in one line.
    os.environ.setdefault("RUST_LOG", "off")
    unknown = os.environ.keys() - set(_variables(main, _ENV_PREFIX))
    for name in sorted(name for name in unknown if name.startswith(f"{_ENV_PREFIX}_")):
        echo(f"warning: the environment variable {name} is not an option", err=True)


def _variables(command: click.Command, prefix: str) -> Iterator[str]:
    """Yield the environment variables that set options of a command and its subcommands."""
    for parameter in command.params:
        yield f"{prefix}_{(parameter.name or '').upper()}"
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from _variables(subcommand, f"{prefix}_{name.replace('-', '_').upper()}")


_LOOKING = (status, check, verify, query, view, changes, export, serve)
for command in (*_LOOKING, rebuild, optimize, vacuum, forget):
    main.add_command(command)


@main.command(short_help="Keep tables up to date with a node's feed.")
@nodes_options(
    url_help="URL of the node's HTTP API. Repeat it to name fallback nodes of the same network. In "
    "the environment variable, separate them with commas."
)
@click.option(
    "--failover-after",
    type=MILLISECONDS,
    default="30s",
    help="With several nodes: how long to wait before switching to another node.",
)
@tables_option(
    required=False,
    help="Where the tables are: a directory, or s3://BUCKET/PATH; required except with --console.",
)
@click.option(
    "--table",
    "names",
    type=click.Choice(tuple(TABLES)),
    multiple=True,
    default=DERIVED,
    show_default="all",
    metavar="TABLE",
    help="Keep this table up to date, besides raw_events and unprocessed_streams; can be repeated. "
    "One of: "
    f"{', '.join(TABLES)}.",
)
@click.option(
    "--exclude-dags",
    is_flag=True,
    help="Leave out the events of DAGs (pushed files): raw_events keeps their rows without their "
    "bytes, and the other tables have none. For new tables; those that exist keep what they were "
    "made with.",
)
@click.option("--console", is_flag=True, help="Print the rows, and store nothing.")
@click.option(
    "--history",
    type=HOURS,
    show_default="1h, but no more than --history-size",
    help="How long older versions of the tables stay readable, whatever space they take: 90m, 7d.",
)
@click.option(
    "--history-size",
    type=ByteSize(),
    show_default="that of the table, at least 4 MB; with --history, no limit",
    help="How much space the files of a table's older versions may take: 500MB, 20GB.",
)
@click.option(
    "--changes",
    type=HOURS,
    show_default="as long as older versions",
    help="How long changes are kept, for `spark-sink changes` and readers of the change data feed, "
    "whatever space they take: 24h, 7d.",
)
@click.option(
    "--checkpoint",
    type=Directory(),
    metavar="DIR",
    show_default="_checkpoint in the tables' directory",
    help="Directory of Spark's checkpoint. Tables in an object store do not need one.",
)
@click.option(
    "--from-snapshot",
    metavar="URL",
    help="Fill new tables from the newest snapshot of this node at URL, such as "
    "s3://bucket/ceramic, and read only the rest from its feed. Existing tables simply continue.",
)
@click.option(
    "--snapshot-signer",
    "signers",
    multiple=True,
    metavar="DID",
    show_default="the key of the node at --url",
    help="Use only a snapshot that this did:key has signed; can be repeated. 'anyone' trusts "
    "any signer, who then decides the contents of the tables.",
)
@click.option("--once", is_flag=True, help="Stop at the feed's current head.")
@click.option(
    "--trigger",
    type=MILLISECONDS,
    default="0ms",
    help="Least time from one batch to the next: 500ms, 2s, 1m. Longer ones make fewer, larger "
    "batches.",
)
@click.option(
    "--max-rows-per-batch",
    type=click.IntRange(1),
    metavar="N",
    default=1_000_000,
    help="Maximum number of events per batch.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    show_default="number of Spark's cores, at most 8",
    help="Number of parallel requests to the node per batch.",
)
@click.option(
    "--keep-free",
    type=ByteSize(),
    default="64MB",
    help="Stop cleanly when the tables' disk has less free space than this; 0: never.",
)
@click.option(
    "--metrics", type=ADDRESS, metavar="HOST:PORT", help="Serve Prometheus metrics at this address."
)
@click.option(
    "--traces",
    is_flag=True,
    help="Send an OpenTelemetry span of each batch, as OTEL_... in the environment say.",
)
@click.option(
    "--master",
    type=MASTER,
    metavar="URL",
    show_default="that of spark-submit; else local[2], or local[1] with less than 2 GiB of memory",
    help="Spark master: local[4], spark://HOST:7077.",
)
@click.option(
    "--spark-conf",
    type=SPARK_SETTING,
    multiple=True,
    metavar="KEY=VALUE",
    help="A Spark setting; can be repeated.",
)
@click.option(
    "--driver-memory",
    type=HEAP,
    metavar="SIZE",
    show_default="1g, or a quarter of a container's memory",
    help="Heap of Spark's JVM: 512m, 2g.",
)
@click.option("--verbose", is_flag=True, help="Show Spark's own warnings.")
@json_lines_option("the start, each batch, what happens to nodes, and the end")
def run(
    trigger: int,
    failover_after: int,
    as_json: bool,
    console: bool,
    urls: tuple[str, ...],
    traces: bool,
    **options: Any,
) -> None:
    """Keep the tables up to date with a node's feed, until Ctrl-C, SIGTERM or SIGHUP.

    The next run continues where this one stops; no event is skipped or counted twice. Prints one
    line per batch. Exits with 0 when stopped, or at the head with --once; otherwise with 1 and a
    one-line error. The tables are consistent in either case.

    With several nodes, it goes on from another one when the one that it reads fails, and each event
    is still in the tables once: docs/how-to/several-nodes.md.

    \b
    Examples:
      spark-sink run --tables ./tables                 the node on this machine, until Ctrl-C
      spark-sink run --tables ./tables --once          up to the current head
      spark-sink run --tables ./tables --url http://node:5101 --token-file token
      spark-sink run --tables ./tables --url http://a:5101 --url http://b:5101
      spark-sink run --tables ./tables --table stream_states --history 7d
      spark-sink run --tables ./tables --from-snapshot s3://bucket/ceramic
      spark-sink run --console --table stream_tips
      spark-sink run --tables s3://bucket/ceramic      with AWS_... in the environment
      spark-sink run --tables /shared/tables --master spark://HOST:7077
    """
    from spark_sink.run.runner import Runner, RunSettings

    if console == (options["tables"] is not None):
        raise click.UsageError(
            "--console stores no tables: omit --tables"
            if console
            else "name the directory of the tables with --tables, or use --console"
        )
    options["spark_settings"] = dict(options.pop("spark_conf"))
    history, size = options.pop("history"), options.pop("history_size")
    if history is not None and size is None:
        size = math.inf
    options |= {"history": _HISTORY if history is None else history, "history_size": size}
    names = [name for name in options["names"] if name != RAW]
    # Without that table, nobody would know which streams are missing.
    options["names"] = tuple(dict.fromkeys([*names, UNPROCESSED])) if names else ()
    settings = RunSettings(
        urls[0],
        other_urls=urls[1:],
        failover_after=failover_after / 1000,
        trigger_ms=trigger,
        show_rows=console,
        **options,
    )
    printer = EventPrinter(
        as_json=as_json, on_closed=lambda: _stop_quietly(runner, at_once=console)
    )
    log = _Divert(quiet=not options["verbose"])
    runner = Runner(settings, printer, log.begin)
    _stop_on_signals(runner)
    try:
        with timing.traces("spark-sink", on=traces):
            runner.run()
    except SinkError as error:
        raise SinkError(f"{error}{log.hint()}") from error
    except timing.TracesError as error:
        raise SinkError(str(error)) from None
    if printer.is_closed:
        raise SystemExit(1)


def _stop_quietly(runner: "Runner", *, at_once: bool) -> None:
    """Stop: after the current batch if there is one, or `at_once`."""
    if not runner.stop() or at_once:
        runner.clean()
        os._exit(1)


def _stop_in_time(runner: "Runner") -> None:
    """Say what a stop waits for, unless it comes at once, and end the process if it takes long."""
    time.sleep(_QUICK_STOP)
    runner.report_stopping(_STOP_TIMEOUT - _QUICK_STOP)
    time.sleep(_STOP_TIMEOUT - _QUICK_STOP)
    runner.report_stopped()
    runner.clean()
    os._exit(0)


class _Divert:
    """Writes what Java and Rust say on standard error to a file; commands' own lines stay there.

    Their threads print stack traces when the disk is full or they are stopped, which say nothing
    that the command does not say in a line.
    """

    def __init__(self, *, quiet: bool) -> None:
        # Under spark-submit, Java is our parent, and its own parent has its output.
        self._is_on = quiet and "PYSPARK_GATEWAY_PORT" not in os.environ
        self._path: Path | None = None

    def begin(self, directory: Path) -> None:
        """Write to `spark-sink.log` in a directory from now on, which begins anew."""
        if not self._is_on or not _is_standard_error():
            return
        path = directory / _LOG_FILE
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        except OSError:
            return
        sys.stderr.flush()
        sys.stderr = os.fdopen(os.dup(_STANDARD_ERROR), "w", buffering=1, errors="backslashreplace")
        os.dup2(file, _STANDARD_ERROR)
        os.close(file)
        self._path = path

    def hint(self) -> str:
        """Return what names the file, for the end of a line, if there is something in it."""
        with suppress(OSError):
            if self._path is not None and self._path.stat().st_size:
                return f" (what Java and the libraries printed is in {self._path})"
        return ""


def _is_standard_error() -> bool:
    try:
        return sys.stderr.fileno() == _STANDARD_ERROR
    except (OSError, ValueError, AttributeError):  # replaced or closed
        return False


def _stop_on_signals(runner: "Runner") -> None:
    """On Ctrl-C, SIGTERM and SIGHUP, finish the current commit; else, or the second time, exit.

    Exit at once, because Spark may be starting, which cannot be interrupted. Its Java ends with us.
    So may a step that takes longer than a service manager waits: what is committed stays, and the
    next run repeats the rest.
    """
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        finishes = runner.stop()
        if not finishes or number in received:
            runner.clean()
            with suppress(RuntimeError):  # interrupted in the midst of a write
                if not finishes:
                    runner.report_stopped()
                sys.stdout.flush()
            os._exit(128 + number if finishes else 0)
        received.append(number)
        if len(received) == 1:
            threading.Thread(target=_stop_in_time, args=(runner,), daemon=True).start()

    for number in stop_signals():
        signal.signal(number, stop)
