"""The events of a file: JSON lines, multibase lines, or one binary CAR."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import BinaryIO

from recon_node.base.errors import reason_of
from recon_node.base.terminal import CommandError
from recon_node.ceramic import MAX_CAR_SIZE, InvalidEventError
from recon_node.ceramic.checked_events import read_checked
from recon_node.ipld import CID, CarError, MultibaseError, multibase
from recon_node.ipld.car import looks_like_car, read_layout, sections, without_v2

MAX_LINE = 4 * 1024 * 1024
"""Longest line, in bytes."""
_HOPELESS_LINES = 10
"""If none of the first lines of a file is an event, it is a file of another kind."""


@dataclass(frozen=True, slots=True)
class Item:
    """One event of a file."""

    line: int
    """Counted from 1."""
    size: int
    """Bytes in the file."""
    data: str
    """Its CAR as multibase text; empty if the line has none."""
    cid: CID | None = None
    parents: frozenset[CID] = frozenset()
    """The events that the node must have first."""
    problem: str | None = None
    """Why it cannot be sent."""


class NoEventsError(CommandError):
    """A file is of another kind."""

    def __init__(self, name: str, item: Item) -> None:
        super().__init__(
            f"{name} has no events: it is neither a CAR nor lines of JSON or multibase "
            f"(line {item.line}: {item.problem})"
        )


def read_items(file: BinaryIO, name: str = "the input") -> Iterator[Item]:
    """Yield the events of a file, in order.

    It has JSON lines, multibase lines, or one binary CAR (version 1 or 2). Errors call it `name`;
    if that ends in ".car", it must be a CAR.

    Raises:
        CommandError: it cannot be read, or is a damaged CAR, or one of an unknown version.
        NoEventsError: none of the first lines has an event; nothing was yielded.
    """
    try:
        yield from _read_items(file, name)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {reason_of(error)}") from None


def _read_items(file: BinaryIO, name: str) -> Iterator[Item]:
    first = [file.readline(MAX_LINE)]
    if first == [b"\n"]:  # a blank line, or the first byte of a CARv2
        first.append(file.readline(MAX_LINE))
    beginning = b"".join(first)
    if name.lower().endswith(".car") or looks_like_car(beginning):
        data = beginning + file.read(MAX_LINE)
        if len(data) > MAX_LINE:
            raise CommandError(
                f"{name} has more than {MAX_LINE:,} bytes, and an event is a CAR of at most "
                f"{MAX_CAR_SIZE:,}: `recon-node store import` reads a CAR of many events"
            )
        yield _item(1, len(data), *_read_car(data, name))
        return
    items = _read_lines(file, first)
    start: list[Item] = []
    for item in items:
        start.append(item)
        if item.problem is None or len(start) >= _HOPELESS_LINES:
            break
    if start and start[-1].problem is not None:
        raise NoEventsError(name, start[0])
    yield from start
    yield from items


def _read_car(data: bytes, name: str) -> tuple[str, bytes]:
    """The event's CAR in a file, as text and as bytes; of a CARv2, the CARv1 in it."""
    file = BytesIO(data)
    try:
        layout = read_layout(file)
        for _ in sections(file, layout):
            pass
    except CarError as error:
        raise CommandError(f"{name} is not a CAR that can be read: {error}") from None
    car = data[layout.begin : layout.end]
    return multibase.encode(car), car


def _read_lines(file: BinaryIO, first: list[bytes]) -> Iterator[Item]:
    following = iter(lambda: file.readline(MAX_LINE), b"")
    for number, line in enumerate(chain(first, following), 1):
        if line.strip():
            yield _read_line(number, line)


def _read_line(number: int, line: bytes) -> Item:
    try:
        data = _car_text(line)
        car = without_v2(multibase.decode(data, multibase.MAX_NUMBER))
        return _item(number, len(line), data, car)
    except (ValueError, RecursionError) as error:
        return Item(number, len(line), "", problem=_why(error))
    except KeyError as error:
        return Item(number, len(line), "", problem=f"the JSON object has no {error}")


def _why(error: Exception) -> str:
    if isinstance(error, MultibaseError | UnicodeDecodeError):
        return "not a CAR as multibase text, nor a JSON object"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return f"not JSON: {error}"
    return str(error)


def _car_text(line: bytes) -> str:
    """Return the multibase CAR in a line; raises ValueError or KeyError."""
    text = line.decode().strip()
    if not text.startswith("{"):
        return text
    value = json.loads(text)
    data = value["data"] if "data" in value and "car" not in value else value["car"]
    if not isinstance(data, str):
        raise ValueError("the CAR should be text")
    return data


def _item(number: int, size: int, data: str, car: bytes) -> Item:
    try:
        [event] = read_checked([car], lazily=True)
    except InvalidEventError:
        return Item(number, size, data)  # the node says what is wrong with it
    parents = frozenset({event.init, *event.prevs}) - {event.cid}
    return Item(number, size, data, event.cid, parents)
