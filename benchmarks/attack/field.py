"""Where an attack takes place: a node, an honest peer, and a stream of an honest owner."""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import httpx
from nacl.signing import SigningKey

from benchmarks.attack.measuring import Bounds, Row, is_so, watched
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

NETWORK: Final = "local-7"
_FLAGS: Final = ("--network", NETWORK, "--sync-interval", "2", "--no-discovery")
_SCHEMA: Final = {"properties": {"a": {"type": "string"}}}
_MODEL: Final = ModelDefinition(name="Model", schema=_SCHEMA).to_json()
_HONEST_VALUES: Final = 3
OWNER: Final = SigningKey(b"the owner of the honest stream..")


def make_model(key: SigningKey, **changes: Any) -> tuple[Event, StreamId]:
    """A model whose documents have a text `a`, or one with changes."""
    event = model_event(key, {**_MODEL, **changes})
    return event, StreamId(StreamType.MODEL, event.cid)


def document_id(init: Event) -> str:
    """The id of a document's stream."""
    return str(StreamId(StreamType.MODEL_INSTANCE, init.cid))


def chained(key: SigningKey, init: Event, patches: Iterable[dict[str, Any]]) -> list[Event]:
    """A document and updates of it by one operation each, each on the one before."""
    chain = [init]
    for patch in patches:
        chain.append(data_event(key, init, [chain[-1].cid], [patch]))
    return chain


def updated(key: Any, init: Event, count: int) -> list[Event]:
    """A document and updates of its text `a`, to `v1`, `v2` and so on."""
    values = (f"v{number}" for number in range(1, count + 1))
    return chained(key, init, ({"op": "replace", "path": "/a", "value": v} for v in values))


def add(url: str, events: Iterable[Event], timeout: float = 60) -> list[dict[str, Any]]:
    """Give events to a node by its API, a few at a time; returns the verdicts."""
    verdicts: list[dict[str, Any]] = []
    left = list(events)
    while left:
        size, count = 0, 0
        for event in left:
            size += len(event.car)
            if count and size > 2_000_000:
                break
            count += 1
        now, left = left[:count], left[count:]
        body = "\n".join(json.dumps({"data": multibase.encode(event.car)}) for event in now)
        answer = httpx.post(
            f"{url}/ceramic/events",
            content=body,
            headers={"content-type": "application/x-ndjson"},
            timeout=timeout,
        )
        verdicts += answer.raise_for_status().json()
    return verdicts


@dataclass(slots=True)
class Field:
    """A node that is attacked, an honest peer of it, and an honest owner's stream there."""

    node: TestnetNode
    peer: TestnetNode
    bounds: Bounds
    directory: Path
    rows: list[Row] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    """Of the honest peer, on all events that it was given."""
    stream: str = ""
    _model: StreamId | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def url(self) -> str:
        """Where the API of the node that is attacked listens."""
        return self.node.api_url

    def get(self, path: str, timeout: float = 60) -> httpx.Response:
        """Ask the node that is attacked."""
        return httpx.get(self.url + path, timeout=timeout)

    def add(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """Give events to the honest peer, from which the node gets them by Recon."""
        verdicts = add(self.peer.api_url, events)
        self.verdicts.update(verdict["status"] for verdict in verdicts)
        return verdicts

    def status(self) -> dict[str, Any]:
        """What the node says of itself."""
        return dict(self.get("/ceramic/recon").raise_for_status().json())

    def content(self, stream: str) -> Any:
        """The content of a stream at the node."""
        answer = self.get(f"/ceramic/streams/{stream}").raise_for_status().json()
        return json.loads(multibase.decode(answer["data"]))["content"]

    def await_event(self, event: Event, limit: float = 60) -> float:
        """Wait until the node has an event; returns the seconds.

        Raises:
            TimeoutError: it has not, in time.
        """
        started = time.monotonic()
        with httpx.Client(base_url=self.url, timeout=limit) as client:
            while time.monotonic() - started < limit:
                if client.get(f"/ceramic/events/{event.cid}").status_code == 200:
                    return time.monotonic() - started
                time.sleep(0.02)
        raise TimeoutError(f"{event.cid} is not at the node after {limit:g} s")

    @contextmanager
    def attacked(self) -> Iterator[None]:
        """Measure while the block runs, and see that the honest stream is what it was."""
        with watched(self.node.pid or 0, self._look, self._cross) as measured:
            yield
        self.rows += measured.rows(self.bounds)
        value = f"v{_HONEST_VALUES}"
        self.rows.append(is_so("honest stream", {"a": value}, self.content(self.stream)))
        events = self.get(f"/ceramic/streams/{self.stream}/events")
        self.rows.append(is_so("honest stream's events", 200, events.status_code))

    def expect(self, what: str, expected: object, actual: object) -> None:
        """Note a fact that the attack must not change."""
        self.rows.append(is_so(what, expected, actual))

    def at_most(self, what: str, seconds: float, bound: float) -> None:
        """Note how long something took."""
        self.rows.append(self.bounds.at_most(what, seconds, bound))

    @contextmanager
    def newcomer(self) -> Iterator[TestnetNode]:
        """Start another honest node, which knows the one that is attacked."""
        flags = [*_FLAGS, "--bootstrap", self.node.addresses[0]]
        node = TestnetNode("newcomer", self.directory, flags)
        try:
            node.launch()
            node.wait_until_ready()
            yield node
        finally:
            node.discard()

    def _begin(self) -> None:
        model, self._model = make_model(OWNER)
        init = init_event(OWNER, self._model, {"a": "v0"}, unique=b"honest")
        chain = updated(OWNER, init, _HONEST_VALUES)
        self.add([model, *chain])
        self.await_event(chain[-1])
        self.stream = document_id(init)
        self.content(self.stream)  # the processes that read streams are there from now on
        self._cross()

    def _look(self) -> None:
        host = self.url.removeprefix("http://")
        with closing(HTTPConnection(host, timeout=60)) as client:  # httpx takes 35 ms to begin
            client.request("GET", "/ceramic/liveness")
            if (status := client.getresponse().status) != 200:
                raise RuntimeError(f"liveness answered {status}")

    def _cross(self) -> None:
        number = next(self._numbers)
        assert self._model is not None
        unique = number.to_bytes(4, "big")
        event = init_event(OWNER, self._model, {"a": "new"}, unique=unique)
        self.add([event])
        self.await_event(event)


@contextmanager
def prepared(directory: Path, flags: Sequence[str], bounds: Bounds) -> Iterator[Field]:
    """Start a node with these flags, and an honest peer that is connected with it."""
    directory = directory / secrets.token_hex(4)
    directory.mkdir(parents=True)
    node = TestnetNode("node", directory, [*_FLAGS, *flags])
    peer = TestnetNode("peer", directory, _FLAGS)
    try:
        node.launch()
        node.wait_until_ready()
        peer.launch(["--bootstrap", node.addresses[0]])
        peer.wait_until_ready()
        here = Field(node, peer, bounds, directory)
        here._begin()
        yield here
    finally:
        for daemon in (peer, node):
            daemon.discard()
        shutil.rmtree(directory, ignore_errors=True)
