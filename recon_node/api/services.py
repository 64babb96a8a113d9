"""What the API needs of the node: the store, the peers, the chain, and the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import trio
from pydantic.dataclasses import dataclass as settings_dataclass

from recon_node.api.evaluation import Evaluation
from recon_node.api.middleware.guard import Access
from recon_node.base.setting_types import SETTINGS, Bytes, Count, Setting
from recon_node.fairness.turns import Turns

if TYPE_CHECKING:
    from recon_node.anchoring.anchoring_service import Anchoring
    from recon_node.chain import Anchors
    from recon_node.dag.dag_service import Dags
    from recon_node.p2p import P2P
    from recon_node.snapshot.snapshot_service import Snapshots
    from recon_node.store import Store
    from recon_node.tangles.index import Tangles

T = TypeVar("T")

LOOP_WINDOW: Final = 10.0
"""Seconds for which the longest hold of the event loop is kept at least."""


@settings_dataclass(frozen=True, slots=True, config=SETTINGS)
class Limits:
    """Bounds of a request. Sizes are bytes, times are seconds."""

    body: Annotated[Bytes, Setting(name="max_body_bytes")] = 4 * 1024 * 1024
    """Largest request body, in bytes; a larger one is answered 413."""
    requests: Annotated[Count, Setting(name="max_requests")] = 128
    """Maximum requests at once; one more is answered 503."""
    writes: Count = 1024
    """Maximum requests at once that add events."""
    bodies: Bytes = 64 * 1024 * 1024
    """Bytes of all request bodies at once; further ones are not read until there is room."""
    answers: Bytes = 48 * 1024 * 1024
    """Bytes of the parts of large answers that wait to be sent, at once; others wait for room."""
    stall: float = 60.0
    """A request that makes no progress for this long is given up."""
    wait: float = 30.0
    """Longest `wait` of a long poll."""
    connect: float = 15.0
    """Time to dial a peer for POST /ceramic/peers."""
    feed_events: int = 10_000
    """Maximum events in one answer of the feed."""
    feed_bytes: int = 4 * 1024 * 1024
    """An answer of the feed ends after the event that takes its CARs past this."""
    stream_events: int = 50_000
    """Maximum events of a stream whose state is requested."""
    stream_listed: int = 10_000
    """Maximum events of a stream that is listed or drawn."""
    stream_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of their CARs."""
    stream_seconds: float = 10.0
    """Time to compute the state of a stream."""
    arrow_rows: int = 5_000
    """Maximum rows in one Arrow record batch."""
    arrow_bytes: int = 4 * 1024 * 1024
    """A record batch ends with the event that takes its CARs past this."""


class LoopWatch(trio.abc.Instrument):
    """Measures for how long the event loop is held: between two looks at its sockets and timers,
    nothing else of the node can happen.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = self._begun = now()
        self._longest = self._longest_before = 0.0

    def after_io_wait(self, timeout: float) -> None:
        """Note that the loop has looked at its sockets, and runs tasks from now on."""
        self._since = now = self._now()
        if now - self._begun >= LOOP_WINDOW:
            self._turn(now)

    def before_io_wait(self, timeout: float) -> None:
        """Note that the tasks have run, and the loop looks again."""
        now = self._now()
        if now - self._begun >= LOOP_WINDOW:
            self._turn(now)
        held = now - self._since
        if held > self._longest:
            self._longest = held

    @property
    def longest_hold(self) -> float:
        """The longest hold that ended in the last ten to thirty seconds, in seconds."""
        return max(self._longest, self._longest_before)

    async def run(self) -> None:
        """Measure until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)

    def _turn(self, now: float) -> None:
        passed = now - self._begun
        self._longest_before = self._longest if passed < 2 * LOOP_WINDOW else 0.0
        self._longest, self._begun = 0.0, now


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """Everything that request handlers use."""

    store: Store
    peers: P2P | None = None
    """None: a node without a network side."""
    anchors: Anchors | None = None
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
