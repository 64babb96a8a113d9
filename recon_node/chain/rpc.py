"""A chain, asked by JSON-RPC: several endpoints stand for one chain, and are tried in turn.

The first endpoint that works answers. One that fails is left alone for a while; when all are, the
question is not asked at all (`CoolingError` says until when). An endpoint that does not know a
transaction or a block does not settle the matter, since it may lag behind or have pruned its index:
the others are asked, too.

No endpoint is asked anything before it has said which chain it is of. The answers are checked as
far as they can be: their types, and that they are about what was asked. For the rest, a provider is
trusted.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, Protocol, TypedDict, TypeVar

import httpx
import structlog
import trio

from recon_node.chain.endpoint import Endpoint
from recon_node.chain.errors import (
    AnswerError,
    ChainError,
    CoolingError,
    EndpointError,
    NoAnswerError,
)
from recon_node.chain.reports import ChainReport
from recon_node.chain.settings import ChainSettings

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_FINAL_BLOCK_LIFETIME: Final = 10.0
_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
# "*+": to be able to try again with fewer digits would take 75 times the memory of the answer.
_DATA: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*+", re.ASCII)
_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_MAX_QUANTITY: Final = 2**63 - 1  # what SQLite and Arrow can hold


class Transaction(TypedDict):
    """What is needed of the answer to `eth_getTransactionByHash`, in its words."""

    hash: str
    input: str
    blockHash: str | None
    blockNumber: str | None


class Block(TypedDict):
    """What is needed of the answer to `eth_getBlockByHash`, in its words."""

    hash: str
    number: str
    timestamp: str


class Provider(Protocol):
    """Answers questions about one chain. All methods raise `NoAnswerError` when they cannot."""

    @property
    def chain_id(self) -> str:
        """CAIP-2, such as `eip155:1`."""

    async def transaction(self, tx_hash: str) -> Transaction | None:
        """The transaction of that hash (0x and 64 digits), None when the chain has none."""

    async def block(self, block_hash: str) -> Block | None:
        """The block of that hash, None when the chain has none."""

    async def final_block(self) -> int:
        """The number of the latest block that is not going to be replaced; may be a little old."""


class RpcProvider:
    """A `Provider` over JSON-RPC. Made by `open_provider`."""

    def __init__(
        self,
        chain_id: str,
        settings: ChainSettings,
        client: httpx.AsyncClient,
        report: ChainReport,
        jitter: Callable[[], float],
    ) -> None:
        self.chain_id = chain_id
        self._settings = settings
        self._report = report
        self._endpoints = [
            Endpoint(
                url,
                client,
                timeout=settings.timeout,
                max_answer_bytes=settings.max_answer_bytes,
                jitter=jitter,
                took=report.took,
            )
            for url in settings.providers[chain_id]
        ]
        self._under_way = trio.CapacityLimiter(settings.requests_at_once)
        self._checking = trio.Lock()
        self._next_slot = 0.0
        self._final: tuple[float, int] | None = None

    async def check(self) -> None:
        """Ask every endpoint which chain it is of; one that does not answer is asked later.

        Raises:
            ChainError: one is of another chain.
        """
        for endpoint in self._endpoints:
            with suppress(NoAnswerError):  # told by the endpoint, which is asked again later
                await self._check_chain(endpoint)

    async def transaction(self, tx_hash: str) -> Transaction | None:
        """See `Provider`."""
        return await self._first(
            lambda answer: _transaction(tx_hash, answer), "eth_getTransactionByHash", tx_hash
        )

    async def block(self, block_hash: str) -> Block | None:
        """See `Provider`."""
        return await self._first(
            lambda answer: _block(block_hash, answer), "eth_getBlockByHash", block_hash, False
        )

    async def final_block(self) -> int:
        """See `Provider`; asked at most every ten seconds."""
        if self._final is None or self._final[0] < trio.current_time() - _FINAL_BLOCK_LIFETIME:
            number = await self._ask_final_block()
            self._final = (trio.current_time(), max(number, self._final[1] if self._final else 0))
        return self._final[1]

    async def _ask_final_block(self) -> int:
        depth = self._settings.confirmations
        if depth == "finalized":
            number = await self._first(_block_number, "eth_getBlockByNumber", "finalized", False)
        else:
            number = await self._first(_quantity, "eth_blockNumber")
            number = None if number is None else number - depth + 1
        if number is None:
            raise AnswerError(
                f"{self.chain_id} has no final block, as its endpoints say: give a number of "
                "blocks as chain_confirmations"
            )
        return number

    async def _first(self, read: Callable[[Any], T], method: str, *params: object) -> T | None:
        """The first endpoint's answer that is one; None when they work and there is none."""
        unknown = False
        faults: list[NoAnswerError] = []
        for endpoint in self._endpoints:
            try:
                await self._check_chain(endpoint)
                answer = await self._ask(endpoint, method, *params)
                if answer is not None:
                    return _read(endpoint, method, read, answer)
                unknown = True
            except NoAnswerError as error:
                faults.append(error)
            except ChainError as error:
                logger.error("An RPC endpoint is not used", reason=str(error))
        asked = [fault for fault in faults if not isinstance(fault, CoolingError)]
        if asked:
            raise asked[-1]
        if unknown:
            return None
        raise CoolingError(
            f"all endpoints of {self.chain_id} have failed lately",
            min(endpoint.cooling_until for endpoint in self._endpoints),
        )

    async def _check_chain(self, endpoint: Endpoint) -> None:
        if endpoint.chain_checked:
            return
        async with self._checking:
            if endpoint.chain_checked:
                return
            answer = await self._ask(endpoint, "eth_chainId")
            found = f"eip155:{_read(endpoint, 'eth_chainId', _quantity, answer)}"
            if found != self.chain_id:
                endpoint.give_up()
                raise ChainError(
                    f"the RPC endpoint {endpoint.host} that is set for {self.chain_id} is one of "
                    f"{found}: correct chain_rpc"
                )
            endpoint.chain_checked = True

    async def _ask(self, endpoint: Endpoint, method: str, *params: object) -> Any:
        """Ask when it is this request's turn, unless the endpoint has failed by then."""
        async with self._under_way:
            slot = max(trio.current_time(), self._next_slot)
            if endpoint.cooling_until > slot:
                raise CoolingError(f"{endpoint.host} has failed lately", endpoint.cooling_until)
            self._next_slot = slot + 1 / self._settings.requests_per_second
            await trio.sleep_until(slot)
            if endpoint.cooling_until > trio.current_time():
                raise CoolingError(f"{endpoint.host} has failed lately", endpoint.cooling_until)
            try:
                return await endpoint.ask(method, *params)
            except EndpointError:
                self._report.failures += 1
                raise


