"""Requests by clients that cost next to nothing, so that the node is what is measured.

An HTTP library takes as long for a request as the node does, on the same cores; one client alone
needs no event loop either.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import trio

from recon_node.ipld import multibase

_MOST: Final = 65_536
_PATIENCE: Final = 120.0
"""Seconds for which one client alone waits for the node."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


def get(url: str) -> bytes:
    """Return a request that gives the node next to nothing to do."""
    return f"GET /ceramic/liveness HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode()


def post(url: str, car: bytes) -> bytes:
    """Return a request that adds an event."""
    body = b'{"data":"' + multibase.encode(car).encode() + b'"}'
    head = (
        f"POST /ceramic/events HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def send(url: str, requests: Sequence[bytes]) -> list[float]:
    """Send requests over one connection, each once the one before is answered.

    Returns:
        The seconds that each took.
    """
    waits: list[float] = []
    with socket.create_connection(_address(url), _PATIENCE) as connection:
        for request in requests:
            started = time.perf_counter()
            connection.sendall(request)
            answer = b""
            while not _is_whole(answer):
                answer += _more(connection.recv(_MOST), answer)
            waits.append(time.perf_counter() - started)
    return waits


async def send_at_once(url: str, shares: Sequence[Sequence[bytes]]) -> list[float]:
    """Have a client for each share send it as `send` does; return all waits in seconds."""
    waits: list[float] = []

    async def client(stream: trio.SocketStream, share: Sequence[bytes]) -> None:
        for request in share:
            started = time.perf_counter()
            await stream.send_all(request)
            answer = b""
            while not _is_whole(answer):
                answer += _more(await stream.receive_some(_MOST), answer)
            waits.append(time.perf_counter() - started)

    streams = [await trio.open_tcp_stream(*_address(url)) for _ in shares]
    async with trio.open_nursery() as nursery:
        for stream, share in zip(streams, shares, strict=True):
            nursery.start_soon(client, stream, share)
    return waits


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def _is_whole(answer: bytes) -> bool:
    """Return whether an answer has come with its body, whose length is in its head."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 2"):
        raise SystemExit(f"refused: {answer!r}")
    length = _LENGTH.search(head)
    return length is None or len(body) >= int(length[1])


def _more(part: bytes, answer: bytes) -> bytes:
    if not part:
        raise SystemExit(f"the node hung up: {answer!r}")
    return part
