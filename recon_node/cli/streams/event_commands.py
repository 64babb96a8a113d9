"""`recon-node events add` and `events get`, and `recon-node feed tail`."""

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypedDict

import click
import trio
from msgspec import Meta
from rich.progress import TextColumn

from recon_node.base.connection import AsyncConnection, ClientError, Connection, segment
from recon_node.base.errors import unwrapped
from recon_node.base.terminal import (
    FILE_OR_DASH,
    CommandError,
    command_errors,
    echo,
    json_option,
    keep_stdout_for_json,
    node_options,
    one_line,
    print_json,
    print_result,
    shown_json,
)
from recon_node.ceramic import InvalidEventError, StreamId, StreamIdError, parse_event, signer
from recon_node.cli.command import (
    intake_text,
    number_option,
    print_first,
    progress_bar,
    understood,
    write_file,
)
from recon_node.cli.streams.event_file import Item, read_items
from recon_node.cli.streams.sending import WORKERS, SendingOutcome, send_items
from recon_node.ipld import CID, IpldError, dag_json, multibase

_CANDIDATES: Final = 5
"""Events listed when the first characters of a CID stand for more than one."""
_LEAST_PREFIX: Final = 10
"""Characters of a CID that the node's search takes at least."""
_STEP: Final = 50
"""Events from one update of the progress bar to the next."""


@click.group()
def events() -> None:
    """Add events to a node, and read them."""


@events.command("add")
@click.argument("file", type=click.File("rb"))
@node_options
@number_option(
    "--workers", WORKERS, "N", "Requests at once; each carries up to 500 events.", least=1, most=64
)
@json_option
def add(file: BinaryIO, node: Connection, workers: int, as_json: bool) -> None:
    """Send the events of FILE (- for standard input) to a node.

    FILE has one event per line: a JSON object with the CAR as multibase text in `car` (or `data`),
    or the multibase text itself. It can also be one binary CAR. Each event is sent after the events
    that it depends on, even if these come later in the file. Sending a file again does no harm. A
    file whose first lines have no events is refused as a whole.

    Exit code 1 if any event was refused; the first 100 are listed with their lines.

    \b
    Examples:
      recon-node events add events.jsonl
      recon-node events get CID | recon-node events add - --url http://127.0.0.1:5201
    """
    started = time.monotonic()
    outcome = SendingOutcome()
    try:
        with _progress(file) as on_done:
            _send(node, file, outcome, workers, on_done)
    except (KeyboardInterrupt, click.ClickException):
        if outcome.counts.total():
            _print_outcome(outcome, time.monotonic() - started, complete=False, as_json=as_json)
            echo("not all events were sent: run the command again to send the rest", err=True)
        raise
    _print_outcome(outcome, time.monotonic() - started, complete=True, as_json=as_json)
    if outcome.counts["refused"]:
        sys.exit(1)


def _print_outcome(
    outcome: SendingOutcome, seconds: float, *, complete: bool, as_json: bool
) -> None:
    counts, refusals = outcome.counts, outcome.refusals
    for refusal in refusals:
        cid = f" ({refusal.cid})" if refusal.cid else ""
        echo(f"line {refusal.line}{cid}: {refusal.reason}", err=True)
    for warning in outcome.warnings:
        echo(f"Warning: {warning}", err=True)
    print_first((), counts["refused"], " refused", shown=len(refusals))
    facts = {
        "complete": complete,
        "events": counts.total(),
        **{verdict: counts[verdict] for verdict in ("new", "known", "refused")},
        "refusals": [
            {"line": line, "cid": None if cid is None else str(cid), "reason": reason}
            for line, cid, reason in refusals
        ],
        "seconds": round(seconds, 3),
    }
    print_result(facts, intake_text(counts, seconds), as_json=as_json)


class _FoundEvent(TypedDict):
    cid: str


@events.command("get")
@click.argument("cid")
@node_options
@click.option(
    "--car",
    "car_file",
    type=FILE_OR_DASH,
    metavar="FILE",
    help="Write the binary CAR to FILE (- for standard output) instead.",
)
@click.option("--show", is_flag=True, help="Print the event's content as JSON instead.")
@json_option
def get(cid: str, node: Connection, car_file: Path | None, show: bool, as_json: bool) -> None:
    """Print the event CID as a multibase CAR.

    The first 10 or more characters of a CID are enough, if no other event's CID begins with them.

    \b
    Examples:
      recon-node events get bagcqcera... --show
      recon-node events get bagcqcera... --car event.car
    """
    keep_stdout_for_json(as_json or show, car_file)
    _refuse_stream_id(cid)
    answer = node.request("GET", f"/ceramic/events/{segment(_whole_cid(node, cid))}")
    data = understood(node, answer["data"], str)
    with one_line(IpldError, InvalidEventError):
        car = multibase.decode(data)
        described = _described(car) if show else None
    if car_file is not None:
        write_file(car_file, car)
    if show:
        echo(shown_json(json.dumps(described, indent=2, ensure_ascii=False)), lines=True)
    elif as_json:
        print_json(answer)
    elif car_file is None:
        echo(data)


def _whole_cid(node: Connection, text: str) -> str:
    """Return the CID of the event whose CID begins with `text`; other text as it is."""
    try:
        return str(CID.parse(text))
    except IpldError:
        if len(text) < _LEAST_PREFIX:
            raise CommandError(
                f"{text!r} is not a CID: give a whole one, or at least its first {_LEAST_PREFIX} "
                "characters"
            ) from None
    answer = node.request("GET", "/ceramic/search", params={"q": text, "limit": _CANDIDATES})
    cids = [event["cid"] for event in understood(node, answer["events"], list[_FoundEvent])]
    if len(cids) > 1:
        more = ", ..." if len(cids) == _CANDIDATES else ""
        raise CommandError(f"more than one event begins with {text}: {', '.join(cids)}{more}")
    return cids[0] if cids else text


