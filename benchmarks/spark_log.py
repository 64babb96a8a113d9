"""Fills a node's log quickly and serves it, for the pipeline's benchmarks.

    python -m benchmarks.spark_log DIRECTORY [--events N] [--streams N] [--port PORT]

Creates the log in DIRECTORY if it does not exist, prints the URL of the node's API, and serves it
until it is stopped. To try `spark-sink` on many events:

    python -m benchmarks.spark_log ./log --events 100000 --port 5101
    spark-sink run --tables ./tables --once

Admission would take a few thousand signed events per second, and is not what is measured here. So
rows are written directly to the log: real events in real CARs, in an order in which a node could
have delivered them, but with zeros as signatures, which no reader of the log checks.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import trio
from nacl.signing import SigningKey

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import ListenError, open_listener
from recon_node.api.server import serve
from recon_node.base.errors import unwrapped
from recon_node.ceramic import Event, EventId, Network, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import init_event, model_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor
from recon_node.store import StoreError, open_store
from recon_node.store.admission.records import State
from recon_node.store.db.log_schema import open_database

NETWORK = Network.local(5)
KEY = SigningKey(bytes([7]) * 32)
DEFINITION = {
    "version": "2.0",
    "name": "Post",
    "accountRelation": {"type": "list"},
    "interface": False,
    "implements": [],
    "schema": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "body": {"type": "string"}},
        "additionalProperties": False,
    },
}
_BATCH = 10_000
_PROTECTED = b'{"alg":"EdDSA","kid":"did:key:z6Mk"}'


@dataclass(slots=True)
class _Writing:
    """A stream while its events are written."""

    init: CID
    tip: CID
    height: int = 0


@dataclass
class LogFiller:
    """Writes so many events of so many streams, at random times, to a new log."""

    directory: Path
    streams: int
    random: random.Random = field(default_factory=lambda: random.Random(5))
    _first: dict[CID, int] = field(default_factory=dict)

    def fill(self, events: int) -> None:
        """Create the log."""
        self.directory.mkdir(parents=True)
        connection = open_database(self.directory, NETWORK, "normal")
        connection.execute("PRAGMA synchronous = OFF")
        rows = self._rows(events)
        while piece := list(itertools.islice(rows, _BATCH)):
            self._write(connection, piece)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _rows(self, events: int) -> Iterator[tuple[Any, ...]]:
        """(position, EventId, CID, init CID, kind, signer, CAR, sort value of an init event)."""
        model = model_event(KEY, DEFINITION)
        assert model.header is not None
        signer = controller_of(KEY)
        yield self._row(1, model, model.header.sort_value)
        model_id = StreamId(StreamType.MODEL, model.cid)
        sort_value = str(model_id)
        writing: list[_Writing | None] = [None] * self.streams
        for position in range(2, events + 1):
            number = self.random.randrange(self.streams)
            stream = writing[number]
            if stream is None:
                content = {"title": f"post {number}", "body": "x" * 100}
                unique = number.to_bytes(8, "big")
                init = init_event(KEY, model_id, content, unique=unique)
                writing[number] = _Writing(init.cid, init.cid)
                yield self._row(position, init, sort_value)
                continue
            stream.height += 1
            patch = [{"op": "replace", "path": "/body", "value": f"{position:>100}"}]
            cid, whole = _data_event(stream, patch)
            stream.tip = cid
            event_id = EventId.build(NETWORK, sort_value, signer, stream.init, stream.height, cid)
            yield position, event_id, cid, stream.init, "data", signer, whole, None

    def _row(self, position: int, init: Event, sort_value: str) -> tuple[Any, ...]:
        signer = controller_of(KEY)
        event_id = EventId.build(NETWORK, sort_value, signer, init.cid, 0, init.cid)
        return position, event_id, init.cid, init.cid, "init", signer, init.car, sort_value

    def _slim(
        self, position: int, event_id: EventId, cid: CID, init: CID, kind: str
    ) -> tuple[Any, ...]:
        """Return the row of an event."""
        first = self._first.setdefault(init, position)
        name, other = event_id[: -len(cid)], None if kind == "init" else init
        return position, position, name, cid, other, kind, first

    def _write(self, connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO events (id, position, name, cid, init, kind, stream, state) "
            f"VALUES (?, ?, ?, ?, ?, ?, ?, {State.DELIVERED.value})",
            (self._slim(*row[:5]) for row in rows),
        )
        connection.executemany("INSERT INTO cars VALUES (?, ?)", ((row[0], row[6]) for row in rows))
        connection.executemany(
            "INSERT INTO streams VALUES (?, ?, 'model', ?)",
            ((row[3], row[5], row[7]) for row in rows if row[7] is not None),
        )
        connection.execute("COMMIT")


def _data_event(stream: _Writing, patch: Any) -> tuple[CID, bytes]:
    payload = dag_cbor.encode({"id": stream.init, "prev": stream.tip, "data": patch})
    payload_cid = CID.of(DAG_CBOR, payload)
    signature = {"protected": _PROTECTED, "signature": bytes(64)}
    envelope = dag_cbor.encode({"payload": bytes(payload_cid), "signatures": [signature]})
    cid = CID.of(DAG_JOSE, envelope)
    return cid, car.encode([cid], {payload_cid: payload, cid: envelope})


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
    if not there:
        streams = options.streams or max(1, options.events // 10)
        LogFiller(options.directory, streams).fill(options.events)
    structlog.configure(processors=[_drop])
    try:
        with unwrapped():
            trio.run(serve_log, options.directory, options.port)
    except (ListenError, StoreError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
