"""One JSON-RPC endpoint: a URL that answers questions about a chain, over HTTP.

An answer is bounded in time, in size (compression is refused, since it would evade that bound) and
in depth. Errors are divided by their consequences. After an `EndpointError` the endpoint is left
alone for a while, longer each time. An `AnswerError` is about one question only: the one who
chooses the question (an attacker may put a transaction on the chain) must not be able to deprive
all other questions of the endpoint.

The URL is a secret, because providers put API keys into its path, query or user. Messages name the
host only, and text from outside is searched for the other parts of the URL before it is shown.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import httpx
import structlog
import trio
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from recon_node.base.bodies import read_body
from recon_node.base.errors import reason_of
from recon_node.base.timing import Durations
from recon_node.chain.settings import ChainSettings, url_host
from recon_node.fairness.pacing import Backoff

logger = structlog.get_logger(__name__)

COOLING: Final = Backoff(first=1.0, longest=60.0)
"""For how long an endpoint that fails is left alone."""
_MAX_RETRY_AFTER: Final = 600.0
"""Seconds; a server that asks for a longer pause is asked again after this one."""
_REPORT_PAUSE: Final = 60.0
"""Seconds between two log lines that an endpoint is failing: one that is asked too often fails and
works again every few seconds."""
_SHORTEST_SECRET: Final = 5
"""Characters; shorter parts of a URL are words such as "v2"."""
_ENDPOINT_CODES: Final = frozenset({-32005, 429})
"""JSON-RPC errors that are not about the question: limit exceeded (EIP-1474), too many requests."""
_MAX_SHOWN: Final = 300
"""Characters of a text from outside that are shown."""
_MAX_SEARCHED: Final = 4096
"""Characters of it that are searched for secrets: more, so that none is shown in part."""
_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


OUTCOMES: Final = ("anchored", "invalid", "unknown", "unconfirmed", "failed")
"""The outcomes of a lookup; `proof_lookup` says what each means."""


@dataclass(slots=True, eq=False)
class ChainReport:
    """What was asked about one chain since the start: plain numbers, for the metrics."""

    chain_id: str
    lookups: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    """The number of lookups by outcome."""
    answers: Durations = field(default_factory=Durations)
    """How long the answered requests took."""
    failures: int = 0
    """Requests without an answer that a working endpoint gives."""


class ChainError(Exception):
    """The settings of the chain side are wrong. The message is user-facing and shows no URL."""


class NoAnswerError(Exception):
    """A question got no answer. That says nothing about the event, and may be different later."""


class EndpointError(NoAnswerError):
    """The endpoint does not work: no question would get an answer now."""


class AnswerError(NoAnswerError):
    """The endpoint works, but it has no usable answer to this question."""


class DifferError(NoAnswerError):
    """Endpoints of a chain contradict each other, or one itself: no answer can be kept for good."""

    def __init__(self, chain_id: str, what: str) -> None:
        hint = "if that lasts, replace the wrong one in chain_rpc"
        super().__init__(f"the endpoints of {chain_id} differ about {what}: {hint}")


class CoolingError(NoAnswerError):
    """No endpoint was asked: all have failed recently and are left alone for a while."""

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until
        """When the first of them may be asked again, on trio's clock."""


