"""What an endpoint is: one declaration, from which it is routed, guarded and described.

    @endpoint("GET", "/ceramic/feed/head", own=True)
    async def get_head(call: Call[HeadQuery]) -> FeedHeadBody:
        \"\"\"Ask where the feed stands.\"\"\"

The types of the handler are the models of the parameters and of the answer; the first line of its
docstring is the summary of the operation. `app` finds all endpoints, and `openapi` describes them.
Libraries that do the same for Starlette (spectree, FastAPI) have a shape of their own for errors,
and would need as much code as this to keep ceramic-one's.

A handler gets a `Call`: the request, and the `Services` of the node, which are all that it uses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import trio
from starlette.requests import Request
from starlette.responses import Response

from recon_node.api.evaluation import Evaluation
from recon_node.api.metrics import LoopWatch, Metrics
from recon_node.api.models import Body, Parameters
from recon_node.api.settings import Access, Limits, Need, usual_need
from recon_node.fairness.turns import Turns

if TYPE_CHECKING:
    from recon_node.anchoring.anchoring_service import Anchoring
    from recon_node.chain import ChainReport
    from recon_node.dag.dag_service import Dags
    from recon_node.p2p import P2P
    from recon_node.snapshot.snapshot_service import Snapshots
    from recon_node.store import Store
    from recon_node.tangles.index import Tangles

T = TypeVar("T")
P = TypeVar("P", bound=Parameters)
EXTENSION: Final = "x-recon-node"
"""Marks in the OpenAPI document what a ceramic-one node does not have."""
NDJSON: Final = "application/x-ndjson"
"""The media type of one JSON object per line (https://ndjson.com)."""


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """Everything that request handlers use."""

    store: Store
    peers: P2P | None = None
    """None: a node without a network side."""
    anchors: Sequence[ChainReport] | None = None
    """None: a node without a chain."""
    anchoring: Anchoring | None = None
    """None: a node that anchors nothing."""
    dags: Dags | None = None
    """None: a node without an index of DAGs."""
    tangles: Tangles | None = None
    """None: a node without an index of tangles."""
    snapshots: Snapshots | None = None
    """None: a node that cannot sync from snapshots."""
    data_dir: Path | None = None
    """The disk that is watched; None: none is."""
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    always_admit: Sequence[str] = ()
    """Addresses and networks that always get a slot."""
    loop: LoopWatch = field(default_factory=LoopWatch)
    """Measures the event loop while its `run` does."""
    closing: trio.Event = field(default_factory=trio.Event)
    """Set when the node shuts down: long polls answer at once."""
    evaluation: Evaluation = field(default_factory=partial(Evaluation, 0))
    """Where things are computed of streams."""
    reading_pages: Turns = field(default_factory=partial(Turns, 4))
    """Held by requests that read and render a page of the feed, of up to 4 MiB."""
    _rendering: Turns = field(default_factory=partial(Turns, 1))
    _parsing: Turns = field(default_factory=partial(Turns, 1))

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Render an answer in a worker thread, one at a time: rendering is pure Python, and more
        threads would only take turns with each other and with the event loop."""
        async with self._rendering.taken():
            return await trio.to_thread.run_sync(function)

    async def in_long_thread(self, function: Callable[[], T]) -> T:
        """Parse what may take seconds in a worker thread: one such at a time, beside the rendering,
        which does not wait for it."""
        async with self._parsing.taken():
            return await trio.to_thread.run_sync(function)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[P]):
    """A request to an endpoint, and what is needed to answer it."""

    request: Request
    services: Services
    metrics: Metrics
    parameters: P
    body: bytes
    """The body of the request, which is here before it is handled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A success of an endpoint."""

    description: str
    body: Any = None
    """The model or type of its body; None: it has no body."""
    status: int = 200
    media_type: str = "application/json"
    own: bool = False
    """Whether only this node answers so, and ceramic-one does not."""


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A method of a path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """A template in the notation of Starlette and OpenAPI: `/ceramic/events/{event_id}`."""
    parameters: type[Parameters]
    answers: tuple[Answer, ...]
    handle: Callable[[Call[Any]], Awaitable[Response | Body]]
    body: type[Body] | None
    """The model of a JSON body."""
    lines: str | None
    """Describes a body of many such objects, as NDJSON; None: only one is allowed."""
    binary: str | None
    """Describes a body of bytes; None: it has none."""
    errors: tuple[int, ...]
    """The errors that it may answer, besides those that its method and parameters imply."""
    own: bool
    """Whether only this node has it, and ceramic-one does not."""
    need: Need
    """Whether it needs the token of a node that has one."""


def endpoint(
    method: Literal["GET", "POST", "DELETE"],
    path: str,
    *answers: Answer,
    body: type[Body] | None = None,
    lines: str | None = None,
    binary: str | None = None,
    errors: tuple[int, ...] = (),
    own: bool = False,
    need: Need | None = None,
) -> Callable[[Callable[[Call[P]], Awaitable[Response | Body]]], Endpoint]:
    """Declare an endpoint around its handler; see `Endpoint`.

    A handler returns a model, and has it as its return type; or it returns a response that it has
    rendered itself, and is of the type `Annotated[Response, MODEL]`. Other `answers` are arguments.
    Without `need`, an endpoint needs what is usual for its method.
    """

    def declare(handle: Callable[[Call[P]], Awaitable[Response | Body]]) -> Endpoint:
        hints = get_type_hints(handle, include_extras=True)
        [parameters] = get_args(hints["call"])
        returned = hints["return"]
        if get_origin(returned) is Annotated:
            returned = get_args(returned)[1]
        possible = answers
        if issubclass(returned, Body):
            possible = (Answer((returned.__doc__ or "").strip(), returned), *answers)
        needed = need or usual_need(method)
        return Endpoint(
            method, path, parameters, possible, handle, body, lines, binary, errors, own, needed
        )

    return declare
