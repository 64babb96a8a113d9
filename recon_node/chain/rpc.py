"""A chain that is asked by JSON-RPC, at one or more endpoints that are tried in turn.

The first endpoint that works answers. One that fails is left alone for a while; while all of them
are, no question is asked (`CoolingError` says until when). If an endpoint does not know something,
the others are asked too, since it may lag behind or have pruned its index.

An endpoint is asked for its chain before anything else. What it then answers is believed, except
for what `rpc_answers` can check, and for what is kept for good: what a transaction says, whether it
succeeded, and when it was. That, each endpoint that works is asked, and while two differ, nothing
is (`DifferError`).
"""

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from operator import attrgetter
from typing import Final, TypeVar

import httpx
import structlog
import trio
from msgspec import Raw

from recon_node.base.connection import ProxyError, usable_proxy
from recon_node.chain.rpc_answers import (
    Placed,
    Receipt,
    Transaction,
    read_about,
    read_block_with,
    read_head,
    read_quantity,
)
from recon_node.chain.rpc_endpoint import (
    AnswerError,
    ChainError,
    ChainReport,
    CoolingError,
    DifferError,
    NoAnswerError,
    RpcEndpoint,
)
from recon_node.chain.settings import ChainSettings

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_FINAL_BLOCK_LIFETIME: Final = 10.0
"""Seconds for which the number of the final block is not asked for again."""
_WRONG_CHAIN_PAUSE: Final = 3600.0
"""Seconds after which an endpoint of another chain is asked again for its chain."""
_KEEP_ALIVE: Final = 30.0
"""Seconds for which an idle connection to an endpoint is kept open."""


