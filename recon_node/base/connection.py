"""A connection to a node's HTTP API, for programs that block and for asyncio and trio.

The commands, the Python client and the pipeline all connect by this. It knows URLs, tokens,
requests and errors, but not what they are about; `recon_node.client` does.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from json import loads
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import quote

import httpx

from recon_node import DEFAULT_URL
from recon_node.base.errors import leaves, reason_of, without_passwords

TIMEOUT: Final = 30.0
"""Seconds that a node may take for one step of a request."""
MAX_ANSWER: Final = 64 * 1024 * 1024
"""Bytes of an answer that is read at once; a document of 16 MB is 22 MB as multibase text."""
MAX_PAUSE: Final = 60.0
"""Seconds that a server may ask to wait before the next request."""
_MAX_MESSAGE: Final = 500
"""Characters of an answer that an error quotes."""

Method: TypeAlias = Literal["GET", "POST", "DELETE"]


class ClientError(Exception):
    """The base of the errors of all that talks to a node."""


class InvalidArgumentError(ClientError, ValueError):
    """An invalid argument, such as text that is not a StreamID. Nothing was sent."""


class UnreachableError(ClientError):
    """No node answers at the URL, or it took longer than `timeout`."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = without_passwords(url), reason
        super().__init__(self.url, reason)

    def __str__(self) -> str:
        return (
            f"no node answers at {self.url} ({self.reason}): start one with `recon-node run`, or "
            "check the URL"
        )


class ProxyError(ClientError):
    """The proxy that the environment names cannot be used."""


@contextmanager
def usable_proxy() -> Iterator[None]:
    """Raise `ProxyError` if a client of httpx cannot be made in the block because of its proxy.

    httpx reads HTTP_PROXY, HTTPS_PROXY and ALL_PROXY when a client is made.
    """
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ProxyError(
            "the proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: set it to a URL "
            f"such as http://host:port, or unset it ({error})"
        ) from None


class NodeError(ClientError):
    """A node answered with an error.

    `status` is that of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message

    def __str__(self) -> str:
        return self.message


class NotFoundError(NodeError):
    """The node does not have the stream or event. It may have it later: nodes synchronise."""


class UnauthorizedError(NodeError):
    """The node wants a token, or another one than it was given."""


class NotANodeError(NodeError):
    """Something answered that is not a node, or answers as none does."""

    def __init__(self, status: int = HTTPStatus.OK) -> None:
        super().__init__(
            status,
            "the server is not a Ceramic node, or not one that the client knows: check the URL",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NotANodeError, (self.status,)


def segment(text: object) -> str:
    """Return text as one segment of a path; raises `InvalidArgumentError` if it cannot be one."""
    try:
        quoted = quote(str(text), safe="")
    except UnicodeEncodeError as error:
        raise _not_text(error) from None
    if quoted in ("", ".", ".."):
        raise InvalidArgumentError(f"{quoted!r} is neither an id nor a name")
    return quoted


def _not_text(error: UnicodeEncodeError) -> InvalidArgumentError:
    text = error.object.encode(errors="replace").decode()
    return InvalidArgumentError(f"{text!r} is not text: it holds half a surrogate pair")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request to a node."""

    method: Method
    path: str
    params: Mapping[str, str | int | float | list[str]] = field(default_factory=dict)
    json: Any = None
    """The body, as a value; None if there is none, or `content` has it."""
    content: bytes | None = None
    content_type: str = "application/json"
    """Of `content`."""
    wait: float = 0.0
    """Seconds that the node may take longer than usual."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered."""

    status: int
    text: str
    """The body."""
    json: Any = None
    """The body as a value; None if it is not JSON."""
    retry_after: float = 0.0
    """Seconds that the node asks to wait before the next request, at most `MAX_PAUSE`."""
    warning: str = ""
    """What the node warns of though it did what it was asked; of its header `recon-warning`."""

    @classmethod
    def of(cls, response: httpx.Response, body: bytes) -> Self:
        """Take what is needed of a response and its body."""
        try:
            decoded = loads(body) if body else None
        except (ValueError, RecursionError):
            decoded = None
        pause = response.headers.get("retry-after", "")
        return cls(
            response.status_code,
            body.decode(errors="replace"),
            decoded,
            min(float(pause), MAX_PAUSE) if pause.isdecimal() else 0.0,
            response.headers.get("recon-warning", ""),
        )

    @property
    def is_success(self) -> bool:
        """Whether the node did what it was asked."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    def check(self) -> Self:
        """Raise the error that the answer reports; return the answer if it reports none.

        Raises:
            UnauthorizedError: 401.
            NotFoundError: 404.
            NotANodeError: a redirection.
            NodeError: any other error.
        """
        if self.is_success:
            return self
        if self.status < HTTPStatus.BAD_REQUEST:
            raise NotANodeError(self.status)
        if self.status == HTTPStatus.UNAUTHORIZED:
            raise UnauthorizedError(
                self.status, "the node requires a token, or a different one: pass it as `token=...`"
            )
        error = NotFoundError if self.status == HTTPStatus.NOT_FOUND else NodeError
        raise error(self.status, self.message)

    @property
    def message(self) -> str:
        """The node's words for an error."""
        if isinstance(self.json, dict):
            for name in ("message", "Message"):  # as below /api/v0
                if isinstance(self.json.get(name), str):
                    return str(self.json[name])
        text = self.text.strip()
        if text and not text.startswith("<"):  # a page of HTML would not help anybody
            return text[:_MAX_MESSAGE]
        names = {status.value: status.phrase for status in HTTPStatus}
        return f"the node answered {self.status} {names.get(self.status, '')}".rstrip()

    def value(self) -> Any:
        """Return the JSON object in the body; an empty one if there is no body.

        To ask it for a field that it lacks raises `NotANodeError`.

        Raises:
            NodeError: the answer is an error, or not a JSON object.
        """
        self.check()
        if self.json is None and self.text.strip() in ("", "null"):
            return _Fields()
        if not isinstance(self.json, dict):
            raise NotANodeError(self.status)
        return _Fields(self.json)

    def fields(self, *names: str) -> tuple[Any, ...]:
        """Return fields of the JSON object that the node answered.

        Raises:
            NodeError: the answer is an error, or lacks a field.
        """
        self.check()
        if not isinstance(self.json, dict) or not self.json.keys() >= set(names):
            raise NotANodeError(self.status)
        return tuple(self.json[name] for name in names)