@asynccontextmanager
async def open_provider(
    chain_id: str,
    settings: ChainSettings,
    report: ChainReport,
    jitter: Callable[[], float] = random.random,
) -> AsyncIterator[RpcProvider]:
    """A provider of that chain, by the endpoints in the settings."""
    limits = httpx.Limits(
        max_connections=settings.requests_at_once,
        max_keepalive_connections=settings.requests_at_once,
        keepalive_expiry=30,
    )
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # a server could send many
    async with httpx.AsyncClient(
        timeout=settings.timeout, limits=limits, cookies=no_cookies
    ) as client:
        yield RpcProvider(chain_id, settings, client, report, jitter)


class _ShapeError(ValueError):
    """An answer of another shape than it should have."""


def _read(endpoint: Endpoint, method: str, read: Callable[[Any], T], answer: Any) -> T:
    try:
        return read(answer)
    except _ShapeError as error:
        raise AnswerError(f"{endpoint.host}: the answer to {method} {error}") from None


def _transaction(tx_hash: str, answer: Any) -> Transaction:
    fields = _map(answer)
    block_hash, number = fields.get("blockHash"), fields.get("blockNumber")
    if block_hash is None or number is None:  # not in a block yet
        block_hash = number = None
    else:
        _quantity(number)
        _text(fields, "blockHash", _HASH)
    found = Transaction(
        hash=_text(fields, "hash", _HASH),
        input=_text(fields, "input", _DATA),
        blockHash=block_hash,
        blockNumber=number,
    )
    if found["hash"].lower() != tx_hash.lower():
        raise _ShapeError("is about another transaction")
    return found


def _block(block_hash: str, answer: Any) -> Block:
    fields = _map(answer)
    number: Any
    timestamp: Any
    number, timestamp = fields.get("number"), fields.get("timestamp")
    _quantity(number)
    _quantity(timestamp)
    found = Block(hash=_text(fields, "hash", _HASH), number=number, timestamp=timestamp)
    if found["hash"].lower() != block_hash.lower():
        raise _ShapeError("is about another block")
    return found


def _block_number(answer: Any) -> int:
    return _quantity(_map(answer).get("number"))


def _map(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise _ShapeError("is not an object")
    return answer


def _text(fields: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _ShapeError(f"has no usable {name!r}")
    return value


def _quantity(value: Any) -> int:
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise _ShapeError("has no hexadecimal number where one should be")
    number = int(value, 16)
    if number > _MAX_QUANTITY:
        raise _ShapeError(f"has the number {value}, which is too large")
    return number
