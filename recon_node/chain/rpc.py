"""A chain that is asked by JSON-RPC, at one or more endpoints that are tried in turn.

The first endpoint that works answers. One that fails is left alone for a while; while all of them
are, no question is asked (`CoolingError` says until when). If an endpoint does not know a
transaction or a block, the others are asked too, since it may lag behind or have pruned its index.

An endpoint is asked for its chain before anything else. What it then answers is believed, except
for what `rpc_answers` can check.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, TypeVar

import httpx
import structlog
import trio
from msgspec import Raw

from recon_node.base.connection import ProxyError, usable_proxy
from recon_node.chain.rpc_answers import (
    Block,
    Receipt,
    Transaction,
    read_about,
    read_block_number,
    read_quantity,
)
from recon_node.chain.rpc_endpoint import (
    AnswerError,
    ChainError,
    ChainReport,
    CoolingError,
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
        self._final = -math.inf, -math.inf, 0
        """Until when it counts, up to which wanted number, and the number of the final block."""

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
            NoAnswerError: no endpoint has a usable answer.
        """
        read = partial(read_about, tx_hash, Transaction)
        return await self.ask(read, "eth_getTransactionByHash", tx_hash)

    async def receipt(self, tx_hash: str) -> Receipt | None:
        """Return what became of the transaction with a hash; None if it is not in the chain.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        read = partial(read_about, tx_hash, Receipt)
        return await self.ask(read, "eth_getTransactionReceipt", tx_hash)

    async def block(self, block_hash: str) -> Block | None:
        """Return the block with a hash; None if the chain has none.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        read = partial(read_about, block_hash, Block)
        return await self.ask(read, "eth_getBlockByHash", block_hash, False)

    async def final_block(self, wanted: int = 0) -> int:
        """Return the number of the latest final block, as it was up to ten seconds ago.

        The other endpoints are asked, too, while it is less than the wanted number.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        until, covered, number = self._final
        if trio.current_time() <= until and wanted <= covered:
            return number
        depth = self._settings.confirmations
        tag: tuple[object, ...] = ("finalized", False)
        method, params, read_number, later = "eth_getBlockByNumber", tag, read_block_number, 0
        if depth != "finalized":
            method, params, read_number, later = "eth_blockNumber", (), read_quantity, depth - 1
        numbers: list[int] = []

        def read(answer: Raw) -> int | None:
            numbers.append(read_number(answer) - later)
            return numbers[-1] if numbers[-1] >= wanted else None

        try:
            await self.ask(read, method, *params)
        except NoAnswerError:
            if not numbers:
                raise
        if not numbers:
            raise AnswerError(
                f"the endpoints of {self.chain_id} report no final block: set "
                "chain_confirmations to a number of blocks"
            )
        number = max(numbers)
        covered = number if number >= wanted else math.inf  # all were asked
        self._final = trio.current_time() + _FINAL_BLOCK_LIFETIME, covered, number
        return number

    async def ask(self, read: Callable[[Raw], T | None], method: str, *params: object) -> T | None:
        """Call any method; return the first answer that `read` can use, and None if there is none.

        Raises:
            NoAnswerError: no endpoint has a usable answer.
        """
        unknown = False
        fault: NoAnswerError | None = None
        for endpoint in self._endpoints:
            try:
                await self._check_chain(endpoint)
                answer = await self._ask(endpoint, method, *params)
                found = None if answer is None else _read(endpoint, method, read, answer)
                if found is not None:
                    return found
                unknown = True
            except CoolingError:
                continue
            except NoAnswerError as error:
                fault = error
            except ChainError as error:
                logger.error("Not using an RPC endpoint", reason=str(error))
        if fault is not None:
            try:
                raise fault
            finally:
                del fault  # else the error's frames, which have the answer, would be a cycle
        if unknown:
            return None
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
