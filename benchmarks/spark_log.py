"""Fills a node's log and serves it, for the pipeline's benchmarks.

    python -m benchmarks.spark_log DIRECTORY [--events N] [--streams N] [--port PORT]

Creates the log in DIRECTORY if it does not exist, prints the URL of the node's API, and serves it
until it is stopped. To try `spark-sink` on many events:

    python -m benchmarks.spark_log ./log --events 100000 --port 5101
    spark-sink run --tables ./tables --once
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import structlog
import trio
from nacl.signing import SigningKey

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import ListenError, open_listener
from recon_node.api.server import serve
from recon_node.base.errors import unwrapped
from recon_node.ceramic import Event, Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.ipld import CID
from recon_node.store import StoreError, open_store

NETWORK = Network.local(5)
KEY = SigningKey(bytes([7]) * 32)
PROPERTIES = {"title": {"type": "string"}, "body": {"type": "string"}}
DEFINITION = ModelDefinition(name="Post", schema={"properties": PROPERTIES})
MODEL = model_event(KEY, DEFINITION.to_json())
MODEL_ID = StreamId(StreamType.MODEL, MODEL.cid)
_BATCH = 10_000


@dataclass
class RandomEvents:
    """Signed events of so many documents of the model, whose turns come at random."""

    streams: int
    random: Random = field(default_factory=lambda: Random(5))
    _tips: dict[int, tuple[CID, CID]] = field(default_factory=dict)
    """The init event and the tip of each document that has begun."""

    def __next__(self) -> Event:
        """Return the next event of a document: its init event, or an update of all of its body."""
        number = self.random.randrange(self.streams)
        if number not in self._tips:
            content = {"title": f"post {number}", "body": "x" * 100}
            event = init_event(KEY, MODEL_ID, content, unique=number.to_bytes(8, "big"))
            init = event.cid
        else:
            init, tip = self._tips[number]
            body = f"{self.random.getrandbits(256):0100x}"
            event = data_event(
                KEY, init, [tip], [{"op": "replace", "path": "/body", "value": body}]
            )
        self._tips[number] = init, event.cid
        return event

    def __iter__(self) -> Iterator[Event]:
        return self


async def fill_log(directory: Path, events: int, streams: int) -> None:
    """Create a log that has so many events: the model, and random ones of some documents."""
    cars = chain([MODEL.car], (event.car for event in islice(RandomEvents(streams), events - 1)))
    async with open_store(directory, NETWORK) as store:
        while piece := list(islice(cars, _BATCH)):
            await store.admit_local(piece)


async def serve_log(directory: Path, port: int = 0) -> None:
    """Serve a log with the node's own API until SIGINT or SIGTERM; print the URL.

    Args:
        directory: of the log.
        port: on loopback; 0 for any that is free.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_store(directory, NETWORK) as store, trio.open_nursery() as nursery:
            services = Services(store=store)
            listener = await open_listener("127.0.0.1", port)
            print(listener.url, flush=True)
            nursery.start_soon(serve, create_app(services), listener, services.closing)
            await anext(signals)
            nursery.cancel_scope.cancel()


def _drop(*_: object) -> Any:
    raise structlog.DropEvent


def main() -> None:
    """Create and serve a log from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_log",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="directory of the log")
    parser.add_argument("--events", type=int, help="number of events of a new log")
    parser.add_argument("--streams", type=int, help="of a new log; default: a tenth of the events")
    parser.add_argument("--port", type=int, default=0, help="port of the API; default: a free one")
    options = parser.parse_args()
    there = options.directory.exists()
    if there and options.events is not None:
        parser.error(f"{options.directory} already exists: omit --events to serve it")
    if not there and (options.events is None or options.events < 1):
        parser.error(f"there is no log in {options.directory}: give its size with --events")
    structlog.configure(processors=[_drop])
    try:
        with unwrapped():
            if not there:
                streams = options.streams or max(1, options.events // 10)
                trio.run(fill_log, options.directory, options.events, streams)
            trio.run(serve_log, options.directory, options.port)
    except (ListenError, StoreError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