def _refuse_stream_id(text: str) -> None:
    """Say what to do with a StreamID, which is easily taken for the CID of an event."""
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError:
        return
    raise CommandError(
        f"{text} is a StreamID: `recon-node stream show {text}` shows the stream; "
        f"its first event is {stream_id.cid}"
    )


def _described(car: bytes) -> dict[str, Any]:
    event = parse_event(car)
    return {
        "cid": str(event.cid),
        "kind": event.kind.value,
        "init": str(event.init),
        "prev": [str(prev) for prev in event.prevs],
        "signer": signer(event),
        "payload": dag_json.as_json(event.payload),
    }


def _send(
    node: Connection,
    file: BinaryIO,
    outcome: SendingOutcome,
    workers: int,
    on_done: Callable[[Item, str | None], None],
) -> None:
    # The interpreter closes its own standard input when it exits, and aborts if a thread reads it:
    # one may still wait for a line when Ctrl-C comes.
    try:
        reader: BinaryIO = os.fdopen(os.dup(file.fileno()), "rb")
    except (OSError, ValueError):  # not a file of the system
        reader = file
    path = getattr(file, "name", "<stdin>")
    name = "standard input" if path == "<stdin>" else str(path)

    async def send() -> None:
        items = read_items(reader, name)
        async with AsyncConnection(node.url, token=node.token) as sender:
            await send_items(sender, items, outcome, workers=workers, on_done=on_done)

    with command_errors(node.url), unwrapped(CommandError, ClientError):
        trio.run(send)
    if reader is not file:
        reader.close()


@contextmanager
def _progress(file: BinaryIO) -> Iterator[Callable[[Item, str | None], None]]:
    """Show a progress bar while events are sent; yields what to call after each event."""
    counts = TextColumn("{task.fields[count]} events, {task.fields[refused]} refused")
    with progress_bar(TextColumn("sending"), counts) as progress:
        task = progress.add_task("", total=_size(file), count=0, refused=0)
        count = refused = size = 0

        def show() -> None:
            progress.update(task, completed=size, count=count, refused=refused)

        def on_done(item: Item, reason: str | None) -> None:
            nonlocal count, refused, size
            count += 1
            size += item.size
            refused += reason is not None
            if count % _STEP == 0:
                show()

        yield on_done
        show()


def _size(file: BinaryIO) -> int | None:
    """Return the size of a regular file in bytes; None for a pipe."""
    try:
        info = os.fstat(file.fileno())
    except (OSError, ValueError):  # not a file of the system
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


_PAGE: Final = 1000
_WAIT: Final = 20.0
"""Seconds of one long poll, less than the client's timeout."""


@click.group()
def feed() -> None:
    """Read the feed of a node: every event, in the order of its delivery."""


@feed.command("tail")
@number_option("-n --lines", 10, "N", "Print the last N events.", least=0)
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    metavar="POSITION",
    help="Print the events after POSITION instead; 0 is the start of the feed.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new events, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line, with the CAR.")
@node_options
def tail(lines: int, after: int | None, follow: bool, as_json: bool, node: Connection) -> None:
    """Print the last events of the feed.

    A line has the event's position in the feed, when it was delivered (in UTC), its kind (init,
    data or time), its CID and its stream. The last position printed is a resume token: --from
    continues after it.

    \b
    Examples:
      recon-node feed tail --follow
      recon-node feed tail --from 0 --json | jq -r .data | recon-node events add - --url ...
    """
    if after is None:
        head = understood(node, node.request("GET", "/ceramic/feed/head")["head"], int)
        after = max(0, head - lines)
    for event in _events(node, after, follow=follow, with_cars=as_json):
        echo(json.dumps(event) if as_json else _line(event))


class _FeedEvent(TypedDict):
    id: str
    position: int
    kind: str
    init: str
    deliveredAt: Annotated[int, Meta(ge=0, le=253_402_300_799_000)] | None
    fault: str | None


class _FeedPage(TypedDict):
    events: list[_FeedEvent]
    resumeToken: Annotated[str, Meta(pattern="^[0-9]{1,20}$")]


def _events(node: Connection, after: int, *, follow: bool, with_cars: bool) -> Iterator[_FeedEvent]:
    """Yield the feed's events with their details; without end if they are followed."""
    query = {"limit": _PAGE, "details": "true", "wait": _WAIT if follow else 0}
    query["includeData"] = "full" if with_cars else "none"
    while True:
        query["resumeAt"] = str(after)
        answer = node.request("GET", "/ceramic/feed/events", params=query)
        page = understood(node, answer, _FeedPage)
        yield from page["events"]
        after = int(page["resumeToken"])
        if not page["events"] and not follow:
            return


def _line(event: _FeedEvent) -> str:
    delivered_at = event["deliveredAt"]  # None: an earlier version delivered it
    at = "" if delivered_at is None else f"{datetime.fromtimestamp(delivered_at / 1000, UTC):%F %T}"
    line = f"{event['position']:>10}  {at:<19}  {event['kind']:<4}  {event['id']}  {event['init']}"
    return line if event["fault"] is None else f"{line}  badly signed: {event['fault']}"
