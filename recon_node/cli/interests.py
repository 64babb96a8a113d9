"""`recon-node interests list`, `add` and `remove`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.errors import CommandError
from recon_node.cli.output import json_option, make_console, make_table

if TYPE_CHECKING:
    from recon_node.ceramic import StreamId
    from recon_node.store import Interest

EVERYTHING = "no interests: the node syncs everything of its network"


@click.group()
def interests() -> None:
    """List what a node syncs with its peers, and change it.

    A node without interests syncs everything of its network; the first interest narrows that.
    The setting `interests` (`recon-node run --interest`) names some before the first sync.
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
        click.echo(EVERYTHING)
        return
    names = ("sep", "sepValue", "controller", "streamId")
    table = make_table("sort key", "sort value", "controller", "stream", "from")
    for interest in found:
        source = "settings" if interest.get("configured") else "API"
        table.add_row(*(interest.get(name, "any") for name in names), source)
    make_console().print(table)


@interests.command("add")
@click.argument("interest", nargs=-1, required=True)
@node_options
def add_interest(node: NodeApi, interest: tuple[str, ...]) -> None:
    """Make a node sync the events of INTEREST.

    INTEREST is a StreamID, of a model for all its documents or of a document for that one alone, or
    fields: model=STREAM_ID, controller=DID, stream=STREAM_ID. A document that is not here yet needs
    all three. Instead of a model, another sort key may be given with its value: family=blog. The
    values of unique, context and dag are multibase text.

    \b
    Examples: the documents of a model, those of one controller, one document, and all models
      recon-node interests add kjzl6hvfrbw6c...
      recon-node interests add model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
      recon-node interests add kjzl6kcym7w8y...
      recon-node interests add kh4q0ozorrgaq2mezktnrmdwleo1d
    """
    ask(node, "POST", "/ceramic/interests", json=_as_json(_parse(interest)))
    click.echo(f"the node syncs {' '.join(interest)} from now on")


@interests.command("remove")
@click.argument("interest", nargs=-1, required=True)
@node_options
def remove_interest(node: NodeApi, interest: tuple[str, ...]) -> None:
    """Make a node forget INTEREST, which is written as for `interests add`.

    Events that are here stay. Without its last interest, a node syncs everything of its network.

    \b
    Examples:
      recon-node interests remove kjzl6hvfrbw6c...
      recon-node interests remove model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
    """
    ask(node, "DELETE", "/ceramic/interests", params=_as_json(_parse(interest)))
    click.echo(f"the interest {' '.join(interest)} is removed")
    if not ask(node, "GET", "/ceramic/experimental/interests").json()["interests"]:
        click.echo(EVERYTHING)


def _parse(fields: tuple[str, ...]) -> Interest | StreamId:
    from recon_node.store import InvalidInterestError, parse_interest

    try:
        return parse_interest(" ".join(fields))
    except InvalidInterestError as error:
        raise CommandError(str(error)) from None


def _as_json(wanted: Interest | StreamId) -> dict[str, Any]:
    """An interest as the API takes it."""
    from recon_node.ceramic import StreamId

    if isinstance(wanted, StreamId):
        return {"streamId": str(wanted)}
    told = {"sep": wanted.sort_key, "sepValue": wanted.sort_value}
    if wanted.controller is not None:
        told["controller"] = wanted.controller
    if wanted.stream_id is not None:
        told["streamId"] = str(wanted.stream_id)
    return told
