"""`recon-node interests`: the interests of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import click

from recon_node.base.connection import Connection, Request
from recon_node.base.terminal import (
    CommandError,
    echo,
    json_option,
    node_options,
    print_json,
    print_result,
)
from recon_node.cli.command import understood

if TYPE_CHECKING:
    from recon_node.ceramic import StreamId
    from recon_node.store import Interest

USUAL_SORT_KEYS = ("model", "controllers", "context", "unique", "dag")
EVERYTHING = "no interests: the node syncs everything on its network"


class ListedInterest(TypedDict):
    """An interest of a node, as it lists it."""

    sep: str
    sepValue: str
    controller: NotRequired[str]
    controllers: NotRequired[str]
    streamId: NotRequired[str]
    configured: NotRequired[bool]


def interest_text(interest: ListedInterest) -> str:
    """Return an interest as `recon-node interests add` takes it."""
    fields = (
        (interest["sep"], interest["sepValue"]),
        ("controller", interest.get("controller")),
        ("controllers", interest.get("controllers")),
        ("stream", interest.get("streamId")),
    )
    return " ".join(f"{name}={value}" for name, value in fields if value is not None)


@click.group()
def interests() -> None:
    """List and change the interests of a node: the events that it syncs with its peers.

    A node without interests syncs everything on its network; the first interest narrows that. To
    set interests before the first sync, use the setting `interests` (`recon-node run --interest`).
    """


@interests.command("list")
@node_options
@json_option
def list_interests(node: Connection, as_json: bool) -> None:
    """List the interests of a node, one per line, as `interests add` and `remove` take them.

    "(settings)" marks interests in the node's settings, which can only be removed there.

    \b
    Example:
      recon-node interests list --json
    """
    entries = _interests_of(node)
    if as_json:
        print_json(entries)
        return
    if not entries:
        echo(EVERYTHING)
        return
    if not all(isinstance(entry, dict) and "sep" in entry for entry in entries):
        raise CommandError(
            "the node lists its interests in a form that cannot be shown here, as a ceramic-one "
            "node does: --json prints it"
        )
    for interest in understood(node, entries, list[ListedInterest]):
        source = "  (settings)" if interest.get("configured") else ""
        echo(f"{interest_text(interest)}{source}")


@interests.command("add")
@click.argument("interest", nargs=-1, required=True)
@node_options
@json_option
def add_interest(node: Connection, interest: tuple[str, ...], as_json: bool) -> None:
    """Make a node sync the events of INTEREST.

    INTEREST is a StreamID or a list of fields. A model's StreamID stands for all documents of the
    model, a document's for that document alone. The fields are model=STREAM_ID, controller=DID and
    stream=STREAM_ID; a document that the node does not have yet needs all three. Another sort key
    can replace the model: family=blog. The values of unique, context and dag are multibase text.
    shard=1/4 is the first of four parts of a model, cut by controller.

    \b
    Examples: the documents of a model, those of one controller, one document, a shard, all models
      recon-node interests add kjzl6hvfrbw6c...
      recon-node interests add model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
      recon-node interests add kjzl6kcym7w8y...
      recon-node interests add model=kjzl6hvfrbw6c... shard=1/4
      recon-node interests add kh4q0ozorrgaq2mezktnrmdwleo1d
    """
    from recon_node.store import Interest  # half a second

    wanted = _parse(interest)
    answer = node.exchange(Request("POST", "/ceramic/interests", json=_as_json(wanted))).check()
    print_result(
        {"added": _as_json(wanted), "interests": _interests_of(node)},
        f"the node syncs {' '.join(interest)} from now on",
        as_json=as_json,
    )
    if answer.warning:
        echo(answer.warning, err=True)
    if isinstance(wanted, Interest) and wanted.sort_key not in USUAL_SORT_KEYS:
        echo(
            f"note: {wanted.sort_key!r} is not a usual sort key ({', '.join(USUAL_SORT_KEYS)}); "
            "it stands for all streams with this value, whatever their sort key, and ceramic-one "
            "nodes do not share it",
            err=True,
        )


@interests.command("remove")
@click.argument("interest", nargs=-1, required=True)
@node_options
@json_option
def remove_interest(node: Connection, interest: tuple[str, ...], as_json: bool) -> None:
    """Remove INTEREST, written as for `interests add`.

    The node keeps the events that it has. Without any interests, it syncs everything on its
    network.

    \b
    Examples:
      recon-node interests remove kjzl6hvfrbw6c...
      recon-node interests remove model=kjzl6hvfrbw6c... controller=did:key:z6Mk...
    """
    meant = _as_json(_parse(interest))
    node.request("DELETE", "/ceramic/interests", params=meant)
    left = _interests_of(node)
    text = f"removed the interest {' '.join(interest)}"
    print_result(
        {"removed": meant, "interests": left},
        text if left else f"{text}\n{EVERYTHING}",
        as_json=as_json,
    )


def _interests_of(node: Connection) -> list[Any]:
    answer = node.request("GET", "/ceramic/experimental/interests")
    return understood(node, answer["interests"], list[Any])


def _parse(fields: tuple[str, ...]) -> Interest | StreamId:
    from recon_node.store import InvalidInterestError, parse_interest  # half a second

    try:
        return parse_interest(" ".join(fields))
    except InvalidInterestError as error:
        raise CommandError(str(error)) from None


def _as_json(wanted: Interest | StreamId) -> dict[str, Any]:
    """Return an interest as the API takes it."""
    from recon_node.ceramic import StreamId  # a tenth of a second, which `peers` does not need

    if isinstance(wanted, StreamId):
        return {"streamId": str(wanted)}
    body = {"sep": wanted.sort_key, "sepValue": wanted.sort_value}
    if wanted.controller is not None:
        body["controller"] = wanted.controller
    if wanted.controllers is not None:
        body["controllers"] = str(wanted.controllers)
    if wanted.stream_id is not None:
        body["streamId"] = str(wanted.stream_id)
    return body
