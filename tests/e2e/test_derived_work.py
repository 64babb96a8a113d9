"""What strangers write decides neither the memory of a daemon nor how fast it answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from recon_node.ceramic import Event
from recon_node.ceramic.builder import (
    controller_of,
    data_event,
    deterministic_init_event,
    init_event,
    model_event,
)
from recon_node.ipld import multibase

KEY = SigningKey(bytes(32))
MIB = 1024 * 1024
READY = re.compile(r'"api": ?"(http://[^"]*)"')
MAX_GROWTH = 300 * MIB
"""Of the daemon's memory, while it is asked about all of it."""
MAX_WAIT = 1.0
"""Seconds that it may take to say that it lives; more while the machine is busy."""


def model(schema: dict[str, Any], **more: Any) -> Event:
    definition = {
        "version": "2.0",
        "name": "Post",
        "interface": False,
        "implements": [],
        "schema": {"type": "object", "additionalProperties": False, **schema},
        "accountRelation": {"type": "list"},
        **more,
    }
    return model_event(KEY, definition)


def set_with_repeated_fields() -> list[Event]:
    relation = {"type": "set", "fields": ["a"] * 3000}
    of = model({"properties": {"a": {}}}, accountRelation=relation)
    init = deterministic_init_event(controller_of(KEY), of.stream_id(), unique=b"x")
    long = [{"op": "add", "path": "/a", "value": "y" * 900_000}]
    return [of, init, data_event(KEY, init, [init.cid], long)]


def slow_schema() -> list[Event]:
    """With formats, it froze the daemon for 40 s; each small event caused the check again."""
    slow = {"anyOf": [*[{"pattern": f"^(\\d|\\.)*z{n}$"} for n in range(200)], {}]}
    draft = "http://json-schema.org/draft-07/schema#"
    of = model({"$schema": draft, "properties": {"a": {**slow, "format": "uri"}, "b": {}}})
    events = [init_event(KEY, of.stream_id(), {"a": "1." * 300_000, "b": 0}, unique=b"u")]
    for n in range(40):
        patch = [{"op": "replace", "path": "/b", "value": n}]
        events.append(data_event(KEY, events[0], [events[-1].cid], patch))
    return [of, *events]


def long_paths() -> list[Event]:
    of = model({"properties": {}, "patternProperties": {"": {}}})
    name, members = "n" * 240_000, 6_000
    before = {name: {f"{n:x}": 0 for n in range(members)}}
    init = init_event(KEY, of.stream_id(), before, unique=b"u")
    branches = [
        data_event(
            KEY,
            init,
            [init.cid],
            [{"op": "replace", "path": f"/{name}", "value": {f"{n:x}": v for n in range(members)}}],
        )
        for v in (1, 2)
    ]
    return [of, init, *branches]


def tangled() -> list[Event]:
    """Layers of events, each of which merges all of the layer below."""
    of = model({"properties": {"a": {}}})
    events = [init_event(KEY, of.stream_id(), {"a": 0}, unique=b"u")]
    below = events
    for layer in range(8):
        prevs = [event.cid for event in below]
        below = [
            data_event(KEY, events[0], prevs, [{"op": "add", "path": "/a", "value": [layer, n]}])
            for n in range(40)
        ]
        events += below
    return [of, *events]


@contextmanager
def daemon(directory: Path) -> Iterator[tuple[int, str]]:
    log = directory / "log"
    command = ["run", "--data-dir", str(directory / "data"), "--api", "127.0.0.1:0"]
    network = ["--network", "local-7", "--listen", "/ip4/127.0.0.1/tcp/0", "--log-format", "json"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "recon_node", *command, *network],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "RECON_NODE_DISCOVERY": "false"},
        )
    try:
        until = time.monotonic() + 90
        while not (ready := READY.search(log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield process.pid, ready[1]
    finally:
        process.terminate()
        process.wait(60)


def memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) * 1024


@pytest.mark.long
def test_it_stays_small_and_answers(tmp_path: Path) -> None:
    streams = [set_with_repeated_fields(), slow_schema(), long_paths(), tangled()]
    honest = [of := model({"properties": {"a": {}}}, description="honest")]
    honest.append(init_event(KEY, of.stream_id(), {"a": "hello"}, unique=b"u"))
    names = [model({"properties": {}}, name="n" * 900_000 + str(n)) for n in range(20)]
    with daemon(tmp_path) as (pid, url), httpx.Client(base_url=url, timeout=120) as client:
        for event in [*honest, *(e for events in streams for e in events), *names]:
            body = {"data": multibase.encode(event.car, "base64url")}
            assert client.post("/ceramic/events", json=body).status_code == 204
        honest_path = f"/ceramic/streams/{honest[1].stream_id()}"
        assert client.get(honest_path).status_code == 200
        before = memory(pid)
        waits: list[float] = []
        done = threading.Event()

        def watch() -> None:
            with httpx.Client(base_url=url, timeout=120) as other:
                while not done.wait(0.05):
                    start = time.monotonic()
                    other.get("/ceramic/liveness")
                    waits.append(time.monotonic() - start)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for events in streams:
                stream = f"/ceramic/streams/{events[1].stream_id()}"
                for path in ("", "/events", "/merge", "/picture"):
                    answer = client.get(stream + path)
                    assert answer.status_code in (200, 400, 404), answer.text[:300]
                    assert len(answer.content) < 32 * MIB
            for path in ("/ceramic/streams", "/ceramic/models"):
                assert len(client.get(path).content) < MIB
            assert client.get(honest_path).status_code == 200
        finally:
            done.set()
            watcher.join()
        assert memory(pid) - before < MAX_GROWTH
        slack = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert max(waits) < MAX_WAIT * slack
        assert client.get("/ceramic/unprocessed").json()["streams"] == []
