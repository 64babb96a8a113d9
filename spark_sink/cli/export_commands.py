"""The commands that copy tables to other systems, and keep the copies up to date."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from recon_node.base.program import cleaned_up_when_stopped
from spark_sink.cli.event_printer import EventPrinter, json_lines_option
from spark_sink.cli.options import MILLISECONDS, STORAGE_OPTION, tables_option

if TYPE_CHECKING:
    from spark_sink.export.following import Take, Taken
    from spark_sink.tables.location import Location

LEAST_PAUSE: Final = 10
"""Milliseconds between two looks at the tables."""


def _check_pause(context: click.Context, option: click.Parameter, milliseconds: int) -> int:
    if milliseconds < LEAST_PAUSE:
        raise click.BadParameter(f"less than {LEAST_PAUSE}ms would keep a core busy")
    return milliseconds


_names = click.argument("names", nargs=-1, metavar="[TABLE]...")
_every = click.option(
    "--every",
    type=MILLISECONDS,
    default="1s",
    callback=_check_pause,
    help="How often to look at the tables.",
)
_once = click.option("--once", is_flag=True, help="Stop when the copies are up to date.")


@click.group(short_help="Copy tables to a database or a broker, and keep the copies up to date.")
def export() -> None:
    """Copy tables and views to other systems, exactly once, and keep the copies up to date.

    By default, stream_states and all typed views.
    """


@export.command(short_help="Copy tables to a PostgreSQL database.")
@tables_option()
@_names
@click.option(
    "--to",
    "address",
    default="",
    metavar="URL",
    show_default="what PGHOST and the like say",
    help="The database: postgresql://USER@HOST/DATABASE. Leave the password to PGPASSWORD, "
    "PGPASSFILE or ~/.pgpass.",
)
@click.option(
    "--schema", default="ceramic", help="The schema of the tables; created if it does not exist."
)
@_every
@_once
@json_lines_option("what was copied, and when the database does not answer")
def postgres(tables: Location, address: str, schema: str, **options: Any) -> None:
    """Copy tables to a PostgreSQL database, and keep the copies up to date until Ctrl-C or SIGTERM.

    Each change of a table is one transaction, which also records the position that it reaches. So
    the next call continues where this one ended, even if it was killed.

    \b
    Examples:
      spark-sink export postgres --tables ./tables --to postgresql://me@db/app
      spark-sink export postgres --tables ./tables --to postgresql:///app --once posts
    """
    from spark_sink.export.postgres import Postgres

    with closing(Postgres(address, schema)) as target:
        _follow(tables, target.take, **options)


@export.command(short_help="Send changes of tables to topics of Kafka.")
@tables_option()
@_names
@click.option(
    "--to",
    "servers",
    required=True,
    metavar="HOST:PORT[,...]",
    help="Servers of the cluster; one that answers is enough.",
)
@click.option("--prefix", default="ceramic", help="Of the topics' names: PREFIX.TABLE.")
@click.option(
    "--setting",
    "settings",
    type=STORAGE_OPTION,
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of librdkafka, such as security.protocol=SASL_SSL; can be repeated.",
)
@_every
@_once
@json_lines_option("what was sent, and when the cluster does not answer")
def kafka(
    tables: Location,
    servers: str,
    prefix: str,
    settings: tuple[tuple[str, str], ...],
    **options: Any,
) -> None:
    """Send each new and changed row to a topic of Kafka, until Ctrl-C or SIGTERM.

    The topic is PREFIX.TABLE, the key of a message is the CID of the row's stream, and its value
    the row, as `spark-sink changes` prints it. All changes since the last time are one transaction,
    which also writes the position that it reaches to PREFIX.positions.

    \b
    Examples:
      spark-sink export kafka --tables ./tables --to localhost:9092 raw_events stream_states
    """
    from spark_sink.export.kafka import Kafka

    with closing(Kafka(servers, prefix, dict(settings))) as target:
        _follow(tables, target.take, **options)


def _follow(
    tables: Location, take: Take, *, names: tuple[str, ...], every: int, once: bool, as_json: bool
) -> None:
    from spark_sink.export.following import follow

    print_event = EventPrinter(as_json=as_json)

    def on_taken(name: str, taken: Taken) -> None:
        facts = {"table": name, "rows": taken.rows, "position": taken.position}
        print_event("copied", facts | ({"refused": taken.refused} if taken.refused else {}))

    try:
        with cleaned_up_when_stopped():
            follow(
                tables,
                names,
                take,
                every=None if once else every / 1000,
                on_taken=on_taken,
                on_unreachable=lambda reason: print_event("waiting", {"reason": reason}),
            )
    except (KeyboardInterrupt, SystemExit):  # what has begun is undone; the next call repeats it
        print_event("stopped", {})
