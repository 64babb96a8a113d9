"""What every request passes on its way to a handler: counting, who may send it, time and size.

From the outside in:

`Observe` counts and times the request. It logs an unexpected exception and answers 500 without
details. If the answer has begun already, the connection ends without the closing chunk, so that the
client sees a broken answer, not a short one.

`Guard` refuses a request before anything is done for it:

- A POST from a web page of another origin (403). Browsers send simple ones to any address they can
  reach, this machine's loopback included, without asking anyone. Pages of `cors_allow_origins` may
  send them; programs do not send an `Origin`.
- A request without the token, where the node has one and the endpoint needs it (401).
- A client that sends too many requests (429). A wrong token counts like any request, so guessing is
  slow. Programs on this machine are not limited. The rate is kept by token buckets, one for each
  client address. A bucket holds at most `BURST_SECONDS` worth of requests, refills steadily, and is
  full to begin with. So only those that are not full need to be remembered; the table of them is
  bounded, and the bucket that was used least recently goes first.

`Bound` admits at most `Limits.requests` requests at once (503 beyond that), and gives up on one
that makes no progress for `Limits.stall` seconds (503). It reads the whole body before a handler
runs: at most `Limits.body` bytes of it (413), and at most `Limits.bodies` of all bodies; others
wait until there is room. Of large answers, at most `Limits.answers` bytes wait to be sent. Slots
for requests, bodies and answers go to those who earn them (`fairness.slots`): a request that
waits for its body, for news (`wait`), or for its client to read, gives way to others.
The liveness check and the metrics have slots of their own, and so have requests that add events:
very many of them wait for the disk at once, which takes all that wait in one transaction.

Before all of them, the server asks `Hosts`, which refuses a request for another host. A web page
can have the name of its own server point at this node (DNS rebinding). The browser then takes the
node for that server, and lets the page read everything. It still sends the page's name in `Host`.
So a request must name this node by what only the node itself goes by: an address, a name of the
loopback, a name of this machine, or one of the setting `api_hosts`.
"""

import logging
import math
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import structlog
import trio
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recon_node.api.errors import error_response, refuse
from recon_node.api.metrics import Metrics
from recon_node.api.settings import Access, Limits, Need, usual_need
from recon_node.base.timing import span
from recon_node.fairness.slots import (
    ASKER,
    AllowList,
    Slot,
    Slots,
    TokenBuckets,
    address_block_of,
    ip_of,
)

logger = structlog.get_logger(__name__)
_level: Final = logging.getLogger(__name__)
"""Says at once whether a line is wanted; `logger` makes the line first."""

PIECE: Final = 64 * 1024
"""Bytes of an answer that are passed to the connection at a time, and that this one reads and
writes at a time."""

LARGE_PIECE = 1024 * 1024
"""The same, for a quick client: a feed in small pieces takes the node a tenth more CPU. The time
allowed for a piece grows with its size."""

QUICK = 1.0
"""Seconds in which a client must take a large message to count as quick."""

VITAL: Final = frozenset({"/ceramic/liveness", "/metrics"})
"""Paths that are answered whatever else is going on."""

WRITES: Final = "/ceramic/events"
"""Where events are added: these requests have slots of their own."""

VITAL_SLOTS: Final = 8
"""Requests for them at once, beyond the limit."""

SMALL_BODY: Final = 16 * 1024
"""Bytes of a body that need no room among all bodies."""

SMALL_ANSWER: Final = 256 * 1024
"""Bytes of a part of an answer that need no room among all answers."""

BODY_GRACE: Final = 1.0
"""Seconds without a byte after which a body, or the part of an answer, gives way to others."""

