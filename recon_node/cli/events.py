"""`recon-node events add` and `recon-node events get`."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from recon_node.cli.client import NodeApi, ask, node_options
from recon_node.cli.errors import CommandError
from recon_node.cli.output import make_console

if TYPE_CHECKING:
    from recon_node.cli.sending import Outcome
    from recon_node.cli.sources import Item

_STEP = 50
"""Events from one change of the progress bar to the next."""


@click.group()
def events() -> None:
    """Add events to a node, and read them."""


@events.command("add")
@click.argument("file", type=click.File("rb"))
@node_options
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Requests under way at once; each carries up to 500 events.",
)
def add(file: BinaryIO, node: NodeApi, workers: int) -> None:
    """Send the events of FILE (- for standard input) to a node.

    FILE holds one event a line: a JSON object with the CAR as multibase text in `car` (or `data`),
    or the multibase text itself. Or it is one binary CAR. An event is sent after the events that
    it builds on, also where the file has them later. Sending a file again does no harm. A file
    whose first lines hold no event is refused as a whole.

    Exit code 1 if any event was refused; the first 100 are named, with their lines.

    \b
    Examples:
      recon-node events add events.jsonl
      recon-node events get CID | recon-node events add - --url http://127.0.0.1:5102
    """
    from recon_node.cli.sending import Outcome

    started = time.monotonic()
    outcome = Outcome()
    try:
        with _progress(file) as on_done:
            _send(node, file, outcome, workers, on_done)
    except (click.Abort, click.ClickException):
        if outcome.total:
            _tell(outcome, time.monotonic() - started)
            click.echo("not all were sent: the same command again sends the rest", err=True)
        raise
    _tell(outcome, time.monotonic() - started)
    if outcome.refused:
        sys.exit(1)


def _tell(outcome: Outcome, seconds: float) -> None:
    """Say what became of the events."""
    refusals = outcome.refusals
    for refusal in refusals:
        cid = f" ({refusal.cid})" if refusal.cid else ""
        click.echo(f"line {refusal.line}{cid}: {refusal.reason}", err=True)
    if outcome.refused > len(refusals):
        click.echo(f"... and {outcome.refused - len(refusals)} more refused", err=True)
    noun = "event" if outcome.total == 1 else "events"
    click.echo(
        f"{outcome.total} {noun}: {outcome.new} new, {outcome.known} known, "
        f"{outcome.refused} refused, "
        f"in {seconds:.1f} s ({outcome.total / max(seconds, 1e-6):.0f} a second)"
    )


@events.command("get")
@click.argument("cid")
@node_options
@click.option(
    "--car",
    "car_file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write the binary CAR to FILE (- for standard output) instead.",
)
@click.option("--show", is_flag=True, help="Print what the event says, as JSON, instead.")
def get(cid: str, node: NodeApi, car_file: Path | None, show: bool) -> None:
    """Print the event CID as a multibase CAR.

    \b
    Examples:
      recon-node events get bagcqcera... --show
      recon-node events get bagcqcera... --car event.car
    """
    from recon_node.ipld import multibase

    _refuse_stream_id(cid)
    answer = ask(node, "GET", f"/ceramic/events/{cid}").json()
    car = multibase.decode(answer["data"])
    if car_file == Path("-"):
        click.echo(car, nl=False)
    elif car_file is not None:
        try:
            car_file.write_bytes(car)
        except OSError as error:
            raise CommandError(f"{car_file}: {error.strerror or error}") from None
    if show:
        click.echo(json.dumps(describe_event(car), indent=2, ensure_ascii=False))
    elif car_file is None:
        click.echo(answer["data"])


def _refuse_stream_id(text: str) -> None:
    """Say what to do with a StreamId, which is easily taken for an event's CID."""
    from recon_node.ceramic import StreamId, StreamIdError

    try:
        stream_id = StreamId.parse(text)
    except StreamIdError:
        return
    raise CommandError(
        f"{text} is a StreamId: `recon-node stream show {text}` shows the stream; "
        f"its first event is {stream_id.cid}"
    )


def describe_event(car: bytes) -> dict[str, Any]:
    """What an event says, in DAG-JSON's way: links are {"/": cid}, bytes {"/": {"bytes": ...}}."""
    from recon_node.ceramic import parse_event, signer

    event = parse_event(car)
    return {
        "cid": str(event.cid),
        "kind": event.kind.value,
        "init": str(event.init),
        "prev": [str(prev) for prev in event.prevs],
        "signer": signer(event),
        "payload": _dag_json(event.payload),
    }


def _dag_json(value: Any) -> Any:
    from recon_node.ipld import CID

    if isinstance(value, CID):
        return {"/": str(value)}
    if isinstance(value, bytes):
        return {"/": {"bytes": base64.b64encode(value).decode().rstrip("=")}}
    if isinstance(value, dict):
        return {key: _dag_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_dag_json(inner) for inner in value]
    return value


def _send(
    node: NodeApi,
    file: BinaryIO,
    outcome: Outcome,
    workers: int,
    on_done: Callable[[Item, str | None], None],
) -> None:
    import trio

    from recon_node.cli.sending import send_items
    from recon_node.cli.sources import read_items

    reader = _reopened(file)
    path = getattr(file, "name", "<stdin>")
    name = "standard input" if path == "<stdin>" else str(path)

    async def send() -> None:
        await send_items(node, read_items(reader, name), outcome, workers=workers, on_done=on_done)

    try:
        trio.run(send)
    except BaseExceptionGroup as group:
        raise what_to_tell(group) from None
    if reader is not file:
        reader.close()


def _reopened(file: BinaryIO) -> BinaryIO:
    """The same input, for a thread that may still wait for a line when the command is interrupted.

    The interpreter closes its own standard input at its end, and aborts if a thread reads it.
    """
    try:
        descriptor = os.dup(file.fileno())
    except (OSError, ValueError):  # not a file of the system
        return file
    return os.fdopen(descriptor, "rb")


def what_to_tell(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What to raise for a nursery's group: Ctrl-C, the one known error, or the group itself."""
    if group.subgroup(KeyboardInterrupt):
        return click.Abort()
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return group if group.split(CommandError)[1] else error


@contextmanager
def _progress(file: BinaryIO) -> Iterator[Callable[[Item, str | None], None]]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn

    console = make_console(stderr=True)
    with Progress(
        TextColumn("sending"),
        BarColumn(),
        TextColumn("{task.fields[count]} events, {task.fields[refused]} refused"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
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
    """Bytes of a regular file; None for a pipe."""
    try:
        info = os.fstat(file.fileno())
    except (OSError, ValueError):  # not a file of the system
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None
