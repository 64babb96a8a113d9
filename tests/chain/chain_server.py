"""A chain behind a real JSON-RPC server on the loopback, that can be told to misbehave."""

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import h11
import trio
from support import vectors
from support.waiting import kept_port

from recon_node.ceramic import TimeProof, expected_input

ANSWERS = vectors.load("chain_answers")
KEY = "s3cr3t-api-k3y"
GNOSIS = "eip155:100"


@dataclass(frozen=True)
class Fault:
    """What is answered in place of an answer."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False
    drop: bool = False


def rpc_error(code: int, message: str) -> Fault:
    error = {"code": code, "message": message}
    return Fault(body=json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode())


def rpc_result(result: Any) -> Fault:
    return Fault(body=json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())


epoch = 0.0
"""Unix time at the start of the virtual clock; a little ahead, so that what the store stamps with
the real time is due."""

_held = 0


def now() -> float:
    """Unix time that goes with the virtual clock."""
    return epoch + trio.current_time()


def held() -> int:
    """How many requests are kept waiting by servers on purpose."""
    return _held


@contextmanager
def _holding() -> Iterator[None]:
    global _held  # noqa: PLW0603 (of all servers of the process)
    _held += 1
    try:
        yield
    finally:
        _held -= 1


class Chain:
    """The chain, and what was asked of it."""

    def __init__(self, chain_id: str = GNOSIS) -> None:
        self.chain_id = chain_id
        self.transactions: dict[str, dict[str, Any]] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.blocks: dict[int, dict[str, Any]] = {}
        self.latest = 2_000
        self.finalized: int | None = 1_000
        self.head_time = 0
        """Of the latest block, and the final one."""
        self.asked: list[tuple[str, str]] = []
        """Method and first parameter of each call."""
        self.times: list[float] = []
        """When each was, on trio's clock."""
        self.faults: deque[Fault] = deque()
        """Consumed one a call, before anything else."""
        self.fault_for: Callable[[str, str], Fault | None] = lambda method, param: None
        self.under_way = 0
        self.most_under_way = 0
        self.hold_until(0)

    def hold_until(self, under_way: int) -> None:
        """Answer nothing before so many calls are under way."""
        self._together = under_way
        self._gate = trio.Event()

    def mine(
        self,
        proof: TimeProof,
        timestamp: int,
        *,
        number: int = 900,
        data: bytes | None = None,
        shape: str = "gnosis",
    ) -> None:
        """Put the proof's transaction into a block (with other data, if given)."""
        block_hash = "0x" + f"{number:x}".rjust(8, "0") * 8
        text = "0x" + (expected_input(proof) if data is None else data).hex()
        transaction = dict(ANSWERS["transactions"][shape])
        transaction |= {"hash": proof.transaction_hash, "input": text}
        transaction |= {"blockHash": block_hash, "blockNumber": hex(number)}
        if "data" in transaction:
            transaction["data"] = text
        self.transactions[proof.transaction_hash] = transaction
        self.blocks[number] = dict(ANSWERS["block"]) | {
            "hash": block_hash,
            "number": hex(number),
            "timestamp": hex(timestamp),
        }

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)

    def answer(self, method: str, params: list[Any]) -> Any:
        if method == "eth_chainId":
            return hex(int(self.chain_id.partition(":")[2]))
        if method == "eth_getTransactionByHash":
            return self.transactions.get(params[0])
        if method == "eth_getTransactionReceipt":
            return self.receipts.get(params[0])
        if method == "eth_blockNumber":
            return hex(self.latest)
        assert (method, params[1]) == ("eth_getBlockByNumber", False)
        if params[0] not in ("finalized", "latest"):
            return self.block(int(params[0], 16))
        number = self.finalized if params[0] == "finalized" else self.latest
        head = dict(ANSWERS["block"]) | {"timestamp": hex(self.head_time)}
        return None if number is None else head | {"number": hex(number)}

    def block(self, number: int) -> dict[str, Any] | None:
        mined = [tx for tx in self.transactions.values() if tx["blockNumber"] == hex(number)]
        block = self.blocks.get(number)
        return block and block | {"transactions": [tx["hash"] for tx in mined]}

    async def handle(self, body: bytes) -> Fault:
        call = json.loads(body)
        method, params = call["method"], call["params"]
        first = str(params[0]) if params else ""
        self.asked.append((method, first))
        self.times.append(trio.current_time())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.under_way >= self._together:
                self._gate.set()
            with _holding():
                await self._gate.wait()
            fault = self.faults.popleft() if self.faults else self.fault_for(method, first)
            if fault is not None:
                return fault
            answer = {"jsonrpc": "2.0", "id": call["id"], "result": self.answer(method, params)}
            return Fault(body=json.dumps(answer).encode())
        finally:
            self.under_way -= 1

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await self._converse(stream)
            except trio.BrokenResourceError:
                return

    async def _converse(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            body = b""
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some())
                elif isinstance(event, h11.Request):
                    assert dict(event.headers)[b"accept-encoding"] == b"identity"
                    assert b"cookie" not in dict(event.headers)
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return
            answer = await self.handle(body)
            if answer.hang:
                with _holding():
                    await stream.receive_some()  # until the other side gives up
                return
            if answer.drop:
                return
            headers = [("content-length", str(len(answer.body))), *answer.headers]
            head = h11.Response(status_code=answer.status, headers=headers)
            await stream.send_all(connection.send(head) or b"")
            await stream.send_all(connection.send(h11.Data(data=answer.body)) or b"")
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()


@asynccontextmanager
async def serving(chain: Chain, port: int = 0) -> AsyncIterator[str]:
    """The chain's URL, with a secret in it, for as long as the context is open."""
    [listener] = await trio.open_tcp_listeners(port, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, chain.serve, [listener])
        yield f"http://127.0.0.1:{port}/v3/{KEY}"
        nursery.cancel_scope.cancel()


@contextmanager
def refusing() -> Iterator[str]:
    """A URL at which nothing listens."""
    with kept_port() as port:
        yield f"http://127.0.0.1:{port}/v3/{KEY}"
