"""What the client sends to a node and reads from it, without sending or reading.

Theory of operation. An operation is a generator: it yields a `Request`, is sent the `Answer`, and
returns its result. So each one is written once, and knows neither httpx nor an event loop; the two
clients (`blocking`, `asynchronous`) only carry requests and answers back and forth (`perform` in
both). Operations are composed with `yield from`.

The requests are those that a ceramic-one node has, too. What only this project's nodes have is
used where it helps, and missed without harm.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from recon_node.ceramic import Event, InvalidEventError, StreamId, parse_event
from recon_node.client.errors import (
    NodeError,
    NotFoundError,
    RefusedEventError,
    UnauthorizedError,
)
from recon_node.ipld import CID, IpldError, multibase

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:5101"
"""Of the node's HTTP API: where a node listens by default."""
NO_NODE: Final = "the server is not a Ceramic node, or not one that the client knows: check the URL"
_MAX_MESSAGE: Final = 500
"""Characters of an answer that an error quotes."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request to a node."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    wait: float = 0.0
    """Seconds that the node may take longer than usual."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered: the status, and the body as text."""

    status: int
    text: str
    json: Any
    """None if the body is not JSON."""

    def check(self) -> None:
        """Raise what fits an error of the node.

        Raises:
            UnauthorizedError: 401.
            NotFoundError: 404.
            NodeError: any other error, and a redirection, which no node answers.
        """
        if self.status < HTTPStatus.MULTIPLE_CHOICES:
            return
        if self.status < HTTPStatus.BAD_REQUEST:
            raise NodeError(self.status, NO_NODE)
        if self.status == HTTPStatus.UNAUTHORIZED:
            raise UnauthorizedError(
                self.status, "the node requires a token, or a different one: pass it as `token=...`"
            )
        error = NotFoundError if self.status == HTTPStatus.NOT_FOUND else NodeError
        raise error(self.status, self.message)

    @property
    def message(self) -> str:
        """The node's words for an error."""
        if isinstance(self.json, dict) and isinstance(self.json.get("message"), str):
            return str(self.json["message"])
        return self.text.strip()[:_MAX_MESSAGE] or f"the node answered {self.status}"

    def fields(self, *names: str) -> tuple[Any, ...]:
        """Return fields of the JSON object that the node answered.

        Raises:
            NodeError: the answer is an error, or lacks a field.
        """
        self.check()
        if not isinstance(self.json, dict) or not self.json.keys() >= set(names):
            raise NodeError(self.status, NO_NODE)
        return tuple(self.json[name] for name in names)


Steps: TypeAlias = Generator[Request, Answer, T]
"""An operation; see the module's text."""


def get(path: str, **params: str | int | None) -> Request:
    """Make a GET request; parameters that are None are left out."""
    given = {name: str(value) for name, value in params.items() if value is not None}
    return Request("GET", path, given)


def segment(text: object) -> str:
    """Return text as one segment of a path."""
    return quote(str(text), safe="")


def fetch_version() -> Steps[str]:
    """Ask for the version of the node."""
    (version,) = (yield get("/ceramic/version")).fields("version")
    return str(version)


def fetch_event(cid: CID) -> Steps[Event]:
    """Fetch an event.

    Raises:
        NotFoundError: the node does not have it.
    """
    (data,) = (yield get(f"/ceramic/events/{cid}")).fields("data")
    return read_event(data)


def send_event(event: Event) -> Steps[None]:
    """Send an event. Sending it again does no harm.

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


def add_interest(
    sort_key: str, sort_value: str, controller: str | None, stream: StreamId | None
) -> Steps[None]:
    """Register an interest."""
    body = {"sep": sort_key, "sepValue": sort_value}
    if controller is not None:
        body["controller"] = controller
    if stream is not None:
        body["streamId"] = str(stream)
    answer = yield Request("POST", "/ceramic/interests", json=body)
    answer.check()
    if answer.text and not isinstance(answer.json, dict):
        raise NodeError(answer.status, NO_NODE)


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
