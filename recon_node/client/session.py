"""What every operation of the client needs: who signs, the models that are known, and events.

Theory of operation. An operation is a generator: it yields a `Request`, is sent the `Answer`, and
returns its result. So each one is written once, as a function of a `Session`, and knows neither
httpx nor an event loop; the two clients (`clients`) only carry requests and answers back and forth.
Operations are composed with `yield from`.

The requests are those that a ceramic-one node has, too. What only this project's nodes have is
used where it helps, and missed without harm.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from recon_node.ceramic import Event, InvalidEventError, StreamId, parse_event
from recon_node.client.errors import InvalidArgumentError, NoKeyError, RefusedEventError
from recon_node.client.given import CidRef, to_cid
from recon_node.client.keys import Key
from recon_node.connection import Answer, NodeError, Request
from recon_node.ipld import CID, IpldError, multibase

T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Answer, T]
"""An operation; see the module's text."""


@dataclass(slots=True)
class Session:
    """A client's key, and the models that it knows."""

    key: Key | None = None
    models: dict[CID, dict[CID, Any]] = field(default_factory=dict)
    """Definitions of models, by the CID of the model's init event, then by version."""

    def key_or(self, key: Key | None) -> Key:
        """Return the key of a call, or else the client's.

        Raises:
            NoKeyError: there is neither.
            InvalidArgumentError: it is something else.
        """
        chosen = key or self.key
        if chosen is None:
            raise NoKeyError
        if not isinstance(chosen, Key):
            raise InvalidArgumentError("`key` is a Key: Key.load(FILE) reads one from a file")
        return chosen


def get(path: str, **params: str | int | None) -> Request:
    """Make a GET request; parameters that are None are left out."""
    given = {name: str(value) for name, value in params.items() if value is not None}
    return Request("GET", path, given)


def segment(text: object) -> str:
    """Return text as one segment of a path."""
    return quote(str(text), safe="")


def version(session: Session) -> Steps[str]:
    """Return the version of the node."""
    (version,) = (yield get("/ceramic/version")).fields("version")
    return str(version)


def event(session: Session, cid: CidRef) -> Steps[Event]:
    """Fetch an event.

    Raises:
        NotFoundError: the node does not have it.
    """
    (data,) = (yield get(f"/ceramic/events/{to_cid(cid)}")).fields("data")
    return read_event(data)


def send(session: Session, event: Event) -> Steps[None]:
    """Send an event that was made elsewhere. Sending it again does no harm.

    Raises:
        RefusedEventError: the node does not accept it.
    """
    body = {"data": multibase.encode(event.car)}
    answer = yield Request("POST", "/ceramic/events", json=body)
    if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN):
        raise RefusedEventError(answer.status, answer.message)
    answer.check()


def fetch_matching(
    sort_key: str, sort_value: str, controller: str | None, stream: StreamId | None
) -> Steps[list[Event]]:
    """Fetch the events of an interest that the node has, waiting ones among them."""
    path = f"/ceramic/experimental/events/{segment(sort_key)}/{segment(sort_value)}"
    found: list[Event] = []
    offset, is_complete = 0, False
    while not is_complete:
        stream_id = None if stream is None else str(stream)
        answer = yield get(path, controller=controller, streamId=stream_id, offset=offset)
        entries, offset, is_complete = answer.fields("events", "resumeOffset", "isComplete")
        found += [read_event(entry["data"]) for entry in entries]
    return found


def read_event(data: object) -> Event:
    """Read an event of an answer, multibase text of its CAR.

    Raises:
        NodeError: it is not an event.
    """
    try:
        return parse_event(multibase.decode(str(data)))
    except (InvalidEventError, IpldError) as error:
        raise NodeError(
            HTTPStatus.OK, f"the node sent something that is not an event: {error}"
        ) from None
