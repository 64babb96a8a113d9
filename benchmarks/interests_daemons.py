"""Daemons with partial interests, and who writes to them; for `python -m benchmarks.interests`."""

from __future__ import annotations

import ctypes
import os
import random
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from nacl.signing import SigningKey

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import init_event, model_event
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

MODELS: Final = 4
KEY: Final = SigningKey(bytes(32))
_CLONE_NEWNET: Final = 0x40000000
_HALVES: Final = ("10.77.0.1", "10.77.0.2")


@dataclass
class Written:
    """An event that was written to a daemon."""

    model: StreamId
    at: float
    """When the write began, on the monotonic clock."""


@dataclass
class Daemon:
    """A daemon, what it wants, and when each event came into its feed."""

    node: TestnetNode
    wanted: list[StreamId]
    namespace: str | None
    arrived: dict[str, float] = field(default_factory=dict)
    """By CID, on the monotonic clock."""
    client: httpx.Client | None = None
    """Of the thread that writes to it."""

    def enter(self) -> None:
        """Let this thread's sockets be in the daemon's network namespace."""
        if self.namespace is not None:
            with Path("/run/netns", self.namespace).open("rb") as handle:
                if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")

    def watch(self, stop: threading.Event) -> None:
        """Follow its feed until told to stop, across restarts."""
        self.enter()
        token = ""
        while not stop.is_set():
            try:
                with httpx.Client(base_url=self.node.api_url, timeout=40) as client:
                    while not stop.is_set():
                        page = client.get(
                            "/ceramic/feed/events",
                            params={"limit": 1000, "wait": 2}
                            | ({"resumeAt": token} if token else {}),
                        )
                        page.raise_for_status()
                        now = time.monotonic()
                        for event in page.json()["events"]:
                            self.arrived.setdefault(event["id"], now)
                        token = page.json()["resumeToken"]
            except httpx.HTTPError:
                time.sleep(0.1)


class Writer:
    """Writes events to random interested daemons, so many a second."""

    def __init__(self, daemons: Sequence[Daemon], models: Sequence[StreamId], rate: float) -> None:
        self._daemons = daemons
        self._models = models
        self._rate = rate
        self._random = random.Random(1)
        self.written: dict[str, Written] = {}
        self._pools = {
            id(daemon): ThreadPoolExecutor(1, initializer=daemon.enter) for daemon in daemons
        }

    def write_for(self, seconds: float) -> list[str]:
        """Write for some time; return the CIDs of what was accepted."""
        began = time.monotonic()
        jobs = []
        for number in range(int(seconds * self._rate)):
            time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            model = self._random.choice(self._models)
            daemon = self._random.choice(
                [candidate for candidate in self._daemons if model in candidate.wanted]
            )
            jobs.append(self._pools[id(daemon)].submit(self._write, daemon, model))
        return [cid for job in jobs if (cid := job.result()) is not None]

    def _write(self, daemon: Daemon, model: StreamId) -> str | None:
        event = init_event(KEY, model, {"n": 0}, unique=secrets.token_bytes(12))
        at = time.monotonic()
        try:
            if daemon.client is None:
                daemon.client = httpx.Client(base_url=daemon.node.api_url, timeout=30)
            post(daemon.client, event)
        except httpx.HTTPError:
            return None  # it is not running
        self.written[str(event.cid)] = Written(model, at)
        return str(event.cid)


def post(client: httpx.Client, event: Event) -> None:
    """Write an event to a daemon; an HTTPError says that it was not accepted."""
    body = {"data": multibase.encode(event.car)}
    client.post("/ceramic/events", json=body).raise_for_status()


@contextmanager
def two_halves() -> Iterator[tuple[str, str, str] | None]:
    """Yield two network namespaces and the one between them; None where they cannot be made."""
    if os.geteuid() or not shutil.which("ip"):
        yield None
        return
    tag = secrets.token_hex(2)
    left, right, middle = names = [f"recon-{tag}-{place}" for place in ("l", "r", "m")]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", middle, "link", "add", "bridge", "type", "bridge")
        ip("-n", middle, "link", "set", "bridge", "up")
        for name, address in zip((left, right), _HALVES, strict=True):
            port = f"to-{name[-1]}"
            pair = ("type", "veth", "peer", "name", port, "netns", middle)
            ip("-n", name, "link", "add", "eth", *pair)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            for device in ("eth", "lo"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", middle, "link", "set", port, "master", "bridge", "up")
        yield left, right, middle
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True)


def start(count: int, directory: Path, halves: tuple[str, str, str] | None) -> list[Daemon]:
    """Start the daemons. All know the first one only."""
    models = [model_of(number) for number in range(MODELS)]
    network = f"local-{secrets.randbelow(2**32)}"
    daemons = []
    for number in range(count):
        wanted = [models[number % MODELS]]
        if number % 2:
            wanted.append(models[(number + 1) % MODELS])
        flags = ["--network", network]
        for model in wanted:
            flags += ["--interest", f"model={model}"]
        side = number % 2
        node = TestnetNode(
            f"node-{number}",
            directory,
            flags,
            host="127.0.0.1" if halves is None else _HALVES[side],
            prefix=() if halves is None else ("ip", "netns", "exec", halves[side]),
        )
        daemons.append(Daemon(node, wanted, None if halves is None else halves[side]))
    first, *others = daemons
    first.node.launch()
    first.node.wait_until_ready()
    for other in others:
        other.node.launch(["--bootstrap", first.node.addresses[0]])
    for other in others:
        other.node.wait_until_ready(180.0)
    return daemons


def model_of(number: int) -> StreamId:
    """Return the StreamID of a made-up model."""
    return StreamId(StreamType.MODEL, model_event(KEY, {"name": str(number)}).cid)
