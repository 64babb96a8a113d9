"""`recon-node interests list`, `add` and `remove`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.errors import CommandError
from recon_node.cli.output import interest_text, json_option

if TYPE_CHECKING:
    from recon_node.ceramic import StreamId
    from recon_node.store import Interest

USUAL_SORT_KEYS = ("model", "controllers", "context", "unique", "dag")
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
    """List the interests of a node, one a line, as `interests add` and `remove` take them.

    "(settings)" marks those of the node's settings, which can only be removed there.

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
    for each in found:
        source = "  (settings)" if each.get("configured") else ""
        click.echo(f"{interest_text(each)}{source}")


@interests.command("add")
@click.argument("interest", nargs=-1, required=True)
@node_options
def add_interest(node: NodeApi, interest: tuple[str, ...]) -> None:
    """Make a node sync the events of INTEREST.

    INTEREST is a StreamID or a list of fields. A model's StreamID stands for all its documents, a
    document's for that document alone. The fields are model=STREAM_ID, controller=DID and
    stream=STREAM_ID; a document that the node does not have yet needs all three. Any other sort key
    can take the place of the model: family=blog. The values of unique, context and dag are
    multibase text.

    \b
    Examples: the documents of a model, those of one controller, one document, and all models
      recon-node interests add kjzl6hvfrbw6c...
      recon-node interests add model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
      recon-node interests add kjzl6kcym7w8y...
      recon-node interests add kh4q0ozorrgaq2mezktnrmdwleo1d
    """
    from recon_node.store import Interest

    wanted = _parse(interest)
    ask(node, "POST", "/ceramic/interests", json=_as_json(wanted))
    click.echo(f"the node syncs {' '.join(interest)} from now on")
    if isinstance(wanted, Interest) and wanted.sort_key not in USUAL_SORT_KEYS:
        click.echo(
            f"note: {wanted.sort_key!r} is not a usual sort key ({', '.join(USUAL_SORT_KEYS)}); "
            "only events whose header names it as `sep` match",
            err=True,
        )


@interests.command("remove")
@click.argument("interest", nargs=-1, required=True)
@node_options
def remove_interest(node: NodeApi, interest: tuple[str, ...]) -> None:
    """Remove INTEREST, which is written as for `interests add`.

    The node keeps the events that it has. Without interests it syncs everything of its network.

    \b
    Examples:
      recon-node interests remove kjzl6hvfrbw6c...
      recon-node interests remove model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
    """
    ask(node, "DELETE", "/ceramic/interests", params=_as_json(_parse(interest)))
    click.echo(f"removed the interest {' '.join(interest)}")
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