class _Fields(dict[str, Any]):
    """A JSON object with which a node would have answered."""

    def __missing__(self, name: str) -> Any:
        raise NotANodeError


class _Node:
    """Where a node is, and how it is asked."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self.token = token
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_passwords(self.url)!r})"

    def _arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments of httpx for a request."""
        headers = {} if request.content is None else {"content-type": request.content_type}
        return {
            "method": request.method,
            "url": request.path,
            "params": dict(request.params),
            "json": request.json,
            "content": request.content,
            "headers": headers,
            "timeout": self._timeout + request.wait,
        }

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError as error:
            raise _not_text(error) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(self.url, _reason(error)) from None


def _reason(error: BaseException) -> str:
    """Return why a request failed. Where trio has tried all addresses of a host, its error says no
    more than that; what came of each is in a group behind it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BaseExceptionGroup):
        cause = cause.__cause__ or cause.__context__
    for tried in () if cause is None else leaves(cause):
        if isinstance(tried, OSError) and (tried.errno or 0) > 0:
            return os.strerror(tried.errno or 0)
    return "timed out" if isinstance(error, httpx.TimeoutException) else reason_of(error)


class Connection(_Node):
    """A connection to one node, which opens when it is first needed. Threads may share it.

    Args:
        url: of the node's HTTP API; `http://` may be left out.
        token: of the API, if the node wants one.
        timeout: seconds that the node may take for one step of a request.
        transport: of httpx, for tests and proxies.

    Raises:
        UnreachableError: `url` is not a URL.
        UnauthorizedError: `token` cannot be one.
        ProxyError: the environment names a proxy that cannot be used.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout)
        options = http_options(self.url, token)
        with usable_proxy():
            self._http = httpx.Client(**options, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def exchange(self, request: Request) -> Answer:
        """Send a request; return the answer, which may be an error.

        Raises:
            UnreachableError: no answer.
        """
        with self._reachable(), self._http.stream(**self._arguments(request)) as response:
            body = _Body(response)
            for piece in response.iter_bytes():
                body.add(piece)
            return Answer.of(response, body.read())

    def request(self, method: Method, path: str, **rest: Any) -> Any:
        """Send any request of the API; return the JSON object of its answer, which may be empty.

        Raises:
            UnreachableError: no answer.
            NodeError: the node answered with an error; the message is the node's.
        """
        return self.exchange(Request(method, path, **rest)).value()

    def download(self, path: str) -> Iterator[bytes]:
        """Read an answer piece by piece; raises as `request`."""
        with self._reachable(), self._http.stream("GET", path, timeout=self._timeout) as response:
            body = _Body(response)
            for piece in response.iter_bytes():
                if response.is_success:
                    yield piece
                else:
                    body.add(piece)
            Answer.of(response, body.read()).check()


class AsyncConnection(_Node):
    """`Connection` for programs on asyncio or trio. Tasks may share it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout)
        options = http_options(self.url, token)
        with usable_proxy():
            self._http = httpx.AsyncClient(**options, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def exchange(self, request: Request) -> Answer:
        """Send a request; return the answer, which may be an error.

        Raises:
            UnreachableError: no answer.
        """
        with self._reachable():
            async with self._http.stream(**self._arguments(request)) as response:
                body = _Body(response)
                async for piece in response.aiter_bytes():
                    body.add(piece)
                return Answer.of(response, body.read())

    async def request(self, method: Method, path: str, **rest: Any) -> Any:
        """Send any request of the API, as `Connection.request` does."""
        return (await self.exchange(Request(method, path, **rest))).value()


class _Body:
    """The body of an answer, as it comes: of a limited size, and never compressed."""

    def __init__(self, response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise NotANodeError(response.status_code)  # none was asked for, and it may be a bomb
        self._body = bytearray()

    def add(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > MAX_ANSWER:
            raise NodeError(HTTPStatus.OK, f"the answer has more than {MAX_ANSWER:,} bytes")

    def read(self) -> bytes:
        return bytes(self._body)


def http_options(url: str, token: str | None) -> dict[str, Any]:
    """Return the arguments of a client of httpx.

    Raises:
        UnreachableError: not a URL.
        UnauthorizedError: a token that cannot be one.
    """
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UnauthorizedError(HTTPStatus.UNAUTHORIZED, "a token is ASCII text in one line")
    try:
        httpx.URL(url).host.encode("idna")  # as resolvers do: a label has at most 63 letters
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UnreachableError(url, f"it is not a URL: {error}") from None
    headers = {"accept-encoding": "identity"}  # a node compresses nothing
    if token:
        headers["authorization"] = f"Bearer {token}"
    return {"base_url": url, "headers": headers, "verify": _trusted()}


@cache
def _trusted() -> ssl.SSLContext:
    """Load the certificates of this machine, once for all clients of the process.

    That takes as long as reading thousands of rows, and each task of Spark has a new client.
    """
    return httpx.create_ssl_context()
