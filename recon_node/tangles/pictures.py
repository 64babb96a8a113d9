"""Tangles and feeds as pictures: the same drawing as a stream's."""

from collections.abc import Iterable, Mapping
from typing import Any

from recon_node.draw.layout import (
    NodeShape,
    Picture,
    PictureNode,
    Tone,
    count_of,
    missing_node,
    short_name,
)
from recon_node.tangles.classic_feed import ClassicFeed, message_id
from recon_node.tangles.tangle import Tangle, TangleRule


def tangle_picture(
    title: str, woven: Tangle[str], details: Mapping[str, tuple[str, ...]] | None = None
) -> Picture:
    """Draw a tangle, and next to it the excluded candidates, with the reasons.

    `details` are texts for columns, by message: its author and time, for example. Of an excluded
    candidate, only the links that break a rule are drawn; those of a cycle are not.
    """
    notes = details or {}
    tips = set(woven.tips)
    nodes: list[PictureNode] = []
    absent: dict[str, None] = {}
    for id_, exclusion in woven.excluded.items():
        prev = () if exclusion.rule is TangleRule.CYCLE else exclusion.previous
        if exclusion.rule is TangleRule.MISSING_PREVIOUS:
            absent.update(dict.fromkeys(prev))
        mark = f"left out: {exclusion.rule.value}"
        nodes.append(_wrong(id_, prev, notes.get(id_, ()), mark))
    for id_ in reversed(woven.order):
        nodes.append(_member(id_, woven.previous[id_], notes.get(id_, ()), is_tip=id_ in tips))
    summary = f"{count_of(len(woven), 'message')}, {count_of(len(tips), 'tip')}"
    if woven.excluded:
        summary += f", {len(woven.excluded)} left out"
    merge = ("The next message names as previous:\n" + "\n".join(woven.tips),) if tips else ()
    return Picture(title, summary, (*map(missing_node, absent), *nodes), merge, "messages")


def feed_picture(title: str, feed: ClassicFeed, messages: Iterable[dict[str, Any]]) -> Picture:
    """Draw a classic feed, and the author's messages that are left out, with the reasons."""
    previous = {
        message_id(message): message.get("previous")
        for message in messages
        if message.get("author") == feed.author
    }
    absent: dict[str, None] = {}
    nodes: list[PictureNode] = []
    for id_, rule in feed.excluded.items():
        before = previous[id_]
        prev = (before,) if isinstance(before, str) and before != id_ else ()
        absent.update(dict.fromkeys(p for p in prev if p not in previous))
        nodes.append(_wrong(id_, prev, (), f"left out: {rule.value}"))
    for number, id_ in enumerate(feed.order, 1):
        before_it = feed.order[number - 2 : number - 1]
        nodes.append(_member(id_, before_it, (f"sequence {number}",), is_tip=id_ == feed.tip))
    summary = f"{count_of(len(feed.order), 'message')} in the feed"
    if feed.excluded:
        summary += f", {len(feed.excluded)} left out"
    return Picture(title, summary, (*map(missing_node, absent), *nodes), (), "messages")


def _member(
    id_: str, prev: tuple[str, ...], details: tuple[str, ...], *, is_tip: bool
) -> PictureNode:
    shape, tone = NodeShape.DATA if prev else NodeShape.ROOT, Tone.TIP if is_tip else Tone.KEPT
    marks = ("tip",) if is_tip else ()
    return PictureNode(id_, prev, shape, tone, short_name(id_), details, marks, keep=is_tip)


def _wrong(id_: str, prev: tuple[str, ...], details: tuple[str, ...], mark: str) -> PictureNode:
    shape, name = NodeShape.DATA, short_name(id_)
    return PictureNode(id_, prev, shape, Tone.WRONG, name, details, (mark,), keep=True)
