"""Reading objects from a web server, which may be anybody's.

obstore keeps the body of an answer that is an error, however long it is, and goes on after whoever
asked has left. Here all requests run on an event loop in a thread of their own, so that each step
of an answer is bounded, and its end can be enforced while its server sends: of an error a few bytes
are read, of a redirect none. Calls block, and come from any thread.

Redirects are followed, but from a public server only to public addresses (as the OWASP guide to
server-side request forgery has it). A server in a private network may lead anywhere. Whoever owns a
name can have it resolve to another address each time, so what counts is which addresses are
connected: a server is public if its connection is, and a private one is closed before the request.
"""

import os
import random
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import httpx
import trio

from recon_node.base.bodies import read_body
from recon_node.base.connection import ProxyError, usable_proxy
from recon_node.base.errors import reason_of
from recon_node.fairness.pacing import Backoff
from recon_node.fairness.slots import ip_of

_MAX_CONNECTIONS: Final = 32
"""As many as the requests that two parts of a tree make at once."""
_MAX_REDIRECTS: Final = 10
_SHOWN: Final = 300
"""Bytes of an error's body that are read, to be shown."""
_GAPS: Final = Backoff(first=0.2, longest=5.0)
"""Seconds between two attempts."""
_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/.{1,20}", re.ASCII)
_HEADERS: Final = {"accept-encoding": "identity", "user-agent": "recon-node"}


class _LaterError(OSError):
    """The server does not answer as it should; it may do so later."""


@dataclass(frozen=True, slots=True)
class WebServer:
    """A web server that objects are read from.

    Args:
        url: below which they are.
        timeout: seconds in which an answer must begin, and without a byte of it.
        total_timeout: seconds for one answer, however steadily it trickles.
        retries: how often a request is made again.
    """

    url: str
    timeout: float
    total_timeout: float
    retries: int

    def read(self, name: str, most: int, start: int | None = None) -> bytes:
        """Return an object, or `most` bytes of it from one on; a few more than `most` if more come.

        Raises:
            FileNotFoundError: it is missing.
            OSError: it cannot be read.
        """
        try:
            token, client = _requests(os.getpid())
        except ProxyError as error:
            raise OSError(str(error)) from None
        return trio.from_thread.run(self._read, client, name, most, start, trio_token=token)

    async def _read(
        self, client: httpx.AsyncClient, name: str, most: int, start: int | None
    ) -> bytes:
        for attempt in range(self.retries + 1):
            try:
                with trio.fail_after(self.total_timeout):
                    return await self._get(client, name, most, start)
            except trio.TooSlowError:
                limits = f"{self.timeout:g} s for its head, {self.total_timeout:g} s for all"
                raise OSError(f"the answer takes too long ({limits})") from None
            except (httpx.HTTPError, httpx.InvalidURL, _LaterError) as error:
                if attempt == self.retries:
                    raise OSError(reason_of(error)) from None
            await trio.sleep(_GAPS.wait(attempt + 1, random.random()))
        raise AssertionError("the last attempt returns or raises")

    async def _get(
        self, client: httpx.AsyncClient, name: str, most: int, start: int | None
    ) -> bytes:
        headers = dict(_HEADERS)
        if start is not None:
            headers["range"] = f"bytes={start}-{start + most - 1}"
        url = f"{self.url.rstrip('/')}/{quote(name)}"
        request = client.build_request("GET", url, headers=headers, timeout=self.timeout)
        for _ in range(_MAX_REDIRECTS + 1):
            with trio.fail_after(self.timeout):
                answer = await client.send(request, stream=True)
            try:
                if answer.next_request is None:
                    return await _body(answer, most, start)
                await _check_redirect(answer, answer.next_request)
                request = answer.next_request
            finally:
                await answer.aclose()
        raise OSError(f"more than {_MAX_REDIRECTS} redirects")


async def _check_redirect(answer: httpx.Response, following: httpx.Request) -> None:
    """Check that a public server does not lead to what only this machine or its network can reach,
    now and when it is connected.

    Raises:
        OSError: it does.
    """
    source, target = answer.request.url.host, following.url.host
    if _is_at_public_address(answer.extensions.get("network_stream")):
        following.extensions["trace"] = _check_connection
    elif not await _is_public(source):  # it may be behind a proxy, whose address says nothing
        return
    if not await _is_public(target):
        raise OSError(f"{source} redirects to {target}, which is not a public address")


async def _check_connection(event: str, info: Mapping[str, Any]) -> None:
    """Close a new connection with an address that is not public.

    httpx calls this at each step of a request.

    Raises:
        OSError: it was closed.
    """
    if event != "connection.connect_tcp.complete":
        return
    stream = info["return_value"]
    if not _is_at_public_address(stream):
        await stream.aclose()
        raise OSError("a redirect leads to an address that is not public")


def _is_at_public_address(stream: Any) -> bool:
    """Return whether a network stream of httpcore is connected with a public address."""
    return stream is not None and _is_global(stream.get_extra_info("server_addr")[0])


async def _is_public(host: str) -> bool:
    """Return whether all addresses of a host are public; so is one that has none here."""
    with suppress(socket.gaierror):
        infos = await trio.socket.getaddrinfo(host, None)
        return all(_is_global(str(sockaddr[0])) for *_, sockaddr in infos)
    return True


def _is_global(address: str) -> bool:
    ip = ip_of(address)
    return ip is not None and ip.is_global


async def _body(answer: httpx.Response, most: int, start: int | None) -> bytes:
    """Return the body of an answer, if it is one to this question."""
    status = answer.status_code
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise FileNotFoundError(status)
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        text = (await read_body(answer, _SHOWN)).decode("utf-8", "replace")
        kind = _LaterError if status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS else OSError
        raise kind(f"HTTP status {status}: {text}")
    if start is not None:
        sent = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if status != HTTPStatus.PARTIAL_CONTENT or sent is None or int(sent[1]) != start:
            raise OSError("the server does not answer requests for ranges of bytes")
    return await read_body(answer, most)


@lru_cache(maxsize=1)
def _requests(process: int) -> tuple[trio.lowlevel.TrioToken, httpx.AsyncClient]:
    """Return the event loop of all requests of this process, and what makes them.

    Raises:
        ProxyError: the environment names a proxy that cannot be used.
    """
    most = _MAX_CONNECTIONS
    limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
    context = ssl.create_default_context()  # the authorities that this machine trusts
    with usable_proxy():
        client = httpx.AsyncClient(limits=limits, verify=context)
    ready = threading.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        ready.set()
        await trio.sleep_forever()

    threading.Thread(target=trio.run, args=(serve,), daemon=True, name="web").start()
    ready.wait()
    return tokens[0], client
