"""How soon the node's page is there, and what it costs the node that has many events.

    python -m benchmarks.page [--events N] [--streams N] [--directory DIR] [--json FILE]

A node with that many events runs as a process of its own, and a headless Chromium opens each view
of its page on loopback, the first one with an empty cache. First paint is what the browser itself
measures (`first-contentful-paint`); ready is when the view shows its data. The node measures for
how long its event loop is held (GET /ceramic/recon/samples): first at rest, then while the views
are open.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import trio
from nacl.signing import SigningKey

from benchmarks.report import Row, progress, show
from recon_node.ceramic import Network
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import TestnetNode
from tests.api.browser import browser

NETWORK: Final = Network.local(7)
MODELS: Final = 20
CONTROLLERS: Final = 50
WIDTH: Final = 1280
"""CSS pixels."""
_BATCH: Final = 2000
_SETTLED: Final = 11.0
"""Seconds: a sample of the node is taken every 10."""
VIEWS: Final = {
    "overview": "/#/",
    "streams": "/#/streams",
    "models": "/#/models",
    "feed": "/#/feed",
    "interests": "/#/interests",
    "peers": "/#/peers",
    "syncs": "/#/syncs",
    "undelivered": "/#/undelivered",
    "dags": "/#/dags",
}
_READY: Final = """
    document.querySelector('main h1') !== null && !document.querySelector('main .loading')
    && !document.querySelector('main [role=alert]')
    && !document.querySelector('main h1').textContent.includes('Loading')
"""
_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


async def fill(directory: Path, events: int, streams: int) -> None:
    """Write a log with so many events and streams, by a few models and controllers."""
    keys = [SigningKey(n.to_bytes(32, "big")) for n in range(1, CONTROLLERS + 1)]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    definition = {"version": "1.0", "schema": schema, "accountRelation": {"type": "list"}}
    models = [model_event(keys[0], {"name": f"Model{n}", **definition}) for n in range(MODELS)]
    settings = StoreSettings(synchronous="normal")
    async with open_store(directory, NETWORK, settings=settings) as store:
        await store.admit_local([model.car for model in models])
        cars = []
        for stream in range(streams):
            key, model = keys[stream % CONTROLLERS], models[stream % 7 * stream % MODELS]
            content = {"n": 0, "title": f"Document {stream}"}
            latest = init = init_event(
                key, model.stream_id(), content, unique=stream.to_bytes(4, "big")
            )
            cars.append(init.car)
            for n in range(1, events // streams + (stream < events % streams)):
                patch = [{"op": "replace", "path": "/n", "value": n}]
                latest = data_event(key, init, [latest.cid], patch)
                cars.append(latest.car)
            if len(cars) >= _BATCH or stream == streams - 1:
                await store.admit_local(cars)
                cars = []
                progress(f"{stream + 1} of {streams} streams")


async def visit(url: str, profile: Path) -> list[Row]:
    """Open each view, the first one with an empty cache."""
    rows: list[Row] = []
    async with browser(profile) as page:
        for name, path in VIEWS.items():
            progress(name)
            await page.open("about:blank", WIDTH)
            await page.open(url + path, WIDTH)
            await page.until(_READY)
            ready = await page.run("performance.now()")
            rows.append({"view": name, "paint_ms": await page.run(_PAINT), "ready_ms": ready})
        await trio.sleep(_SETTLED)  # the views' last requests are in the next sample
        assert not page.problems, page.problems
    return rows


def longest_hold(url: str, since: float) -> float:
    """Return for how long the node's event loop was held at most since then, in milliseconds."""
    answer = httpx.get(f"{url}/ceramic/recon/samples", timeout=60)
    samples = answer.raise_for_status().json()
    held: list[float] = [
        lag for at, lag in zip(samples["time"], samples["lag"], strict=True) if at > since
    ]
    return 1000 * max(held)


def run(events: int, streams: int, directory: Path) -> tuple[list[Row], Row]:
    """Fill a node, and open its page."""
    data_dir = directory / "node"
    if not data_dir.exists():
        trio.run(fill, data_dir, events, streams)
    with ExitStack() as stack:
        node = TestnetNode("node", directory, ["--network", NETWORK.name, "--no-discovery"])
        stack.callback(node.stop)
        node.launch()
        node.wait_until_ready()
        time.sleep(_SETTLED)
        progress("at rest")
        begun = time.time()
        time.sleep(2 * _SETTLED)
        rest = longest_hold(node.api_url, begun)
        begun = time.time()
        rows = trio.run(visit, node.api_url, directory / "profile")
        return rows, {
            "events": events,
            "streams": streams,
            "hold_at_rest_ms": rest,
            "hold_ms": longest_hold(node.api_url, begun),
        }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="with the log of an earlier run, kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        rows, hold = run(options.events, options.streams, directory)
    show("The node's page", rows, options.json)
    show("The event loop", [hold], None)


if __name__ == "__main__":
    main()
