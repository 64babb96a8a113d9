"""The command `spark-sink serve`."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from recon_node.base.program import allow_files, cleaned_up_when_stopped
from recon_node.base.terminal import ByteSize, CommandError, token_in
from spark_sink.cli.event_printer import EventPrinter, json_lines_option
from spark_sink.cli.options import ADDRESS, MILLISECONDS, node_options, tables_option

_MIN_TOKEN = 16
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(short_help="Serve the tables by Arrow Flight SQL.")
@tables_option()
@node_options(url=None, url_help="URL of the node whose events are in the tables; see --max-wait.")
@click.option(
    "--max-wait",
    type=MILLISECONDS,
    default="5s",
    help="With --url: how long a query waits until the tables have all events that the node has, "
    "if they are at most 1,000 behind.",
)
@click.option(
    "--listen",
    type=ADDRESS,
    default="127.0.0.1:5102",
    metavar="HOST:PORT",
    help="Address to listen on.",
)
@click.option(
    "--auth-token",
    metavar="TOKEN",
    show_envvar=True,
    help="What clients must send. Other users of this machine can see it on the command line: "
    "prefer the variable or --auth-token-file.",
)
@click.option("--auth-token-file", type=_FILE, metavar="FILE", help="File with that token.")
@click.option(
    "--anonymous", is_flag=True, help="Let other machines read the tables without a token."
)
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate chain for TLS (PEM).")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="Key of the certificate (PEM).")
@click.option(
    "--max-queries",
    type=click.IntRange(1, 256),
    default=4,
    metavar="N",
    help="Queries at the same time.",
)
@click.option(
    "--max-feeds",
    type=click.IntRange(0, 256),
    default=16,
    metavar="N",
    help="Open feeds at the same time.",
)
@click.option("--timeout", type=MILLISECONDS, default="60s", help="Longest query: 60s, 5m.")
@click.option("--memory", type=ByteSize(), default="512MB", help="Memory of a query or feed.")
@click.option(
    "--threads", type=click.IntRange(1, 64), default=2, metavar="N", help="Threads of a query."
)
@click.option(
    "--metrics", type=ADDRESS, metavar="HOST:PORT", help="Serve Prometheus metrics at this address."
)
@json_lines_option("the start, with the address, and the end")
def serve(
    tables: Any,
    url: str | None,
    token: str | None,
    max_wait: int,
    listen: str,
    auth_token: str | None,
    auth_token_file: Path | None,
    anonymous: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_queries: int,
    max_feeds: int,
    timeout: int,
    memory: int,
    threads: int,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Serve the tables to Arrow Flight SQL clients, until Ctrl-C, SIGTERM or SIGHUP.

    Clients are the Ceramic JavaScript SDK, ADBC, JDBC and the BI tools on top of it. The tables and
    functions of ceramic-one's server are in the schema v0, the default, and those of spark-sink in
    the schema tables. NAME_feed has the rows of the table NAME, and then those to come. Nothing can
    be written. Each query runs in a process of its own. Prints a line when it can be reached, one
    if there are no tables yet, and one when it has stopped.

    \b
    Examples:
      spark-sink serve --tables ./tables
      spark-sink serve --tables ./tables --url http://127.0.0.1:5101
      spark-sink serve --tables ./tables --listen 0.0.0.0:5102 --auth-token-file token \\
          --tls-cert server.pem --tls-key server.key
    """
    from spark_sink.exposition import served
    from spark_sink.schema import TABLES
    from spark_sink.serve.flight_server import FILES, FlightMetrics, FlightServer
    from spark_sink.serve.query_turns import QueryLimits
    from spark_sink.source.feed_client import Feed
    from spark_sink.tables.catalog import is_table, no_tables

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("TLS needs both --tls-cert and --tls-key")
    limits = QueryLimits(
        queries=max_queries,
        feeds=max_feeds,
        seconds=max(1, round(timeout / 1000)),
        memory_mb=max(1, memory // 1024**2),
        threads=threads,
    )
    auth_token = _checked_token(auth_token, auth_token_file)
    allow_files(FILES)
    printer = EventPrinter(as_json=as_json)
    measured = FlightMetrics(limits)
    with served(measured.registry, metrics) as metrics_url:
        server = FlightServer(
            tables,
            listen,
            limits,
            measured,
            token=auth_token,
            certificate=None if tls_cert is None or tls_key is None else (tls_cert, tls_key),
            anonymous=anonymous,
            node=None if url is None else Feed(url, token=token),
            max_wait=max_wait / 1000,
        )
        with cleaned_up_when_stopped():
            with suppress(KeyboardInterrupt, SystemExit):
                printer("serving", {"tables": tables, "url": server.url, "metrics": metrics_url})
                # A store is not asked: that takes a request per table, and it may be down just now.
                if isinstance(tables, Path) and not any(is_table(tables / name) for name in TABLES):
                    printer("no_tables", {"reason": str(no_tables(tables))})
                server.wait()
            server.stop()
        printer("stopped", {"url": server.url})


def _checked_token(token: str | None, file: Path | None) -> str | None:
    """Return the token of the options, which must be hard to guess."""
    if file is not None:
        if token:
            raise click.UsageError("use --auth-token or --auth-token-file, not both")
        token = token_in(file)
    elif token is None:
        return None
    if not token or len(token) < _MIN_TOKEN:
        raise CommandError(
            f"the token has fewer than {_MIN_TOKEN} characters, which is easy to guess: "
            "use one from `openssl rand -hex 32`"
        )
    return token
