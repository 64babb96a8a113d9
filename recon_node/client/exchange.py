"""Requests about single events and interests, and what all requests have in common."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from recon_node.ceramic import Event, InvalidEventError, StreamId, parse_event
from recon_node.client.errors import InvalidArgumentError, RefusedEventError
from recon_node.client.given import CidRef, StreamRef, to_cid, to_stream_id
from recon_node.client.session import Session, Steps
from recon_node.connection import NodeError, NotANodeError, Request
from recon_node.ipld import IpldError, multibase


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


def register_interest(
    session: Session,
    model: StreamRef | None = None,
    *,
    sort_key: str = "model",
    sort_value: str | None = None,
    controller: str | None = None,
    stream: StreamRef | None = None,
) -> Steps[None]:
    """Make the node fetch, from its peers, the events of a model, or of any sort value.

    Args:
        model: whose documents; None if `sort_value` says it.
        sort_key: the field of the events' headers that sorts them.
        sort_value: its value.
        controller: a DID, whose streams only.
        stream: which one only; needs `controller`.

    Raises:
        InvalidArgumentError: neither `model` nor `sort_value` is given, or both are.
        NodeError: the node does not accept the interest.
    """
    if (model is None) is (sort_value is None):
        raise InvalidArgumentError("an interest needs either a model or a sort value")
    value = str(sort_value) if model is None else str(to_stream_id(model))
    body = {"sep": sort_key, "sepValue": value}
    if controller is not None:
        body["controller"] = controller
    if stream is not None:
        body["streamId"] = str(to_stream_id(stream))
    answer = (yield Request("POST", "/ceramic/interests", json=body)).check()
    if answer.text and not isinstance(answer.json, dict):
        raise NotANodeError(answer.status)


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
