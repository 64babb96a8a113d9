"""`recon-node stream show`; lists are in `listing`, and what writes streams is in `writing`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from recon_node.cli.anchor import anchor_stream
from recon_node.cli.client import node_options
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.cli.listing import list_streams
from recon_node.cli.output import CommandError
from recon_node.cli.writing import get_stream, merge_stream, new_stream, update_stream
from recon_node.connection import Connection
from recon_node.ipld import CID
from recon_node.streams import StreamEvent, StreamShapeError
from recon_node.streams.picture import HeldEvent, StreamPicture, stream_picture


@click.group()
def stream() -> None:
    """List, draw, read, create, change, merge and anchor streams."""


stream.add_command(list_streams)
stream.add_command(get_stream)
stream.add_command(new_stream)
stream.add_command(update_stream)
stream.add_command(merge_stream)
stream.add_command(anchor_stream)


@stream.command("show")
@click.argument("stream_id")
@node_options
@drawing_options
@click.option("--full", is_flag=True, help="Show the full CIDs of events.")
def show(stream_id: str, node: Connection, drawing: Drawing, full: bool) -> None:
    """Draw the events of the stream STREAM_ID that a node has, the newest first.

    STREAM_ID is a StreamID (k...), with or without ceramic:// before it, or the CID of the stream's
    init event. The picture marks the tip (CIP-145), anchored events, and pruned branches; the text
    below it explains how the tip was chosen, and how to merge a stream that has diverged. Events
    that wait for others, or for the lookup of an anchor, are shown but do not count. Neither do
    events whose capability has expired, unless they were anchored before.

    \b
    Examples:
      recon-node stream show kjzl6kcym7w8y7...
      recon-node stream show bagcqcera... --all --limit 0 --svg stream.svg
    """
    bare = stream_id.removeprefix("ceramic://")
    if not bare or "/" in bare:
        raise CommandError(f"{stream_id!r} is not a StreamID (k...) or a CID")
    answer = node.request("GET", f"/ceramic/streams/{bare}/events")
    try:
        drawn = stream_picture(
            f"Stream {answer['id']}",
            held_events(answer["events"]),
            int(time.time()),
            full=full,
        )
    except StreamShapeError as error:
        raise CommandError(f"the node's events are not one complete stream: {error}") from None
    show_picture(drawn.picture, drawing, {**answer, **_describe(drawn)})


def held_events(entries: list[dict[str, Any]]) -> Iterator[HeldEvent]:
    """Yield the events of the API's JSON, without further copies of a statement."""
    shown = {entry["cid"]: entry["copy_of"] or entry["cid"] for entry in entries}
    for entry in entries:
        if entry["copy_of"] is None:
            prevs = dict.fromkeys(shown.get(prev, prev) for prev in entry["prev"])
            shape = StreamEvent(
                id=CID.parse(entry["cid"]),
                kind=entry["kind"],
                prev=tuple(map(CID.parse, prevs)),
                time=entry["time"],
                valid=entry["fault"] is None,
                expires=entry["expires"],
                rank=bytes.fromhex(entry["rank"]),
            )
            yield HeldEvent(shape, entry["height"], entry["state"], entry["chain_id"])


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
