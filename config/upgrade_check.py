"""Check that a version continues with the data of another: `upgrade_check.py OLD NEW [EVENTS]`.

OLD and NEW are `recon-node` commands. OLD gets events and is stopped, NEW opens its data directory:
it has the same set, feed and identity.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVENTS = Path(__file__).parents[1] / "tests" / "data" / "sdk_sample.jsonl"
LIMIT = 120.0
"""Seconds until a node answers."""


@contextmanager
def running(command: str, data_dir: Path) -> Iterator[str]:
    """Run a node; the value is the URL of its API."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        api = f"127.0.0.1:{free.getsockname()[1]}"
    flags = ["--network", "local-1", "--data-dir", str(data_dir), "--api", api, "--no-discovery"]
    listen = ["--listen", "/ip4/127.0.0.1/tcp/0"]
    with subprocess.Popen([command, "run", *flags, *listen]) as node:
        try:
            deadline = time.monotonic() + LIMIT
            while True:
                try:
                    read(f"http://{api}", "/ceramic/version")
                    break
                except OSError:
                    if node.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit(f"{command} does not start") from None
                    time.sleep(0.2)
            yield f"http://{api}"
        finally:
            node.send_signal(signal.SIGTERM)
    if node.returncode:
        raise SystemExit(f"{command} ended with {node.returncode}")


def read(url: str, path: str) -> Any:
    """Return the JSON of an answer."""
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return json.load(answer)


def facts(url: str) -> dict[str, Any]:
    """What must be the same in both versions."""
    recon = read(url, "/ceramic/recon")
    names = ("sha256a", "events", "head", "epoch", "peer_id")
    feed: list[str] = []
    token = "0"
    while (page := read(url, f"/ceramic/feed/events?limit=10000&resumeAt={token}"))["events"]:
        feed += [event["id"] for event in page["events"]]
        token = page["resumeToken"]
    return {name: recon[name] for name in names} | {"feed": feed}


def main(old: str, new: str, events: str = str(EVENTS)) -> None:
    """Run both, and compare."""
    with tempfile.TemporaryDirectory() as directory:
        with running(old, Path(directory)) as url:
            subprocess.run([old, "events", "add", events, "--url", url], check=True)
            before = facts(url)
        with running(new, Path(directory)) as url:
            after = facts(url)
    if before != after or not before["feed"]:
        raise SystemExit(f"the data is not the same: {before} became {after}")
    print(f"{len(before['feed'])} events written by {old} are read by {new}")


if __name__ == "__main__":
    main(*sys.argv[1:])
