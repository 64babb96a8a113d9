"""`recon-node stream show`: a stream as a picture."""

import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypedDict

import click
from msgspec import Meta

from recon_node.base.connection import Connection, segment
from recon_node.base.terminal import CommandError, node_options
from recon_node.cli.command import understood
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.ipld import CID, IpldError
from recon_node.streams import EventShape
from recon_node.streams.picture import HeldEvent, Progress, StreamPicture, stream_picture


@click.command("show")
@click.argument("stream_id")
@node_options
@drawing_options
@click.option("--full", is_flag=True, help="Show the full CIDs of events.")
def show_stream(stream_id: str, node: Connection, drawing: Drawing, full: bool) -> None:
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
    answer = node.request("GET", f"/ceramic/streams/{segment(bare)}/events")
    held = understood(node, answer, _Held)
    try:
        events = list(_held_events(held["events"]))
        drawn = stream_picture(f"Stream {held['id']}", events, int(time.time()), full=full)
    except (IpldError, ValueError) as error:  # `StreamShapeError`, too
        raise CommandError(f"the node's events are not one complete stream: {error}") from None
    show_picture(drawn.picture, drawing, {**answer, **_describe(drawn)})


class _HeldEvent(TypedDict):
    cid: str
    kind: Literal["init", "data", "time"]
    prev: list[str]
    height: int
    state: Progress
    time: int | None
    chain_id: str | None
    expires: int | None
    fault: str | None
    copy_of: str | None
    rank: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")]


class _Held(TypedDict):
    id: str
    events: list[_HeldEvent]


def _held_events(entries: list[_HeldEvent]) -> Iterator[HeldEvent]:
    """Yield the events of the API's JSON, without further copies of a statement."""
    shown = {entry["cid"]: entry["copy_of"] or entry["cid"] for entry in entries}
    for entry in entries:
        if entry["copy_of"] is None:
            prevs = dict.fromkeys(shown.get(prev, prev) for prev in entry["prev"])
            shape = EventShape(
                id=CID.parse(entry["cid"]),
                kind=entry["kind"],
                prevs=tuple(map(CID.parse, prevs)),
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
    decisions = [
        {"rule": why.rule.value, "winner": str(why.winner), "rivals": _texts(why.rivals)}
        for why in tip.reasons
    ]
    return {
        "tip": str(tip.event),
        "data_tip": _texts(tip.data_tip),
        "anchored_at": _texts(tip.anchored_at),
        "candidates": _texts(tip.candidates),
        "pruned": _texts(tip.pruned),
        "diverged": tip.diverged,
        "decisions": decisions,
        "merge": _texts(drawn.merge),
    }


def _texts(ids: Iterable[object]) -> list[str]:
    return list(map(str, ids))