_ROOM_POLL: Final = 0.1
"""Seconds between two looks for room."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
"""Those that are counted by name."""

BURST_SECONDS: Final = 2.0
MAX_BUCKETS: Final = 10_000
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:/?#@\[\]\s]+))(?::\d*)?", re.IGNORECASE)


class Observe:
    """Counts requests, and answers 500 after an unexpected exception. See the module's text."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        started = time.perf_counter()
        status: int | None = None

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        self._metrics.in_progress += 1
        try:
            await self._app(scope, receive, watch)
        except Exception:
            logger.exception("A request failed", method=scope["method"], path=scope["path"])
            if status is None:
                response = error_response(
                    scope["path"],
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "internal error: the node's log has the details",
                )
                await response(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.in_progress -= 1
            path = scope.get("template", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.durations[method, path, str(status or 0)].observe(seconds)
            _trace(scope, path, status, seconds)
            if _level.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "Answered a request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round(seconds * 1000, 1),
                )


def _trace(scope: Scope, route: str, status: int | None, seconds: float) -> None:
    """Add the span of a request, with the names of OpenTelemetry's semantic conventions."""
    method, failed = scope["method"], status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    span(
        f"{method} {route}",
        seconds,
        lambda: {
            "http.request.method": method,
            "http.route": route,
            "url.path": scope["path"],
            "http.response.status_code": status or 0,
        },
        kind="SERVER",
        error=f"status {status}" if failed else None,
        caller=lambda: header_of(scope, b"traceparent"),
    )


class Guard:
    """Refuses requests that `Access` does not allow. See the module's docstring.

    Args:
        needs: of the paths, or templates of paths, whose requests do not need what is usual for
            their method.
    """

    def __init__(self, app: ASGIApp, access: Access, needs: Mapping[str, Need]) -> None:
        self._app = app
        self._access = access
        self._needs = [(compile_path(path)[0], need) for path, need in needs.items()]
        rate = access.rate_limit
        self._buckets = TokenBuckets[str](max(1.0, rate * BURST_SECONDS), rate, MAX_BUCKETS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, or refuse it."""
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refuse((scope, receive, send), *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        method = scope["method"]
        if self._access.rate_limit and (wait := self._charge(scope)):
            return (
                HTTPStatus.TOO_MANY_REQUESTS,
                f"more than {self._access.rate_limit:g} requests a second: wait a moment",
                {"retry-after": str(math.ceil(wait))},
            )
        if method not in ("GET", "HEAD", "OPTIONS"):
            origin = header_of(scope, b"origin")
            if origin is not None and self._is_foreign(origin, scope):
                return (
                    HTTPStatus.FORBIDDEN,
                    f"web pages of {origin[:200]} may not change this node; its operator can allow "
                    "them (cors_allow_origins)",
                    {},
                )
        if self._access.token is None:
            return None
        special = (need for pattern, need in self._needs if pattern.match(scope["path"]))
        need = next(special, usual_need(method))
        given = header_of(scope, b"authorization")
        asks_token = method != "OPTIONS" and self._access.asks_token(need)
        if asks_token and not self._access.is_token(given):
            error = "" if given is None else ', error="invalid_token"'
            return (
                HTTPStatus.UNAUTHORIZED,
                "the token is wrong"
                if given is not None
                else "this needs the node's token: send the header Authorization: Bearer TOKEN",
                {"www-authenticate": f'Bearer realm="recon-node"{error}'},
            )
        return None

    def _is_foreign(self, origin: str, scope: Scope) -> bool:
        """Whether a request is by a web page whose origin is not allowed."""
        allowed = self._access.cors_allow_origins
        if "*" in allowed or origin in allowed:
            return False
        return not _is_own_page(origin, header_of(scope, b"host"))

    def _charge(self, scope: Scope) -> float:
        """Charge the client for a request; if it has to wait, return the seconds instead."""
        client = client_of(scope["client"][0] if scope.get("client") else None)
        if client is None:
            return 0.0
        now = trio.current_time()
        bucket = self._buckets.of(client, now)
        wait = bucket.seconds_until(1, now)
        if not wait:
            bucket.spend(1, now)
        return wait


def _is_own_page(origin: str, host: str | None) -> bool:
    """Whether an origin is this node's, by an IP address or localhost.

    Another name proves nothing: a hostile page's DNS server can point its name at this node (DNS
    rebinding).
    """
    try:
        page = urlsplit(origin)
        name = page.hostname or ""
        return page.netloc == host and (name == "localhost" or bool(ip_address(name)))
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def client_of(host: str | None) -> str | None:
    """Who a client is, by its address; None for this machine itself, which is not limited."""
    ip = None if host is None else ip_of(host)
    if ip is None:
        return host
    return None if ip.is_loopback else address_block_of(str(ip))


class Bound:
    """Keeps requests within the node's `Limits`. See the module's docstring."""

    def __init__(self, app: ASGIApp, limits: Limits, always_admit: Sequence[str] = ()) -> None:
        self.app = app
        self.limits = limits
        allowed, now = AllowList(always_admit), trio.current_time
        self._requests = Slots(limits.requests, now, allowed, reserve=VITAL_SLOTS)
        self._writes = Slots(limits.writes, now, allowed)
        self.bodies = Slots(limits.bodies, now, allowed, grace=BODY_GRACE)
        self.answers = Slots(limits.answers, now, allowed, grace=BODY_GRACE)
        self.waiting = 0
        """Bytes of the parts of answers that wait for a slot."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        is_write = scope["path"] == WRITES and scope["method"] == "POST"
        slots = self._writes if is_write else self._requests
        if not await _Bounded(self, scope, receive, send).run(slots):
            await refuse(
                (scope, receive, send),
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{slots.limit} requests are already being handled: try again",
            )


class _Bounded:
    """One request within the limits.

    Its body is read, for which memory is taken before it is used. Its answer is sent in pieces,
    each of which counts as progress. What a client does not read stays in memory. So a large part
    of an answer has a slot of its size among those of all answers, which it loses if its client
    takes nothing while others wait.
    """

    def __init__(self, bound: Bound, scope: Scope, receive: Receive, send: Send) -> None:
        self._bound = bound
        self._scope = scope
        self._receive = receive
        self._send_on = send
        client = scope.get("client")
        self._address = str(client[0]) if client else ""
        self._stall = bound.limits.stall
        self._slot: Slot
        self._body_slot: Slot | None = None
        """Only a large body has one."""
        self._size = PIECE
        self._start: Message | None = None
        self._has_begun = False
        self._why_given_up: str | None = None
        """None: for want of progress."""
        self._running = trio.CancelScope(deadline=trio.current_time() + self._stall)
        """The only scope of a request: to enter another one takes 10 µs."""

    async def run(self, slots: Slots) -> bool:
        """Run the request; return False if there is no slot for it."""
        scope, length = self._scope, declared_length(self._scope)
        is_busy = length == 0 and not _waits(scope)
        is_vital = scope["path"] in VITAL
        slot = slots.take(self._address, self._give_way, busy=is_busy, vital=is_vital)
        if slot is None:
            return False
        self._slot = slot
        ASKER.set(address_block_of(self._address))
        try:
            with self._running:
                await self._handle(length)
        finally:
            slot.leave()
            if self._body_slot is not None:
                self._body_slot.leave()
        if self._running.cancelled_caught and not self._has_begun:
            reason = self._why_given_up or f"no progress for {self._stall:g} seconds: gave up"
            asgi = scope, self._receive, self._send_on
            await refuse(asgi, HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return True

    async def _handle(self, length: int | None) -> None:
        body = await self._read(length)
        if body is not None:
            self._scope["body"] = body
            self._slot.use(busy=not _waits(self._scope))
            await self._bound.app(self._scope, self._receive, self._send)

    def _give_way(self) -> None:
        """Give up the request, because its slot goes to another one."""
        self._give_up("gave way to other requests: try again")

    def _give_up(self, reason: str) -> None:
        self._why_given_up = reason
        self._running.cancel()

    async def _read(self, declared: int | None) -> bytes | None:
        """Return the whole body, of a size that the client may have `declared`.

        None: the client left before its end, or was told that it is longer than allowed.
        """
        limit = self._bound.limits.body
        content, is_whole = bytearray(), False
        while not is_whole and max(len(content), declared or 0) <= limit:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            content += message.get("body", b"")
            is_whole = not message.get("more_body", False)
            if not is_whole:
                self._slot.use(busy=False)
            if SMALL_BODY < len(content) <= limit and self._body_slot is None:
                self._body_slot = await self._room_among(self._bound.bodies, declared or limit)
            if self._body_slot is not None:
                self._body_slot.use(busy=is_whole)
        if is_whole and len(content) <= limit:
            return bytes(content)
        await refuse(
            (self._scope, self._receive, self._send),
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body is longer than {limit} bytes",
        )
        return None

    async def _room_among(self, slots: Slots, size: int) -> Slot:
        """Take a slot of some size; wait for one."""
        while True:
            slot = slots.take(self._address, self._give_way, size=size, busy=False)
            if slot is not None:
                return slot
            await trio.sleep(_ROOM_POLL)  # others give way when they have rested

    async def _send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._start = message  # sent with the first part, for which there may be no room
            return
        size = min(len(message.get("body", b"")), self._bound.answers.limit)
        if size <= SMALL_ANSWER:
            await self._send_part(message)
            return
        slot = await self._take_answer_slot(size)
        try:
            await self._send_part(message, slot)
        finally:
            slot.leave()

    async def _send_part(self, message: Message, slot: Slot | None = None) -> None:
        self._has_begun = True
        if self._start is not None:
            start, self._start = self._start, None
            await self._send_on(start)
        is_large = len(message.get("body", b"")) >= PIECE
        begun = trio.current_time() if is_large else 0.0
        for piece in _pieces(message, self._size):
            larger = len(piece.get("body", b"")) / PIECE - 1
            if larger > 0:
                self._running.deadline += larger * self._stall
            await self._send_on(piece)
            if piece.get("more_body", False):
                self._running.deadline = trio.current_time() + self._stall
            if slot is not None:
                slot.use(busy=False)
        if is_large:
            self._size = LARGE_PIECE if trio.current_time() - begun < QUICK else PIECE

    async def _take_answer_slot(self, size: int) -> Slot:
        """Take a slot for a part of the answer; wait for one, if not too many others do."""
        bound = self._bound
        if bound.waiting + size > bound.answers.limit:
            self._give_up("too many large answers are waiting to be read: try again")
            await trio.lowlevel.checkpoint()  # which ends the request: nothing of it is sent
        bound.waiting += size
        try:
            return await self._room_among(bound.answers, size)
        finally:
            bound.waiting -= size


def _pieces(message: Message, size: int) -> Iterator[Message]:
    """Cut a large body into pieces, each of which counts as progress: a client may be slow, and
    every layer below copies what it is given."""
    body = message.get("body", b"")
    for start in range(0, len(body) - size, size):
        yield {**message, "body": body[start : start + size], "more_body": True}
    if len(body) > size:
        message = {**message, "body": body[(len(body) - 1) // size * size :]}
    yield message


def declared_length(scope: Scope) -> int | None:
    """Return how long the body will be; None if its client does not say so."""
    fields = dict(scope["headers"])
    return None if b"transfer-encoding" in fields else int(fields.get(b"content-length", 0))


def _waits(scope: Scope) -> bool:
    """Return whether a request waits for news."""
    return b"wait=" in scope["query_string"]


def header_of(scope: Scope, name: bytes) -> str | None:
    """Return the first header of a name in lower case."""
    for field, value in scope["headers"]:
        if field == name:
            return str(value, "latin-1")
    return None


def host_in(authority: str) -> str | None:
    """Return the host in `HOST`, `HOST:PORT` or `[IPV6]:PORT`, in lower case, or None."""
    match = _HOST.fullmatch(authority)
    return None if match is None else (match[1] or match[2]).lower().rstrip(".")


class Hosts:
    """The hosts that this node goes by.

    Beside `listening`, it goes by `names`: one that begins with a dot stands for all below it, "*"
    for all.
    """

    def __init__(self, listening: Iterable[str], names: Iterable[str] = ()) -> None:
        self._names = {"localhost"}
        self._suffixes: tuple[str, ...] = (".localhost",)
        self._any_address = False
        for name in map(str.lower, (*listening, *names)):
            if name.startswith("."):
                self._suffixes += (name,)
            else:
                self._names.add(name)
        for name in listening:
            if _is_unspecified(name):
                self._any_address = True
                self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def refusal(self, authority: str | None) -> str | None:
        """Return why a request that names this host is refused; None if it is not.

        `authority` is what `Host` says, or the target; None if neither says anything, which no web
        browser does.
        """
        if authority is None or "*" in self._names:
            return None
        host = host_in(authority)
        if host is not None and (
            host in self._names or host.endswith(self._suffixes) or self._is_ours(host)
        ):
            return None
        name = (host or authority)[:100]
        return (
            f"this node does not go by the name {name!r}: use its address, or add the name to "
            "api_hosts (RECON_NODE_API_HOSTS)"
        )

    def _is_ours(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


def _is_unspecified(name: str) -> bool:
    try:
        return ip_address(name).is_unspecified
    except ValueError:
        return False
