"""Tangles, feeds and replicas as pictures: the same drawing as a stream's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from recon_node.ipld import CID
from recon_node.lattice.classic_feed import ClassicFeed, message_id
from recon_node.lattice.drawing import Node, Picture, Shape, Tone
from recon_node.lattice.operations import Append, Join
from recon_node.lattice.replica import Replica
from recon_node.lattice.tangle import Tangle, TangleRule

_NAME: Final = 12


def tangle_picture(
    title: str, woven: Tangle[str], details: Mapping[str, tuple[str, ...]] | None = None
) -> Picture:
    """Draw a tangle, and beside it the candidates that do not belong, with the reason.

    `details` are texts for columns, by message: its author and its time, for example. Of a
    candidate that does not belong, the links that break a rule are drawn alone; those of a circle
    not at all.
    """
    told = details or {}
    tips = set(woven.tips)
    nodes: list[Node] = []
    absent: dict[str, None] = {}
    for each, exclusion in woven.excluded.items():
        prev = () if exclusion.rule is TangleRule.CYCLE else exclusion.previous
        if exclusion.rule is TangleRule.MISSING_PREVIOUS:
            absent.update(dict.fromkeys(prev))
        mark = f"left out: {exclusion.rule.value}"
        nodes.append(_wrong(each, prev, told.get(each, ()), mark))
    for each in reversed(woven.order):
        prev = woven.previous[each]
        is_tip = each in tips
        nodes.append(
            Node(
                id=each,
                prev=prev,
                shape=Shape.DATA if prev else Shape.ROOT,
                tone=Tone.TIP if is_tip else Tone.KEPT,
                name=_name(each),
                details=told.get(each, ()),
                marks=("tip",) if is_tip else (),
                keep=is_tip,
            )
        )
    summary = f"{len(woven)} messages, {_count(len(tips), 'tip')}"
    if woven.excluded:
        summary += f", {len(woven.excluded)} left out"
    merge = "The next message names as previous:\n" + "\n".join(woven.tips)
    return Picture(
        title, summary, (*map(_absent, absent), *nodes), (merge,) if tips else (), "messages"
    )


def feed_picture(title: str, feed: ClassicFeed, messages: Iterable[dict[str, Any]]) -> Picture:
    """Draw a classic feed, and the author's messages that are left out, with the reason."""
    previous = {
        message_id(message): message.get("previous")
        for message in messages
        if message.get("author") == feed.author
    }
    absent: dict[str, None] = {}
    nodes: list[Node] = []
    for each, rule in feed.excluded.items():
        before = previous[each]
        prev = (before,) if isinstance(before, str) and before != each else ()
        absent.update(dict.fromkeys(p for p in prev if p not in previous))
        nodes.append(_wrong(each, prev, (), f"left out: {rule.value}"))
    for number, each in enumerate(feed.order, 1):
        is_tip = each == feed.tip
        nodes.append(
            Node(
                id=each,
                prev=feed.order[number - 2 : number - 1],
                shape=Shape.DATA if number > 1 else Shape.ROOT,
                tone=Tone.TIP if is_tip else Tone.KEPT,
                name=_name(each),
                details=(f"sequence {number}",),
                marks=("tip",) if is_tip else (),
                keep=is_tip,
            )
        )
    summary = f"{len(feed.order)} messages in the feed"
    if feed.excluded:
        summary += f", {len(feed.excluded)} left out"
    return Picture(title, summary, (*map(_absent, absent), *nodes), (), "messages")


def replica_picture(title: str, heads: Iterable[CID], replicas: Mapping[CID, Replica]) -> Picture:
    """Draw the history of some replicas, as far as it is in `replicas`."""
    tops = list(dict.fromkeys(heads))
    found = list(tops)
    seen = set(tops)
    for cid in found:  # grows while it is walked
        if cid in replicas:
            bases = [base for base in dict.fromkeys(replicas[cid].bases) if base not in seen]
            found += bases
            seen.update(bases)
    lacking = [str(cid) for cid in found if cid not in replicas]
    nodes = [_replica(cid, replicas[cid], cid in tops) for cid in found if cid in replicas]
    summary = f"{_count(len(nodes), 'operation')}, {_count(len(tops), 'head')}"
    if lacking:
        summary += f", {len(lacking)} missing"
    return Picture(title, summary, (*map(_absent, lacking), *nodes), (), "operations")


def _replica(cid: CID, replica: Replica, is_head: bool) -> Node:
    change = replica.change
    if isinstance(change, Append):
        kind, what = "append", _count(len(change.shards), "shard")
    elif isinstance(change, Join):
        kind, what = "join", _count(len(replica.bases), "replica")
    else:
        kind, what = "publish", f"link {_name(str(change.link))}"
    return Node(
        id=str(cid),
        prev=tuple(map(str, replica.bases)),
        shape=Shape.DATA if replica.bases else Shape.ROOT,
        tone=Tone.TIP if is_head else Tone.KEPT,
        name=_name(str(cid)),
        details=(kind, what),
        marks=("head",) if is_head else (),
        keep=is_head,
    )


def _wrong(id_: str, prev: tuple[str, ...], details: tuple[str, ...], mark: str) -> Node:
    return Node(
        id=id_,
        prev=prev,
        tone=Tone.WRONG,
        name=_name(id_),
        details=details,
        marks=(mark,),
        keep=True,
    )


def _absent(id_: str) -> Node:
    return Node(
        id=id_,
        shape=Shape.MISSING,
        tone=Tone.WAITING,
        name=_name(id_),
        marks=("not here",),
        keep=True,
    )


def _name(id_: str) -> str:
    """A message's id starts with what tells it from others, a CID ends with it."""
    if len(id_) <= _NAME + 1:
        return id_
    return f"{id_[:_NAME]}…" if id_.startswith("%") else f"…{id_[-_NAME:]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
