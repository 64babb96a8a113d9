"""`recon-node tangle show`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO

import click

from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.cli.output import CommandError
from recon_node.tangles.classic_feed import (
    ClassicFeed,
    FeedRule,
    classic_feed,
    message_id,
    parse_network_key,
)
from recon_node.tangles.documents import asserted_time, tangles_in
from recon_node.tangles.pictures import feed_picture, tangle_picture
from recon_node.tangles.tangle import (
    Tangle,
    TangleError,
    TangleMessage,
    TangleRule,
    tangle_of,
)

MAX_LINE = 1024 * 1024
"""Longest line, in bytes; a message has at most 8 KiB."""

Keyed = tuple[str, dict[str, Any]]
"""A message's id and the message."""


@click.group()
def tangle() -> None:
    """Draw tangles and feeds of Secure Scuttlebutt."""


@tangle.command("show")
@click.argument("file", type=click.File("rb"))
@click.option("--root", metavar="ID", help="The message that starts the tangle.")
@click.option("--name", metavar="NAME", help="The tangle's name in `content.tangles`.")
@click.option(
    "--feed",
    metavar="AUTHOR",
    help='Draw the classic feed of this author, "@...=.ed25519", instead.',
)
@click.option(
    "--hmac",
    "network_key",
    metavar="KEY",
    help="With --feed: the key under which the network signs its messages, 32 bytes in base64.",
)
@drawing_options
def show(
    file: BinaryIO,
    root: str | None,
    name: str | None,
    feed: str | None,
    network_key: str | None,
    drawing: Drawing,
) -> None:
    """Draw a tangle of the messages in FILE (- for standard input), the newest first.

    FILE has one message per line, as JSON: {"key": ID, "value": MESSAGE}, or MESSAGE alone. A
    tangle is identified by its root and its name. Messages that name its root but do not belong to
    it are drawn beside it, with the rule that they break.

    \b
    Examples:
      recon-node tangle show messages.jsonl --name post --root %XphMUkWQ...=.sha256
      recon-node tangle show messages.jsonl --feed @FCX/tsDL...=.ed25519 --svg feed.svg
    """
    if (feed is None) == (root is None) or (root is None) != (name is None):
        raise click.UsageError("use --root and --name for a tangle, or --feed for a feed")
    if network_key is not None and feed is None:
        raise click.UsageError("--hmac is for feeds: of a tangle, no signature is checked")
    messages = list(_read(file))
    if root is not None and name is not None:
        _show_tangle(messages, root, name, drawing)
    else:
        _show_feed([message for _, message in messages], str(feed), network_key, drawing)


def _show_tangle(messages: Sequence[Keyed], root: str, name: str, drawing: Drawing) -> None:
    details = {id_: (_author(message), _when(message)) for id_, message in messages}
    try:
        woven = tangle_of([_message(*each) for each in messages], name, root)
    except TangleError as error:
        raise CommandError(str(error)) from None
    picture = tangle_picture(f"Tangle {name!r} of {root}", woven, details)
    show_picture(picture, drawing, {"root": root, "name": name, **_tangle_facts(woven)})


def _show_feed(
    messages: Sequence[dict[str, Any]], author: str, network_key: str | None, drawing: Drawing
) -> None:
    try:
        key = None if network_key is None else parse_network_key(network_key)
        feed = classic_feed(messages, author, key)
    except ValueError as error:
        raise CommandError(str(error)) from None
    show_picture(feed_picture(f"Feed of {author}", feed, messages), drawing, _feed_facts(feed))


def _tangle_facts(woven: Tangle[str]) -> dict[str, Any]:
    """Return a tangle as JSON, its messages in their order."""
    return {
        "tips": list(woven.tips),
        "messages": [{"id": each, "previous": woven.previous[each]} for each in woven.order],
        "left_out": [
            {**_left_out(each, found.rule), "previous": found.previous}
            for each, found in woven.excluded.items()
        ],
    }


def _feed_facts(feed: ClassicFeed) -> dict[str, Any]:
    """Return a feed as JSON, its messages in their order."""
    return {
        "author": feed.author,
        "tip": feed.tip,
        "messages": [{"id": each, "sequence": at} for at, each in enumerate(feed.order, 1)],
        "left_out": [_left_out(each, rule) for each, rule in feed.excluded.items()],
    }


def _left_out(message: str, rule: TangleRule | FeedRule) -> dict[str, Any]:
    return {"id": message, "rule": rule.name.lower(), "reason": rule.value}


def _read(file: BinaryIO) -> Iterator[Keyed]:
    """Yield the messages of a file with their ids, without repetitions."""
    seen: dict[str, dict[str, Any]] = {}
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise CommandError(f"line {number} is longer than {MAX_LINE:,} bytes: not a message")
        if line.strip():
            id_, message = _keyed(line, number)
            if seen.setdefault(id_, message) != message:
                raise CommandError(f"line {number}: another message with the key {id_!r}")
    yield from seen.items()


def _keyed(line: bytes, number: int) -> Keyed:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"line {number} is not JSON: {error}") from None
    message = value.get("value") if isinstance(value, dict) and "value" in value else value
    if not isinstance(message, dict):
        raise CommandError(f"line {number} is not a message: a JSON object, or one under 'value'")
    key = value.get("key", None)
    if key is None or message is value:
        key = message_id(message)
    if not isinstance(key, str):
        raise CommandError(f"line {number}: the 'key' of a message must be text")
    return key, message


def _message(id_: str, message: Mapping[str, Any]) -> TangleMessage[str]:
    links = tangles_in(message.get("content"), str)
    return TangleMessage(id_, asserted_time(message) or 0, links)


def _author(message: Mapping[str, Any]) -> str:
    author = message.get("author")
    return f"{author[:10]}…" if isinstance(author, str) and len(author) > 11 else str(author or "")


def _when(message: Mapping[str, Any]) -> str:
    time = asserted_time(message)
    try:
        return "" if time is None else f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
