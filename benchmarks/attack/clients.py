"""Attacks by clients of the API: bodies in tiny chunks, answers that nobody reads, long paths."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field, make_model
from recon_node.ceramic import Event
from recon_node.ceramic.builder import init_event

SECONDS: Final = 8.0
"""How long each attack lasts."""
_CHUNKS: Final = b"1\r\na\r\n" * 10_000
_Client = Callable[[int, bytes, float], None]


@attack(short=True)
def tiny_chunks(here: Field) -> None:
    """A body in chunks of one byte is work that only the node has, all in one step of its loop."""
    with here.attacked(), _clients(here, 20, _send_chunks):
        time.sleep(SECONDS)


@attack()
def answers_that_nobody_reads(here: Field) -> None:
    """Clients that ask for pages of the feed and do not read them make the node keep them all."""
    events = _large_events(6, lambda number: str(number) + "z" * 900_000)
    here.add(events)
    here.await_event(events[-1])
    page = b"/ceramic/feed/events?limit=10000&includeData=full"
    with here.attacked(), _clients(here, 120, _ask_and_wait, page):
        time.sleep(3 * SECONDS)


@attack()
def paths_into_large_blocks(here: Field) -> None:
    """A path into a block of many lists is a short request that takes long to answer."""
    [model, event] = _large_events(1, lambda _: [[]] * 240_000)
    here.add([model, event])
    here.await_event(event)
    path = f"/api/v0/dag/resolve?arg={event.cid}/link/data/a/0".encode()
    with here.attacked(), _clients(here, 32, _ask_again, path):
        time.sleep(SECONDS)


@attack()
def requests_sent_ahead(here: Field) -> None:
    """Clients that send 10,000 requests at once, and come again when they are cut off, take all
    turns of the event loop."""
    with here.attacked(), _clients(here, 8, _send_ahead):
        time.sleep(SECONDS)


def _large_events(count: int, content: Callable[[int], object]) -> list[Event]:
    key = SigningKey.generate()
    model, model_id = make_model(key)
    contents = ({"a": content(number)} for number in range(count))
    events = [
        init_event(key, model_id, content, unique=bytes([number]))
        for number, content in enumerate(contents)
    ]
    return [model, *events]


@contextmanager
def _clients(here: Field, count: int, client: _Client, target: bytes = b"") -> Iterator[None]:
    """Run clients in a process of their own, so that they don't take the node's turns."""
    port = int(here.url.rpartition(":")[2])
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run, args=(client, count, port, target), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _run(client: _Client, count: int, port: int, target: bytes) -> None:
    end = time.monotonic() + 10 * SECONDS
    threads = [threading.Thread(target=client, args=(port, target, end)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def _request(port: int, head: bytes) -> Iterator[socket.socket]:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        client.sendall(head + b" HTTP/1.1\r\nHost: localhost\r\n")
        yield client


def _send_chunks(port: int, target: bytes, end: float) -> None:
    while time.monotonic() < end:
        with suppress(OSError), _request(port, b"POST /ceramic/events") as client:
            client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
            while time.monotonic() < end:
                client.sendall(_CHUNKS)


def _ask_and_wait(port: int, target: bytes, end: float) -> None:
    time.sleep(int.from_bytes(os.urandom(1)) / 100)
    while time.monotonic() < end:
        with suppress(OSError), _request(port, b"GET " + target) as client:
            client.sendall(b"\r\n")
            time.sleep(2 * SECONDS)


def _ask_again(port: int, target: bytes, end: float) -> None:
    while time.monotonic() < end:
        with suppress(OSError), _request(port, b"POST " + target) as client:
            client.sendall(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            while client.recv(4096):
                pass


def _send_ahead(port: int, target: bytes, end: float) -> None:
    requests = b"GET /ceramic/version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(requests)
