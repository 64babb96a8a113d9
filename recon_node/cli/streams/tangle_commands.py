"""`recon-node tangle show` and `tangle reply`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO

import click

from recon_node.base.connection import Connection
from recon_node.base.terminal import CommandError, echo, json_option, node_options, one_line
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.cli.streams.stream_commands import (
    JsonObject,
    client_of,
    show_document,
    writer_options,
)
from recon_node.client import Ceramic
from recon_node.draw.layout import short_name
from recon_node.tangles.classic_feed import (
    ClassicFeed,
    FeedRule,
    classic_feed,
    message_id,
    parse_network_key,
)
from recon_node.tangles.documents import asserted_time, tangles_in
from recon_node.tangles.pictures import feed_picture, tangle_picture
from recon_node.tangles.tangle import Tangle, TangleError, TangleMessage, TangleRule, tangle_of

MAX_LINE = 1024 * 1024
"""Longest line, in bytes; a message has at most 8 KiB."""

Keyed = tuple[str, dict[str, Any]]
"""A message's id and the message."""


@click.group()
def tangle() -> None:
    """Threads of many authors: draw them, and reply."""


@tangle.command("show")
@click.argument("file", type=click.File("rb"), required=False)
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
@node_options
@drawing_options
def show(
    file: BinaryIO | None,
    root: str | None,
    name: str | None,
    feed: str | None,
    network_key: str | None,
    node: Connection,
    drawing: Drawing,
) -> None:
    """Draw a tangle, the newest message first.

    A tangle is identified by its root and its name. Messages that name its root but do not belong
    to it are drawn beside it, with the rule that they break. Without FILE, the messages are the
    documents of a node, and the root is a StreamID. FILE (- for standard input) has messages of
    Secure Scuttlebutt, one per line, as JSON: {"key": ID, "value": MESSAGE}, or MESSAGE alone.

    \b
    Examples:
      recon-node tangle show --name thread --root kjzl6kcy...
      recon-node tangle show messages.jsonl --name post --root %XphMUkWQ...=.sha256
      recon-node tangle show messages.jsonl --feed @FCX/tsDL...=.ed25519 --svg feed.svg
    """
    if (feed is None) == (root is None) or (root is None) != (name is None):
        raise click.UsageError("use --root and --name for a tangle, or --feed for a feed")
    if network_key is not None and feed is None:
        raise click.UsageError("--hmac is for feeds: of a tangle, no signature is checked")
    if file is None:
        if root is None or name is None:
            raise click.UsageError("a feed is drawn of a FILE; a node has tangles: --root, --name")
        _show_thread(node, root, name, drawing)
        return
    messages = list(_read(file))
    if root is not None and name is not None:
        _show_tangle(messages, root, name, drawing)
    else:
        _show_feed([message for _, message in messages], str(feed), network_key, drawing)


def _show_tangle(messages: Sequence[Keyed], root: str, name: str, drawing: Drawing) -> None:
    details = {id_: (_author(message), _when(message)) for id_, message in messages}
    with one_line(TangleError):
        woven = tangle_of([_message(*message) for message in messages], name, root)
    picture = tangle_picture(f"Tangle {name!r} of {root}", woven, details)
    show_picture(picture, drawing, {"root": root, "name": name, **_tangle_facts(woven)})


def _show_thread(node: Connection, root: str, name: str, drawing: Drawing) -> None:
    with client_of(node) as ceramic:
        thread = ceramic.tangle(root, name)
    previous = {str(message.id): (*map(str, message.previous),) for message in thread.messages}
    woven = Tangle(tuple(previous), previous, {})
    details = {
        str(message.id): (short_name(message.author), _when_asserted(message.timestamp))
        for message in thread.messages
    }
    picture = tangle_picture(f"Tangle {name!r} of {root}", woven, details)
    excluded = {str(id_): reason for id_, reason in thread.excluded.items()}
    facts = {"root": str(thread.root), "name": name, **_tangle_facts(woven)}
    facts["left_out"] = [{"id": id_, "reason": reason} for id_, reason in excluded.items()]
    show_picture(picture, drawing, facts)
    if excluded and not drawing.as_json and drawing.svg is None:
        echo("\nLeft out:")
        for id_, reason in excluded.items():
            echo(f"  {id_}  {reason}")


@tangle.command("reply")
@click.argument("root")
@click.argument("content", type=JsonObject())
@click.option(
    "--name",
    default="thread",
    show_default=True,
    metavar="NAME",
    help="The tangle's name in `content.tangles`.",
)
@click.option("--model", metavar="STREAM_ID", help="Model of the reply.  [default: that of ROOT]")
@writer_options
@json_option
def reply(
    root: str,
    content: dict[str, Any],
    name: str,
    model: str | None,
    ceramic: Ceramic,
    as_json: bool,
) -> None:
    """Write the next message of a tangle, and print its StreamID.

    ROOT is the StreamID of the message that starts the tangle. CONTENT is a JSON object, @FILE, or
    - for standard input; its `tangles` are filled in. A root is an ordinary document:

    \b
    Examples:
      recon-node stream new MODEL --key my.key \\
          '{"text": "Hello", "tangles": {"thread": {"root": null, "previous": null}}}'
      recon-node tangle reply kjzl6kcy... '{"text": "I agree"}' --key my.key
      recon-node tangle show --root kjzl6kcy... --name thread
    """
    show_document(ceramic.reply(root, name, content, model=model), as_json)


def _show_feed(
    messages: Sequence[dict[str, Any]], author: str, network_key: str | None, drawing: Drawing
) -> None:
    with one_line(ValueError):
        key = None if network_key is None else parse_network_key(network_key)
        feed = classic_feed(messages, author, key)
    show_picture(feed_picture(f"Feed of {author}", feed, messages), drawing, _feed_facts(feed))


def _tangle_facts(woven: Tangle[str]) -> dict[str, Any]:
    """Return a tangle as JSON, its messages in their order."""
    return {
        "tips": list(woven.tips),
        "messages": [{"id": id_, "previous": woven.previous[id_]} for id_ in woven.order],
        "left_out": [
            {**_left_out(id_, exclusion.rule), "previous": exclusion.previous}
            for id_, exclusion in woven.excluded.items()
        ],
    }


def _feed_facts(feed: ClassicFeed) -> dict[str, Any]:
    """Return a feed as JSON, its messages in their order."""
    return {
        "author": feed.author,
        "tip": feed.tip,
        "messages": [{"id": id_, "sequence": at} for at, id_ in enumerate(feed.order, 1)],
        "left_out": [_left_out(id_, rule) for id_, rule in feed.excluded.items()],
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
        value = json.loads(line, parse_int=float)  # as JavaScript, and of any length
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
    return _when_asserted(asserted_time(message))


def _when_asserted(time: float | None) -> str:
    try:
        return "" if time is None else f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
