"""The commands for typed views of models. None of them needs Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recon_node.base.terminal import counted, echo, json_option, print_json, print_result
from recon_node.ceramic import StreamId, StreamIdError
from spark_sink.cli.options import tables_option

if TYPE_CHECKING:
    from spark_sink.tables.location import Location


@click.group(short_help="Create, list and drop tables with a model's fields as columns.")
def view() -> None:
    """Typed views of models: a table with a row for each document, and a column for each field.

    A view is a Delta table in the directory `views` of the tables, which spark-sink run keeps up to
    date. `query` knows it by its name, and `serve` as views.NAME.
    """


@view.command(short_help="Create a view of a model.")
@tables_option()
@click.argument("model", metavar="MODEL")
@click.option(
    "--as", "name", metavar="NAME", show_default="the model's name", help="Name of the view."
)
@json_option
def create(tables: Location, model: str, name: str | None, as_json: bool) -> None:
    """Create a view of MODEL, a StreamID, with the columns of its JSON Schema.

    Fills it, unless spark-sink run is at work: then that does, within seconds. A value that does
    not fit its column is null, and the column `misfits` says why.

    \b
    Examples:
      spark-sink view create --tables ./tables kjzl6hvfrbw6c...
      spark-sink view create --tables ./tables kjzl6hvfrbw6c... --as posts
    """
    from spark_sink.errors import ConflictError
    from spark_sink.tables.catalog import open_view
    from spark_sink.tables.tables import lock
    from spark_sink.views.keeping import Views, create_view

    try:
        stream = StreamId.parse(model)
    except StreamIdError as error:
        raise click.BadParameter(str(error), param_hint="'MODEL'") from None
    name = create_view(tables, stream, name)
    try:
        with lock(tables, make=False):
            rows: int | None = Views(tables).fill(name)
    except ConflictError:
        rows = None
    columns = open_view(tables, name)[0].schema.names
    done = "spark-sink run fills it" if rows is None else counted(rows, "row")
    text = f"{name}: {done}; columns {', '.join(columns)}"
    print_result({"name": name, "rows": rows, "columns": columns}, text, as_json=as_json)


@view.command("list", short_help="List the views.")
@tables_option()
@json_option
def list_(tables: Location, as_json: bool) -> None:
    """List the views: name, model, position, rows, and how many of these have misfits."""
    from spark_sink.views.keeping import list_views

    views = list_views(tables)
    if as_json:
        print_json({"views": views})
        return
    for status in views:
        echo(
            f"{status['name']:24} {counted(status['rows'], 'row'):>15}, {status['misfits']:,} with "
            f"misfits, position {status['position']}, model {status['model']}"
        )
    if not views:
        echo("no views: spark-sink view create makes them", err=True)


@view.command(short_help="Delete a view.")
@tables_option()
@click.argument("name", metavar="NAME")
@json_option
def drop(tables: Location, name: str, as_json: bool) -> None:
    """Delete the view NAME and its files. The tables keep all that it was made from."""
    from spark_sink.views.keeping import drop_view

    drop_view(tables, name)
    print_result({"name": name}, f"{name} is dropped", as_json=as_json)