class RpcProvider:
    """Answers questions about one chain. Get one from `open_provider`."""

    def __init__(
        self,
        settings: ChainSettings,
        client: httpx.AsyncClient,
        report: ChainReport,
        jitter: Callable[[], float],
    ) -> None:
        self.chain_id = report.chain_id
        """CAIP-2, such as `eip155:1`."""
        self._settings = settings
        self._endpoints = [
            RpcEndpoint(url, client, settings, report, jitter)
            for url in settings.providers[report.chain_id]
        ]
        self._under_way = trio.CapacityLimiter(settings.requests_at_once)
        self._checking = trio.Lock()
        self._next_slot = 0.0
        self.left_out_at = -math.inf
        """When a question was last not put to an endpoint that is left alone, on trio's clock."""
        self._looking = trio.Lock()
        self._heads: dict[RpcEndpoint, tuple[int, int]] = {}
        self._heads_until = -math.inf
        self._tag, self._depth = "finalized", 0
        if settings.confirmations != "finalized":
            self._tag, self._depth = "latest", settings.confirmations - 1

    async def check(self) -> None:
        """Ask every endpoint for its chain; those that do not answer are asked again later.

        Raises:
            ChainError: an endpoint serves another chain.
        """
        for endpoint in self._endpoints:
            with suppress(NoAnswerError):  # the endpoint has logged it
                await self._check_chain(endpoint)

    async def transaction(self, tx_hash: str) -> Transaction | None:
        """Return the transaction with a hash (0x and 64 digits); None if the chain has none.

        Raises:
            NoAnswerError: no endpoint has a usable answer, or they differ about its input.
        """
        read, what = partial(read_about, tx_hash, Transaction), attrgetter("input")
        found = await self._agreed(what, read, "eth_getTransactionByHash", tx_hash)
        return max(found, key=lambda each: each.number, default=None)

    async def receipt(self, tx_hash: str) -> Receipt | None:
        """Return what became of the transaction with a hash; None if it is not in the chain.

        Raises:
            NoAnswerError: no endpoint has a usable answer, or they differ about its success.
        """
        read, what = partial(read_about, tx_hash, Receipt), attrgetter("succeeded")
        found = await self._agreed(what, read, "eth_getTransactionReceipt", tx_hash)
        return next((each for each in found if each.block_hash is not None), None)

    async def time_of(self, placed: Placed) -> int | None:
        """Return the time of the block that a transaction is in, in Unix seconds; None while that
        is not final for each endpoint that has it.

        Each endpoint is asked for its block of that number, since many do not know the hashes of
        old transactions. One that has no such block lags behind: the time is not before its latest.

        Raises:
            NoAnswerError: no endpoint has a usable answer, or they differ.
        """
        heads, number = await self._heads_now(), placed.number
        final = {endpoint for endpoint, (head, _) in heads.items() if number <= head - self._depth}
        if placed.block_hash is None or not final:
            return None
        read = partial(read_block_with, placed.hash)
        found = await self.ask_all(read, "eth_getBlockByNumber", hex(number), False)
        blocks = set(found.values())
        earliest = max((time for head, time in heads.values() if head < number), default=0)
        time = max((time for *_, time in blocks), default=0)
        if blocks != {(placed.block_hash.lower(), True, time)} or time < earliest:
            what = f"the block {number}, which one says has the transaction {placed.hash}"
            raise DifferError(self.chain_id, what)
        return None if found.keys() & heads.keys() - final else time

    async def final_block(self) -> int:
        """Return the number of the final block, as an endpoint had it up to ten seconds ago.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        return next(iter((await self._heads_now()).values()))[0] - self._depth

    async def _heads_now(self) -> dict[RpcEndpoint, tuple[int, int]]:
        """Return number and time of the block by which each endpoint says what is final."""
        async with self._looking:
            if trio.current_time() > self._heads_until:
                question = "eth_getBlockByNumber", self._tag, False
                self._heads = await self.ask_all(read_head, *question)
                self._heads_until = trio.current_time() + _FINAL_BLOCK_LIFETIME
        if not self._heads:
            raise AnswerError(
                f"the endpoints of {self.chain_id} report no final block: set "
                "chain_confirmations to a number of blocks"
            )
        return self._heads

    async def ask(self, read: Callable[[Raw], T], method: str, *params: object) -> T | None:
        """Call any method; return the first answer that `read` can use, and None if there is none.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        answers = await self.ask_all(read, method, *params, most=1)
        return next(iter(answers.values()), None)

    async def _agreed(
        self, what: Callable[[T], object], read: Callable[[Raw], T], method: str, param: str
    ) -> list[T]:
        """Return the answers of all endpoints that have one, which must be alike in something."""
        answers = [*(await self.ask_all(read, method, param)).values()]
        if len({what(answer) for answer in answers}) > 1:
            raise DifferError(self.chain_id, f"{method} {param}")
        return answers

    async def ask_all(
        self, read: Callable[[Raw], T], method: str, *params: object, most: int | None = None
    ) -> dict[RpcEndpoint, T]:
        """Call any method of each endpoint; return the answers that are not null, `most` of them.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        answers: dict[RpcEndpoint, T] = {}
        unknown = False
        fault: NoAnswerError | None = None
        for endpoint in self._endpoints:
            try:
                await self._check_chain(endpoint)
                answer = await self._ask(endpoint, method, *params)
                if answer is not None:
                    answers[endpoint] = _read(endpoint, method, read, answer)
                    if len(answers) == most:
                        break
                unknown = True
            except CoolingError:
                self.left_out_at = trio.current_time()
            except NoAnswerError as error:
                fault = error
            except ChainError as error:
                logger.error("Not using an RPC endpoint", reason=str(error))
        try:
            if fault is not None and not answers:
                raise fault
        finally:
            del fault  # else the error's frames, which have the answer, would be a cycle
        if answers or unknown:
            return answers
        raise CoolingError(
            f"all endpoints of {self.chain_id} have failed recently",
            min(endpoint.cooling_until for endpoint in self._endpoints),
        )

    async def _check_chain(self, endpoint: RpcEndpoint) -> None:
        if endpoint.chain_checked:
            return
        async with self._checking:
            if endpoint.chain_checked:
                return
            answer = await self._ask(endpoint, "eth_chainId") or Raw(b"null")
            actual = f"eip155:{_read(endpoint, 'eth_chainId', read_quantity, answer)}"
            if actual != self.chain_id:
                endpoint.leave_alone(_WRONG_CHAIN_PAUSE)
                raise ChainError(
                    f"the RPC endpoint {endpoint.host} is set for {self.chain_id} but serves "
                    f"{actual}: correct chain_rpc"
                )
            endpoint.chain_checked = True

    async def _ask(self, endpoint: RpcEndpoint, method: str, *params: object) -> Raw | None:
        """Ask an endpoint at the allowed rate, unless it fails before this request's turn."""
        async with self._under_way:
            slot = max(trio.current_time(), self._next_slot)
            endpoint.check_working(slot)
            self._next_slot = slot + 1 / self._settings.requests_per_second
            await trio.sleep_until(slot)
            endpoint.check_working(trio.current_time())
            return await endpoint.ask(method, *params)


@asynccontextmanager
async def open_provider(
    settings: ChainSettings, report: ChainReport, jitter: Callable[[], float] = random.random
) -> AsyncIterator[RpcProvider]:
    """Open a provider of one chain, with the endpoints that the settings name for it.

    Raises:
        ChainError: the environment names a proxy that cannot be used.
    """
    most, timeout = settings.requests_at_once, settings.timeout
    limits = httpx.Limits(
        max_connections=most, max_keepalive_connections=most, keepalive_expiry=_KEEP_ALIVE
    )
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # a server could send many
    try:
        with usable_proxy():
            made = httpx.AsyncClient(timeout=timeout, limits=limits, cookies=no_cookies)
    except ProxyError as error:
        raise ChainError(str(error)) from None
    async with made as client:
        yield RpcProvider(settings, client, report, jitter)


def _read(endpoint: RpcEndpoint, method: str, read: Callable[[Raw], T], answer: Raw) -> T:
    try:
        return read(answer)
    except (ValueError, RecursionError) as error:
        text = f"{endpoint.host}: the answer to {method} cannot be used: {error}"
        raise AnswerError(text) from None