class RpcEndpoint:
    """An endpoint, and whether it works."""

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        settings: ChainSettings,
        report: ChainReport,
        jitter: Callable[[], float],
    ) -> None:
        self._url = url
        self._client = client
        self._timeout = settings.timeout
        self._max_answer_bytes = settings.max_answer_bytes
        self._report = report
        self._jitter = jitter
        self._secrets = _secrets_of(url)
        self._failures = 0
        self._is_reported = False
        self._next_report = -math.inf
        self._last_id = 0
        self.host = url_host(url)
        """Scheme, host and port, for messages."""
        self.cooling_until = -math.inf
        """Until when the endpoint is left alone, on trio's clock."""
        self.chain_checked = False
        """Whether the endpoint has named the right chain."""

    async def ask(self, method: str, *params: object) -> Raw | None:
        """Call a method and return the `result` of the answer as JSON; None if it is null.

        Raises:
            EndpointError: the endpoint does not work; it is left alone from now on.
            AnswerError: it has no usable answer to this question.
        """
        started = trio.current_time()
        try:
            with trio.fail_after(self._timeout):
                status, retry_after, body = await self._post(method, params)
        except trio.TooSlowError:
            raise self._failed(f"no answer within {self._timeout:g} seconds") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise self._failed(reason_of(error)) from None
        result = self._result(status, retry_after, body)
        if self._is_reported:
            logger.info("An RPC endpoint works again", endpoint=self.host)
        self._failures, self._is_reported = 0, False
        self.cooling_until = -math.inf
        self._report.answers.observe(trio.current_time() - started)
        return result

    def check_working(self, at: float) -> None:
        """Raise CoolingError if the endpoint is left alone at a time on trio's clock."""
        if self.cooling_until > at:
            raise CoolingError(f"{self.host} has failed recently", self.cooling_until)

    def leave_alone(self, seconds: float) -> None:
        """Ask this endpoint nothing for a while."""
        self.cooling_until = trio.current_time() + seconds

    async def _post(self, method: str, params: tuple[object, ...]) -> tuple[int, float, bytes]:
        """Return status, Retry-After (seconds) and body of the answer."""
        self._last_id += 1
        call = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": list(params)}
        content, most = json.dumps(call).encode(), self._max_answer_bytes
        sent = self._client.stream("POST", self._url, content=content, headers=_HEADERS)
        async with sent as response:
            body = await read_body(response, most)
        if len(body) > most:
            raise AnswerError(f"{self.host}: the answer to {method} has more than {most} bytes")
        pause = response.headers.get("retry-after", "")
        seconds = float(pause) if re.fullmatch(r"[0-9]{1,6}", pause, re.ASCII) else 0.0
        return response.status_code, seconds, body

    def _result(self, status: int, retry_after: float, body: bytes) -> Raw | None:
        try:
            answer = _ANSWER.decode(body)
        except (ValueError, RecursionError):
            answer = _Answer()
        if answer.error != _NULL:
            code, text = _fault(answer.error)
            if code in _ENDPOINT_CODES or status in (401, 403, 429):
                raise self._failed(text, retry_after)
            raise AnswerError(f"{self.host}: {self._scrub(text)}")
        if status != 200:
            raise self._failed(f"HTTP status {status}", retry_after)
        if answer.result is UNSET:
            raise self._failed("the answer is not JSON-RPC: is this the URL of an RPC endpoint?")
        return None if answer.result == _NULL else answer.result

    def _failed(self, reason: str, retry_after: float = 0.0) -> EndpointError:
        """Leave the endpoint alone. Requests that were under way together fail as one."""
        self._report.failures += 1
        now, reason = trio.current_time(), self._scrub(reason)
        if not self._is_reported and now >= self._next_report:
            logger.warning("An RPC endpoint is failing", endpoint=self.host, reason=reason)
            self._is_reported, self._next_report = True, now + _REPORT_PAUSE
        if now >= self.cooling_until:
            self._failures += 1
            self.cooling_until = now + COOLING.wait(self._failures, self._jitter())
        self.cooling_until = max(self.cooling_until, now + min(retry_after, _MAX_RETRY_AFTER))
        return EndpointError(f"{self.host}: {reason}")

    def _scrub(self, text: str) -> str:
        """Put text from outside on one short line without the URL's secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text[:_MAX_SHOWN].split())


def _secrets_of(url: str) -> list[str]:
    """Return the parts of a URL that may be an API key or contain one, the longest first."""
    parsed = httpx.URL(url)
    rest = parsed.raw_path.decode("ascii")
    basic = b64encode(f"{parsed.username}:{parsed.password}".encode()).decode()  # as it is sent
    parts = {url, rest, basic, parsed.username, parsed.password, parsed.userinfo.decode("ascii")}
    parts |= set(re.split(r"[/?&=]", rest))
    parts |= {unquote(part) for part in parts}
    return sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True)


_NULL: Final = Raw(b"null")


class _Answer(Struct):
    """Of JSON-RPC 2.0."""

    result: Raw | UnsetType = UNSET
    error: Raw = _NULL


class _Fault(Struct):
    code: int
    message: str | None = None


_ANSWER: Final = Decoder(_Answer)
_FAULT: Final = Decoder(_Fault)


def _fault(error: Raw) -> tuple[int | None, str]:
    """Return code and text of a JSON-RPC error object."""
    try:
        fault = _FAULT.decode(error)
    except (ValueError, RecursionError):
        return None, f"error: {bytes(error)[:_MAX_SEARCHED]!r}"
    return fault.code, f"error {fault.code}: {(fault.message or '')[:_MAX_SEARCHED]!r}"
