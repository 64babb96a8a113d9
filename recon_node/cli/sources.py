"""Reading events from files: JSON lines, multibase lines, or one binary CAR."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from recon_node.ceramic import InvalidEventError, parse_event
from recon_node.cli.output import CommandError
from recon_node.ipld import CID, IpldError, multibase

MAX_LINE = 4 * 1024 * 1024
"""Longest line, in bytes."""
_HOPELESS_LINES = 10
"""If none of the first lines of a file is an event, it is a file of another kind."""
_CAR_MARK = b"\x65roots"
"""The key in a CAR's header: in the first bytes of every binary CAR, and of no text."""


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
            f"{name} has no events: it is not a CAR, and its lines are not JSON or multibase "
            f"(line {item.line}: {item.problem})"
        )


def read_items(file: BinaryIO, name: str = "the input") -> Iterator[Item]:
    """Yield the events of a file, in order.

    Args:
        file: JSON lines, multibase lines, or one binary CAR.
        name: what errors call it.

    Raises:
        NoEventsError: none of the first lines has an event; nothing was yielded.
    """
    first = file.readline(MAX_LINE)
    if _CAR_MARK in first[:32]:
        car = first + file.read()
        yield _item(1, len(car), multibase.encode(car), car)
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


def _read_lines(file: BinaryIO, line: bytes) -> Iterator[Item]:
    number = 1
    while line:
        if line.strip():
            yield _read_line(number, line)
        line = file.readline(MAX_LINE)
        number += 1


def _read_line(number: int, line: bytes) -> Item:
    try:
        data = _car_text(line)
        return _item(number, len(line), data, multibase.decode(data, multibase.MAX_NUMBER))
    except (ValueError, RecursionError) as error:
        return Item(number, len(line), "", problem=_why(error))
    except KeyError as error:
        return Item(number, len(line), "", problem=f"the JSON object has no {error}")


def _why(error: Exception) -> str:
    if isinstance(error, IpldError | UnicodeDecodeError):
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
        event = parse_event(car)
    except InvalidEventError:
        return Item(number, size, data)  # the node says what is wrong with it
    parents = frozenset({event.init, *event.prevs}) - {event.cid}
    return Item(number, size, data, event.cid, parents)
