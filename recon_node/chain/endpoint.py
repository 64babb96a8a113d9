"""One JSON-RPC endpoint: a URL that answers questions about a chain, over HTTP.

Everything about an answer is bounded: its time as a whole, its size (read raw: a compressed one
would be a way around that), its depth. What can go wrong is told apart by what follows from it. An
`EndpointError` speaks against the endpoint: it is left alone for a while, longer each time. An
`AnswerError` speaks against this one question: whoever can choose the question (an attacker may put
a transaction of his own on the chain) must not be able to take the endpoint away from all others.

The URL is a secret: providers put API keys into the path, the query or the user. Messages name the
host only, and what comes from outside is searched for the URL's other parts before it is shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import httpx
import structlog
import trio

from recon_node.chain.errors import AnswerError, EndpointError

logger = structlog.get_logger(__name__)

_FIRST_COOLING: Final = 1.0
_LONGEST_COOLING: Final = 60.0
_MAX_RETRY_AFTER: Final = 600.0
_MOST_FAILURES: Final = 10
_SHORTEST_SECRET: Final = 5
# JSON-RPC errors by which servers say that it is not about the question: too many requests, no
# credit (EIP-1474), no such method.
_ENDPOINT_CODES: Final = frozenset({-32005, -32601, 429})
_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class Endpoint:
    """An endpoint, and whether it works.

    Args:
        url: http or https.
        client: makes the requests; without redirects.
        timeout: seconds for a request as a whole.
        max_answer_bytes: a longer answer is an error.
        jitter: a number in [0, 1) at each call, so that many nodes do not come back together.
        took: told of the seconds that each answer took.
    """

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        *,
        timeout: float,
        max_answer_bytes: int,
        jitter: Callable[[], float],
        took: Callable[[float], None],
    ) -> None:
        self._url = url
        self._client = client
        self._timeout = timeout
        self._max_answer_bytes = max_answer_bytes
        self._jitter = jitter
        self._took = took
        self._secrets = _secrets_of(url)
        self._failures = 0
        self._last_id = 0
        self.host = host_of(url)
        """For messages."""
        self.cooling_until = -math.inf
        """Not to be asked before, on trio's clock."""
        self.chain_checked = False
        """Whether it is known to be of the right chain."""

    async def ask(self, method: str, *params: object) -> Any:
        """The `result` of a call.

        Raises:
            EndpointError: it does not work; it cools down now.
            AnswerError: it has no usable answer to this question.
        """
        started = trio.current_time()
        try:
            with trio.fail_after(self._timeout):
                status, retry_after, body = await self._post(method, params)
            result = self._result(status, retry_after, body)
        except trio.TooSlowError:
            raise self._failed(f"no answer within {self._timeout:g} seconds") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise self._failed(self._scrub(_words(error))) from None
        except _RefusedError as error:
            raise self._failed(self._scrub(str(error)), error.retry_after) from None
        self._worked()
        self._took(trio.current_time() - started)
        return result

    def give_up(self) -> None:
        """Never ask this endpoint again."""
        self.cooling_until = math.inf

    async def _post(self, method: str, params: tuple[object, ...]) -> tuple[int, float, bytes]:
        """Status, Retry-After and body of the answer."""
        self._last_id += 1
        call = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": list(params)}
        body = bytearray()
        async with self._client.stream(
            "POST", self._url, content=json.dumps(call).encode(), headers=_HEADERS
        ) as response:
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > self._max_answer_bytes:
                    raise AnswerError(
                        f"{self.host}: the answer to {method} has more than "
                        f"{self._max_answer_bytes} bytes"
                    )
        return response.status_code, _retry_after(response), bytes(body)

    def _result(self, status: int, retry_after: float, body: bytes) -> Any:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or ("result" not in answer and "error" not in answer):
            if status != 200:
                raise _RefusedError(f"HTTP status {status}", retry_after)
            raise _RefusedError("the answer is not JSON-RPC: is the URL that of an RPC endpoint?")
        fault = answer.get("error")
        if fault is not None:
            code, text = _fault(fault)
            if code in _ENDPOINT_CODES or status in (401, 403, 429):
                raise _RefusedError(text, retry_after)
            raise AnswerError(f"{self.host}: {self._scrub(text)}")
        if status != 200:
            raise _RefusedError(f"HTTP status {status}", retry_after)
        return answer["result"]

    def _worked(self) -> None:
        if self._failures:
            logger.info("An RPC endpoint works again", endpoint=self.host)
            self._failures = 0
        if self.cooling_until < math.inf:
            self.cooling_until = -math.inf

    def _failed(self, reason: str, retry_after: float = 0.0) -> EndpointError:
        """Cool down. Requests that fail while it does so were under way together: one failure."""
        now = trio.current_time()
        if self._failures == 0:
            logger.warning("An RPC endpoint fails", endpoint=self.host, reason=reason)
        if now >= self.cooling_until:
            span = min(_FIRST_COOLING * 2.0**self._failures, _LONGEST_COOLING)
            self._failures = min(self._failures + 1, _MOST_FAILURES)
            self.cooling_until = now + span * (0.5 + self._jitter() / 2)
        self.cooling_until = max(self.cooling_until, now + min(retry_after, _MAX_RETRY_AFTER))
        return EndpointError(f"{self.host}: {reason}")

    def _scrub(self, text: str) -> str:
        """Text from outside, without the URL's secrets, on one short line."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())[:300]


class _RefusedError(Exception):
    """The endpoint answers, but not as one that works."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def host_of(url: str) -> str:
    """The part of a URL that is no secret: scheme, host and port."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "(no URL)"
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.scheme}://{host}{port}"


def _secrets_of(url: str) -> list[str]:
    """The parts of a URL that may be or hold an API key, the longest first."""
    parsed = httpx.URL(url)
    rest = parsed.raw_path.decode("ascii")
    parts = {url, rest, parsed.username, parsed.password, parsed.userinfo.decode("ascii")}
    parts |= set(re.split(r"[/?&=]", rest))
    parts |= {unquote(part) for part in parts}
    return sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True)


def _fault(fault: object) -> tuple[int | None, str]:
    """Code and text of a JSON-RPC error object."""
    if not isinstance(fault, dict):
        return None, f"error: {fault!r:.200}"
    code = fault.get("code")
    text = f"error {code!r:.20}: {fault.get('message')!r:.200}"
    return (code if isinstance(code, int) else None), text


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 when the server says nothing, or a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else 0.0


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
