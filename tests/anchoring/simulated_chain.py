"""An EVM chain in memory, that reorganises, forgets, refuses and goes away on command."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import rlp
from Crypto.Hash import keccak
from eth_account import Account
from eth_account.typed_transactions import TypedTransaction
from eth_utils import to_checksum_address
from hexbytes import HexBytes
from msgspec import Raw

from recon_node.anchoring.evm import BYTECODE
from recon_node.chain.rpc import RpcProvider
from recon_node.chain.rpc_endpoint import AnswerError, EndpointError

CHAIN_ID = 1337
KEY = bytes(range(1, 33))
ADDRESS = Account.from_key(KEY).address
CONTRACT = "0x" + "c0" * 20
DEPTH = 4
"""Confirmations until a block is final."""


def created_by(nonce: int) -> str:
    """The address of the contract that a transaction of the account creates."""
    content = rlp.encode([bytes.fromhex(ADDRESS[2:]), nonce])
    digest = keccak.new(digest_bits=256, data=content).hexdigest()
    return to_checksum_address("0x" + digest[-40:])


class Crash(BaseException):
    """The process is killed."""


@dataclass(frozen=True)
class Transaction:
    tx_hash: str
    nonce: int
    max_fee: int
    tip: int
    data: bytes
    is_call: bool


@dataclass
class Block:
    number: int
    time: int
    salt: int
    transactions: list[Transaction] = field(default_factory=list)

    @property
    def hash(self) -> str:
        return f"0x{self.number:032x}{self.salt:032x}"


class SimulatedChain:
    """Of one account, with a pool; `ask` is what an endpoint answers."""

    chain_id = f"eip155:{CHAIN_ID}"

    def __init__(self) -> None:
        self.blocks = [Block(0, 1_000, 0)]
        self.pool: dict[str, Transaction] = {}
        self.seen: dict[str, Transaction] = {}
        """Every transaction that anybody in the network ever had."""
        self.base_fee = 10
        self.balance = 10**22
        self.time = 1_000.0
        self.dead = 0
        """Questions that get no answer from now on."""
        self.crash_after: int | None = None
        """Questions until the process is killed, which may be after the answer took effect."""
        self.lose_answers = False
        self.reverting = False
        self.lacks_receipts = False
        """The endpoint that is asked for receipts lags behind the one that is asked for nonces."""
        self.others: list[Any] = []
        """What other endpoints answer where each is asked."""
        self.lies = ""
        """The transaction that waits and has a receipt of the first block."""
        self.lags = False
        """The first endpoint does not follow the chain; others do."""
        self.wrong_nonce = 0
        """What is added to the account's nonce in answers."""
        self.is_free = False
        """Whether the endpoint says that blocks have no base fee."""
        self.sent = 0
        self.salt = 0

    # What happens to the chain.

    def mine(self, *, empty: bool = False) -> None:
        self.time += 5
        self.salt += 1
        block = Block(len(self.blocks), int(self.time), self.salt)
        self.blocks.append(block)
        while not empty and (transaction := self._next()) is not None:
            block.transactions.append(transaction)
            self.pool = {h: tx for h, tx in self.pool.items() if tx.nonce != transaction.nonce}

    def _next(self) -> Transaction | None:
        nonce = self.nonce()
        ready = [tx for tx in self.pool.values() if tx.nonce == nonce]
        ready = [tx for tx in ready if tx.max_fee >= self.base_fee]
        return max(ready, key=lambda tx: (tx.tip, tx.tx_hash), default=None)

    def reorganise(self, depth: int, *, lose: bool) -> None:
        depth = min(depth, DEPTH - 1, len(self.blocks) - 1)
        gone = self.blocks[len(self.blocks) - depth :]
        self.blocks = self.blocks[: len(self.blocks) - depth]
        if not lose:
            self.pool |= {tx.tx_hash: tx for block in gone for tx in block.transactions}
        for _ in gone:
            self.mine(empty=True)

    def use_nonce(self) -> None:
        """Another program uses the account."""
        self.sent += 1
        nonce = self.nonce()
        self.pool[f"0x{self.sent:064x}"] = Transaction(
            f"0x{self.sent:064x}", nonce, 10**6, 10**5, b"", False
        )

    def resurface(self) -> None:
        """Somebody sends again what was sent before, however cheap it is."""
        self.pool |= {h: tx for h, tx in self.seen.items() if tx.nonce >= self.nonce()}

    # What the chain says.

    def mined(self, upto: int | None = None) -> list[tuple[Transaction, Block]]:
        blocks = self.blocks if upto is None else self.blocks[: upto + 1]
        return [(tx, block) for block in blocks for tx in block.transactions]

    def made_up(self) -> list[tuple[Transaction, Block]]:
        return [(self.pool[self.lies], self.blocks[1])] if self.lies else []

    def nonce(self, upto: int | None = None) -> int:
        return len(self.mined(upto))

    def anchors(self, data: bytes, upto: int | None = None) -> list[tuple[Transaction, Block]]:
        return [(tx, block) for tx, block in self.mined(upto) if tx.is_call and tx.data == data]

    def final(self) -> int:
        return max(len(self.blocks) - DEPTH, 0)

    async def _heads_now(self) -> dict[str, tuple[int, int]]:
        self._reach()
        numbers = {"slow": 0, "first": self.final()} if self.lags else {"first": self.final()}
        return {name: (number, self.blocks[number].time) for name, number in numbers.items()}

    _depth = 0
    final_block = RpcProvider.final_block
    transaction = RpcProvider.transaction
    receipt = RpcProvider.receipt
    time_of = RpcProvider.time_of
    _agreed = RpcProvider._agreed

    async def ask_all(self, *question: Any) -> dict[str, Any]:
        answer = await self.ask(*question)
        others = {f"other {at}": other for at, other in enumerate(self.others)}
        return {} if answer is None else {"first": answer, **others}

    async def ask(self, read: Callable[[Any], Any], method: str, *params: Any) -> Any:
        self._reach()
        answer = self._answer(method, params)
        if self.lose_answers:
            self.lose_answers = False
            raise EndpointError("the connection broke")
        if self.crash_after == 0:
            self.crash_after = None
            raise Crash
        return None if answer is None else read(Raw(msgspec.json.encode(answer)))

    def _reach(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise Crash
        if self.dead:
            self.dead -= 1
            raise EndpointError("nobody is there")

    def _answer(self, method: str, params: tuple[Any, ...]) -> Any:
        match method, params:
            case "eth_getTransactionCount", (_, "latest"):
                return hex(self.nonce() + self.wrong_nonce)
            case "eth_getTransactionCount", (_, "pending"):
                nonce = self.nonce()
                while any(tx.nonce == nonce for tx in self.pool.values()):
                    nonce += 1
                return hex(nonce + self.wrong_nonce)
            case "eth_getTransactionCount", (_, number):
                return hex(self.nonce(int(number, 16)))
            case "eth_getBlockByNumber", ("latest", False):
                return {"baseFeePerGas": hex(0 if self.is_free else self.base_fee)}
            case "eth_maxPriorityFeePerGas", _:
                return "0x2"
            case "eth_getBalance", _:
                return hex(self.balance)
            case "eth_estimateGas", _:
                if self.reverting:
                    raise AnswerError("execution reverted: not allowed")
                return hex(24_000)
            case "eth_getTransactionByHash", (tx_hash,):
                known = {**self.pool, **{tx.tx_hash: tx for tx, _ in self.mined()}}
                if tx_hash not in known:
                    return None
                return {"hash": tx_hash, "input": "0x", "blockHash": None, "blockNumber": None}
            case "eth_getTransactionReceipt", (tx_hash,):
                for tx, block in () if self.lacks_receipts else self.mined() + self.made_up():
                    if tx.tx_hash == tx_hash:
                        return {
                            "transactionHash": tx_hash,
                            "blockHash": block.hash,
                            "blockNumber": hex(block.number),
                            "status": "0x1",
                            "gasUsed": hex(24_000),
                            "effectiveGasPrice": hex(self.base_fee + 2),
                        }
                return None
            case "eth_getBlockByNumber", (number, False):
                block = self.blocks[int(number, 16)]
                return {
                    "hash": block.hash,
                    "number": number,
                    "timestamp": hex(block.time),
                    "transactions": [tx.tx_hash for tx in block.transactions],
                }
            case "eth_getCode", (address, "latest"):
                created = {created_by(tx.nonce) for tx, _ in self.mined() if tx.data == BYTECODE}
                return "0x" + BYTECODE[29:].hex() if address in created else "0x"
            case "eth_sendRawTransaction", (raw,):
                return self._take(raw)
        raise AssertionError((method, params))

    def _take(self, raw: str) -> str:
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        recovered = Account.recover_transaction(raw)
        assert recovered == ADDRESS
        assert fields["chainId"] == CHAIN_ID
        tx_hash = "0x" + keccak.new(digest_bits=256, data=bytes.fromhex(raw[2:])).hexdigest()
        to = "0x" + bytes(fields["to"]).hex()
        transaction = Transaction(
            tx_hash,
            fields["nonce"],
            fields["maxFeePerGas"],
            fields["maxPriorityFeePerGas"],
            bytes(fields["data"]),
            is_call=to == CONTRACT,
        )
        if tx_hash in self.pool:
            raise AnswerError("error -32000: 'already known'")
        if transaction.nonce < self.nonce():
            raise AnswerError("error -32000: 'nonce too low'")
        rivals = [tx for tx in self.pool.values() if tx.nonce == transaction.nonce]
        for rival in rivals:
            if transaction.max_fee < rival.max_fee * 1.1 or transaction.tip < rival.tip * 1.1:
                raise AnswerError("error -32000: 'replacement transaction underpriced'")
        for rival in rivals:
            del self.pool[rival.tx_hash]
        self.pool[tx_hash] = self.seen[tx_hash] = transaction
        return tx_hash
