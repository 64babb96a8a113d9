"""`recon-node stream list` and `recon-node model list`: what a node has, the latest first."""

from __future__ import annotations

from typing import Any, Final, NotRequired, TypedDict

import click

from recon_node.base.connection import Connection, NotANodeError
from recon_node.base.terminal import echo, json_option, print_json
from recon_node.cli.client import node_options, understood
from recon_node.cli.output import make_console, make_table, number_option

_PAGE: Final = 1000

limit_option = number_option("--limit", 20, "N", "List the latest N; 0 lists all.", least=0)


class _Stream(TypedDict):
    id: str
    controller: str
    sort_value: str
    name: str | None
    model_name: str | None
    events: int


class _Model(TypedDict):
    id: str
    name: str | None
    streams: int
    events: int


class _Page(TypedDict):
    next: int | None
    total: NotRequired[int]


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
    """List the streams of a node, those that arrived last first.

    With --where or --indexed, the node looks into the documents of the model, which takes longer
    the more there are.

    \b
    Examples: all, the documents of a model, those that relate to a document
      recon-node stream list
      recon-node stream list --model kjzl6hvfrbw6c... --limit 0 --json
      recon-node stream list --model kjzl6hvfrbw6c... --where post=kjzl6kcym7w8y...
    """
    query = {"model": model, "controller": controller, "where": list(where)}
    query["indexed"] = "true" if indexed else None
    query = {name: value for name, value in query.items() if value not in (None, [])}
    listed, total = pages(node, "/ceramic/streams", "streams", query, limit)
    if as_json:
        print_json(listed)
        return
    streams = understood(node, listed, list[_Stream])
    table = make_table("stream", "model", "controller", "events", numbers=("events",))
    for stream in streams:
        kind = stream["name"] or stream["model_name"] or stream["sort_value"]
        table.add_row(stream["id"], kind, stream["controller"], f"{stream['events']:,}")
    if where or indexed:
        _print_list(table, len(streams), len(streams), "such documents")
    else:
        _print_list(table, len(streams), total, "streams")


@click.command("list")
@limit_option
@node_options
@json_option
def list_models(limit: int, node: Connection, as_json: bool) -> None:
    """List the models of a node, those that arrived last first.

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


def pages(
    node: Connection, path: str, name: str, query: dict[str, Any], limit: int
) -> tuple[list[Any], int]:
    """Read a list of the API page by page.

    `name` is that of the entries in the answer. A limit of 0 is none.

    Returns:
        the entries, and how many there are in all (0 if the list does not say).
    """
    entries: list[Any] = []
    query = {**query, "limit": min(limit or _PAGE, _PAGE)}
    while True:
        answer = node.request("GET", path, params=query)
        entries += understood(node, answer[name], list[Any])
        page = understood(node, answer, _Page)
        if page["next"] is None or (limit and len(entries) >= limit):
            return entries[: limit or None], page.get("total", 0)
        if page["next"] == query.get("after"):
            raise NotANodeError  # it would never end
        query["after"] = page["next"]


def _print_list(table: Any, shown: int, total: int, noun: str) -> None:
    """Print a table, and say how many more entries there are."""
    if shown:
        make_console().print(table)
    if not total:
        echo(f"no {noun} here yet", err=True)
    elif total > shown:
        echo(f"{total - shown:,} more: --limit 0 lists all", err=True)
