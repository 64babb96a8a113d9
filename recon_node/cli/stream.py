"""`recon-node stream show`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.cli.errors import CommandError
from recon_node.cli.output import json_option

if TYPE_CHECKING:
    from recon_node.streams.picture import HeldEvent, StreamPicture


@click.group()
def stream() -> None:
    """Look at streams."""


@stream.command("show")
@click.argument("stream_id")
@node_options
@drawing_options
@click.option("--full", is_flag=True, help="Name events by their whole CIDs.")
@json_option
def show(stream_id: str, node: NodeApi, drawing: Drawing, full: bool, as_json: bool) -> None:
    """Draw the events of the stream STREAM_ID that are at a node, the newest first.

    STREAM_ID is a StreamID (k...), with or without ceramic:// before it, or the CID of the stream's
    init event. The picture marks the tip (CIP-145), what was anchored, and the branches that are
    pruned; below it stands what decided, and how to merge a stream that has diverged. Events that
    wait for others, or for the lookup of an anchor, are shown and do not count. A capability that
    has expired makes the events by it count no more, unless they were anchored before.

    \b
    Examples:
      recon-node stream show kjzl6kcym7w8y7...
      recon-node stream show bagcqcera... --all --limit 0 --svg stream.svg
    """
    from recon_node.streams import StreamShapeError
    from recon_node.streams.picture import stream_picture

    bare = stream_id.removeprefix("ceramic://")
    if not bare or "/" in bare:
        raise CommandError(f"{stream_id!r} is not a StreamID: it is one word, k... or a CID")
    answer = ask(node, "GET", f"/ceramic/streams/{bare}/events").json()
    try:
        drawn = stream_picture(
            f"Stream {answer['id']}",
            map(held_event, answer["events"]),
            int(time.time()),
            full=full,
        )
    except StreamShapeError as error:
        raise CommandError(f"the node's events are not one whole stream: {error}") from None
    if as_json:
        click.echo(json.dumps({**answer, **_describe(drawn)}, indent=2))
    else:
        show_picture(drawn.picture, drawing)


def held_event(told: dict[str, Any]) -> HeldEvent:
    """An event as the node's API tells of it."""
    from recon_node.ipld import CID
    from recon_node.streams import StreamEvent
    from recon_node.streams.picture import HeldEvent

    shape = StreamEvent(
        id=CID.parse(told["cid"]),
        kind=told["kind"],
        prev=tuple(map(CID.parse, told["prev"])),
        time=told["time"],
        expires=told["expires"],
    )
    return HeldEvent(shape, told["height"], told["state"], told["chain_id"])


def _describe(drawn: StreamPicture) -> dict[str, Any]:
    tip = drawn.tip
    if tip is None:
        return {"tip": None}
    return {
        "tip": str(tip.event),
        "data_tip": _texts(tip.data_tip),
        "anchored_at": _texts(tip.anchored_at),
        "candidates": _texts(tip.candidates),
        "pruned": _texts(tip.pruned),
        "diverged": tip.diverged,
        "decisions": [
            {
                "rule": each.rule.value,
                "winner": str(each.winner),
                "rivals": _texts(each.rivals),
            }
            for each in tip.reasons
        ],
        "merge": _texts(drawn.merge),
    }


def _texts(ids: Iterable[object]) -> list[str]:
    return [str(each) for each in ids]
