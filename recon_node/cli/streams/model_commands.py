"""`recon-node model`, and `stream list`: the models and streams of a node."""

from pathlib import Path
from typing import Any, TypedDict

import click

from recon_node.base.connection import Connection
from recon_node.base.terminal import echo, json_option, node_options, print_json
from recon_node.cli.command import (
    make_console,
    make_table,
    number_option,
    pages,
    understood,
    write_file,
)
from recon_node.cli.streams.stream_commands import (
    JsonObject,
    client_of,
    show_document,
    writer_options,
)
from recon_node.client import Ceramic
from recon_node.client.definitions import with_defaults


@click.group()
def model() -> None:
    """List and create models, and write Python types of their documents."""


limit_option = number_option("--limit", 20, "N", "List the latest N; 0 lists all.", least=0)


class _Stream(TypedDict):
    id: str
    controller: str
    sort_key: str
    sort_value: str
    name: str | None
    model_name: str | None
    events: int


class _Model(TypedDict):
    id: str
    name: str | None
    streams: int
    events: int


@click.command("list")
@click.option("--model", metavar="STREAM_ID", help="Only documents of this model.")
@click.option("--controller", metavar="DID", help="Only streams of this controller.")
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=TEXT",
    help="Only documents whose field holds this, such as a StreamID; needs --model.",
)
@click.option(
    "--indexed",
    is_flag=True,
    help="Only documents that their authors have not hidden (shouldIndex); needs --model.",
)
@limit_option
@node_options
@json_option
def list_streams(
    model: str | None,
    controller: str | None,
    where: tuple[str, ...],
    indexed: bool,
    limit: int,
    node: Connection,
    as_json: bool,
) -> None:
    """List the streams of a node, the latest first.

    With --where or --indexed, the node looks into the documents of the model, which takes longer
    the more there are.

    \b
    Examples: all, the documents of a model, those that relate to a document
      recon-node stream list
      recon-node stream list --model kjzl6hvfrbw6c... --limit 0 --json
      recon-node stream list --model kjzl6hvfrbw6c... --where post=kjzl6kcym7w8y...
    """
    if (where or indexed) and not model:
        raise click.UsageError("--where and --indexed are about documents: give their --model, too")
    query = {"model": model, "controller": controller, "where": list(where)}
    query["indexed"] = "true" if indexed else None
    query = {name: value for name, value in query.items() if value not in (None, [])}
    listed, total = pages(node, "/ceramic/streams", "streams", query, limit)
    if as_json:
        print_json(listed)
        return
    streams = understood(node, listed, list[_Stream])
    table = make_table("stream", "of", "controller", "events", numbers=("events",))
    for stream in streams:
        of = f"model {stream['name']}" if stream["name"] else stream["model_name"]
        of = of or ("a DAG" if stream["sort_key"] == "dag" else stream["sort_value"])
        cells = (of, stream["controller"], f"{stream['events']:,}")
        table.add_row(stream["id"], *cells)
    total = len(streams) if where or indexed else total  # that of the model, then
    _print_list(table, len(streams), total, "such streams" if query else "streams")


@model.command("list")
@limit_option
@node_options
@json_option
def list_models(limit: int, node: Connection, as_json: bool) -> None:
    """List the models of a node, the latest first.

    A model is listed if its own stream is here. A node without interests gets all models of its
    network; one with interests needs one in the metamodel, kh4q0ozorrgaq2mezktnrmdwleo1d, too.

    \b
    Example: the documents of a model
      recon-node model list
      recon-node stream list --model kjzl6hvfrbw6c...
    """
    listed, total = pages(node, "/ceramic/models", "models", {}, limit)
    if as_json:
        print_json(listed)
        return
    models = understood(node, listed, list[_Model])
    table = make_table("model", "name", "streams", "events", numbers=("streams", "events"))
    for model in models:
        counts = (f"{model['streams']:,}", f"{model['events']:,}")
        table.add_row(model["id"], model["name"] or "", *counts)
    _print_list(table, len(models), total, "models")


def _print_list(table: Any, shown: int, total: int, noun: str) -> None:
    """Print a table, and say how many more entries there are."""
    if shown:
        make_console().print(table)
    if not total:
        echo(f"no {noun} here yet", err=True)
    elif total > shown:
        echo(f"{total - shown:,} more: --limit 0 lists all", err=True)


@model.command("new")
@click.argument("definition", type=JsonObject())
@writer_options
@json_option
def new_model(definition: dict[str, Any], ceramic: Ceramic, as_json: bool) -> None:
    """Create a model from its DEFINITION, and print its StreamID.

    DEFINITION is a JSON object, @FILE, or - for standard input: version, name, schema,
    accountRelation and so on, see docs/api.md. Missing fields with a default are added: version
    2.0, an account relation of the type list, and no interface.

    \b
    Example:
      recon-node model new --key my.key \\
        '{"name": "Post", "schema": {"properties": {"title": {"type": "string"}}}}'
    """
    show_document(ceramic.create_model(with_defaults(definition)), as_json)


@model.command("codegen")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write to this file, instead of standard output.",
)
@node_options
def codegen(models: tuple[str, ...], out: Path | None, node: Connection) -> None:
    """Write Python types of the documents of each MODEL, a StreamID.

    They are TypedDicts, for mypy and pyright; they need only the standard library. The models that
    these relate to, or implement, are written, too. The same models give the same text.

    \b
    Example:
      recon-node model codegen kjzl6hvf... --out blog_models.py
    """
    from recon_node.client.codegen import read_models, typed_dicts

    with client_of(node) as ceramic:
        code = typed_dicts(read_models(ceramic, models))
    if out is None:
        echo(code.removesuffix("\n"), lines=True)
    else:
        write_file(out, code.encode())
