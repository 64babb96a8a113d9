"""`recon-node interests list` and `recon-node interests add`."""

from __future__ import annotations

import json
from typing import Any

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.output import json_option, make_console, make_table


@click.group()
def interests() -> None:
    """List what a node wants, and add to it.

    A node without interests wants everything of its network; its first one narrows that.
    """


@interests.command("list")
@node_options
@json_option
def list_interests(node: NodeApi, as_json: bool) -> None:
    """List the interests of a node.

    \b
    Example:
      recon-node interests list --json
    """
    found = ask(node, "GET", "/ceramic/experimental/interests").json()["interests"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo("no interests: the node wants everything of its network")
        return
    names = ("sep", "sepValue", "controller", "streamId")
    table = make_table("sort key", "sort value", "controller", "stream")
    for interest in found:
        table.add_row(*(interest.get(name, "any") for name in names))
    make_console().print(table)


@interests.command("add")
@click.argument("sort_value")
@click.option("--sort-key", default="model", show_default=True, help="A field of events' headers.")
@click.option("--controller", metavar="DID", help="Only the streams of this DID.")
@click.option("--stream", metavar="STREAM_ID", help="Only this stream; needs --controller.")
@node_options
def add_interest(
    node: NodeApi, sort_value: str, sort_key: str, controller: str | None, stream: str | None
) -> None:
    """Make a node want the events of SORT_VALUE: a model's StreamID, as a rule.

    \b
    Examples: the documents of a model, and all models
      recon-node interests add kjzl6hvfrbw6c...
      recon-node interests add kh4q0ozorrgaq2mezktnrmdwleo1d
    """
    body: dict[str, Any] = {"sep": sort_key, "sepValue": sort_value}
    if controller is not None:
        body["controller"] = controller
    if stream is not None:
        body["streamId"] = stream
    ask(node, "POST", "/ceramic/interests", json=body)
    click.echo(f"the node wants {sort_key} {sort_value} from now on")
