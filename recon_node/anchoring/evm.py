"""The time authority of EVM chains: a contract that is called with the root.

`machine` decides; here its steps are carried out, by JSON-RPC, and what was signed is written to
the journal before it is sent. What an endpoint answers is believed.

The contract of this project (`Anchors.sol`) is for chains that have none whose owner lets you in.
It does what the part of Ceramic's contract does that anchors, for everybody: the root is in the
input of the transaction, and in an event of the log, by which indexers find it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog
import trio

from recon_node.anchoring.authority import Anchored, AuthorityError, PayingAccount, Pending
from recon_node.anchoring.journal import Journal
from recon_node.anchoring.machine import (
    Attempt,
    FeeLimits,
    Fill,
    Mined,
    Obstacle,
    Sight,
    Sign,
    decide,
    first_fees,
    too_dear,
)
from recon_node.anchoring.signer import Signer
from recon_node.ceramic.auth.did import eip55, keccak_256
from recon_node.ceramic.time_proof import anchor_call
from recon_node.chain.rpc import RpcProvider
from recon_node.chain.rpc_answers import read_base_fee, read_hex, read_quantity, read_wei
from recon_node.chain.rpc_endpoint import AnswerError, NoAnswerError
from recon_node.ipld import CID

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_STEPS: Final = 6
"""Steps that follow each other without a pause: sign, send, raise the fee, send."""
_GAS_RESERVE: Final = 1.25
"""Gas that a call may use, by what it is estimated to use."""
_BALANCE_PAUSE: Final = 60.0
"""Seconds."""
_TRANSFER_GAS: Final = 21_000
_DEFAULT_TIP: Final = 10**9
"""Wei per gas, for endpoints that suggest none."""
_SENT: Final = (
    *("already known", "known transaction", "already imported", "already exists"),
    *("nonce too low", "nonce is too low", "invalid nonce", "oldnonce"),
)
_TOO_CHEAP: Final = (
    "underpriced",
    "less than block base fee",
    "fee too low",
    "fee cap",
    "gas price",
)
"""Words of the errors of geth, Nethermind, Erigon, Besu, Reth and Anvil."""


class EvmAuthority:
    """Anchors roots by calls of a contract's `anchorDagCbor(bytes32)`.

    `now` returns Unix time in seconds. `clock` is one that is never set, by which obstacles last.
    """

    def __init__(
        self,
        chain: RpcProvider,
        signer: Signer,
        journal: Journal,
        contract: str,
        limits: FeeLimits,
        now: Callable[[], float],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._chain = chain
        self._signer = signer
        self._journal = journal
        self._contract = contract
        self._limits = limits
        self._now = now
        self._clock = clock
        self._refused = ""
        self._obstacle = ""
        self._obstacle_since = 0.0
        self.account = PayingAccount(signer.address, None)

    async def advance(self, root: CID) -> Anchored | Pending:
        """See `TimeAuthority`."""
        try:
            for _ in range(_STEPS):
                outcome = await self._step(root)
                if outcome is not None:
                    break
            else:
                outcome = Pending("sent")
        except NoAnswerError as error:
            outcome = Pending(f"no usable answer: {error}", is_alarming=True)
        obstacle = outcome.reason if isinstance(outcome, Pending) else ""
        if obstacle != self._obstacle:
            self._obstacle, self._obstacle_since = obstacle, self._clock()
        return outcome

    async def follow_balance(self) -> None:
        """Keep the account's balance up to date while no root is on its way, too, without end."""
        while True:
            with suppress(NoAnswerError):
                await self._see_balance()
            await trio.sleep(_BALANCE_PAUSE)

    async def _see_balance(self) -> None:
        address = self._signer.address
        balance = await self._chain.ask(read_wei, "eth_getBalance", address, "latest")
        self.account = PayingAccount(address, balance)

    async def _step(self, root: CID) -> Anchored | Pending | None:
        """Take a step; None: another one may follow at once."""
        attempts = await trio.to_thread.run_sync(self._journal.attempts, root)
        sight = await self._look(attempts)
        seconds = self._clock() - self._obstacle_since if self._obstacle else 0.0
        match decide(attempts, sight, self._limits, Obstacle(self._obstacle, seconds)):
            case Sign(nonce, max_fee, tip):
                return await self._sign(root, nonce, max_fee, tip)
            case Attempt() as attempt:
                return await self._send(attempt)
            case Fill(nonce, max_fee, tip):
                fill = {"to": self._signer.address, "gas": _TRANSFER_GAS, "data": b""}
                attempt = self._signed(fill, nonce, max_fee, tip)
                logger.warning("Filling a gap among the account's transactions", nonce=nonce)
                return await self._send(attempt) or Pending("a gap among transactions is filled")
            case Pending() | Anchored() as outcome:
                return outcome

    async def _look(self, attempts: Sequence[Attempt]) -> Sight:
        """Ask for everything that a decision needs; receipts last, so that they are not older."""
        next_nonce = await _nonce(self._chain, self._signer, "latest")
        queued = await _nonce(self._chain, self._signer, "pending")
        base_fee = await _base_fee(self._chain)
        tip = await _suggested_tip(self._chain)
        await self._see_balance()
        final_nonce = None
        if attempts and attempts[-1].nonce < next_nonce:
            count = read_quantity, "eth_getTransactionCount", self._signer.address
            try:
                counts = await self._chain.ask_all(*count, hex(await self._chain.final_block()))
                final_nonce = min(counts.values(), default=None)
            except AnswerError as error:  # its state of that block is gone
                logger.info("Cannot find out which transactions are final", reason=str(error))
        mined = []
        for attempt in attempts:
            receipt = await self._chain.receipt(attempt.tx_hash)
            if receipt is not None:
                time = await self._chain.time_of(receipt)
                result = (receipt.succeeded, receipt.cost)
                mined.append(Mined(attempt.tx_hash, receipt.number, time, *result))
        in_pool = False
        if attempts and not mined:
            in_pool = await self._chain.transaction(attempts[-1].tx_hash) is not None
        return Sight(
            now=self._now(),
            next_nonce=next_nonce,
            queued_nonce=queued,
            final_nonce=final_nonce,
            base_fee=base_fee,
            tip=tip,
            mined=mined,
            in_pool=in_pool,
            too_cheap=bool(attempts) and self._refused == attempts[-1].tx_hash,
        )

    async def _sign(self, root: CID, nonce: int, max_fee: int, tip: int) -> Pending | None:
        data = anchor_call(root)
        call = {"from": self._signer.address, "to": self._contract, "data": "0x" + data.hex()}
        try:
            gas = await _need(self._chain, read_quantity, "eth_estimateGas", call)
        except AnswerError as error:
            return Pending(f"the contract {self._contract} refuses the call: {error}", True)
        gas = int(gas * _GAS_RESERVE)
        balance = self.account.balance
        if balance is not None and balance < gas * max_fee:
            has = f"the account {self.account.address} has {balance / 1e18:.6g}"
            return Pending(f"{has}, which may not be enough for a transaction", True)
        fields = {"to": self._contract, "gas": gas, "data": data}
        attempt = self._signed(fields, nonce, max_fee, tip)
        account = self._signer.address
        await trio.to_thread.run_sync(self._journal.add_attempt, root, account, attempt)
        facts = {"transaction": attempt.tx_hash, "nonce": nonce, "max_fee_gwei": max_fee / 1e9}
        logger.info("Signed a transaction for a tree", **facts)
        return None

    def _signed(self, fields: dict[str, Any], nonce: int, max_fee: int, tip: int) -> Attempt:
        transaction = _transaction(self._chain.chain_id, nonce, max_fee, tip)
        tx_hash, raw = self._signer.sign(transaction | fields)
        return Attempt(tx_hash, nonce, max_fee, tip, raw, self._now())

    async def _send(self, attempt: Attempt) -> Pending | None:
        """Send a transaction; None: ask the chain again what has become of it."""
        try:
            await self._chain.ask(read_hex, "eth_sendRawTransaction", "0x" + attempt.raw.hex())
        except AnswerError as error:
            words = str(error).lower()
            if any(word in words for word in _TOO_CHEAP):
                if self._refused == attempt.tx_hash:
                    return Pending(f"the fee is too low: {error}", True)
                self._refused = attempt.tx_hash
                return None
            if any(word in words for word in _SENT):
                return Pending("sent")
            return Pending(f"the chain refuses the transaction: {error}", True)
        logger.info("Sent a transaction", transaction=attempt.tx_hash, nonce=attempt.nonce)
        return Pending("sent")


async def _need(chain: RpcProvider, read: Callable[[Any], T], method: str, *params: object) -> T:
    answer = await chain.ask(read, method, *params)
    if answer is None:
        raise AnswerError(f"{method} has no answer")
    return answer


async def _nonce(chain: RpcProvider, signer: Signer, tag: str) -> int:
    return await _need(chain, read_quantity, "eth_getTransactionCount", signer.address, tag)


async def _base_fee(chain: RpcProvider) -> int:
    return await _need(chain, read_base_fee, "eth_getBlockByNumber", "latest", False)


async def _suggested_tip(chain: RpcProvider) -> int:
    tip = None
    with suppress(AnswerError):
        tip = await chain.ask(read_wei, "eth_maxPriorityFeePerGas")
    return _DEFAULT_TIP if tip is None else tip


def _transaction(chain_id: str, nonce: int, max_fee: int, tip: int) -> dict[str, Any]:
    """Return what transactions have in common (EIP-1559)."""
    return {
        "type": 2,
        "chainId": int(chain_id.partition(":")[2]),
        "nonce": nonce,
        "value": 0,
        "maxFeePerGas": max_fee,
        "maxPriorityFeePerGas": tip,
    }


BYTECODE: Final = bytes.fromhex(
    "6080604052348015600f57600080fd5b50608e80601d6000396000f3fe6080604052348015600f57600080fd5b50"
    "6004361060285760003560e01c806397ad09eb14602d575b600080fd5b603c60383660046076565b603e565b005b"
    "60405181815233907f37f9254ff1973d24d609016d6bb0aef8e6de91808811a546fad8eaa0e481d9d99060200160"
    "405180910390a250565b600060208284031215608757600080fd5b503591905056"
)
"""Of `Anchors.sol` by solc 0.8.26: evmVersion paris, optimizer with 1,000,000 runs, no metadata."""
_GAS: Final = 150_000
"""More than its creation takes, 93,000."""
_POLL: Final = 1.0
_PATIENCE: Final = 300.0
"""Seconds to wait for the transaction's block."""
_LATEST: Final = 16
"""Transactions of the account in which a contract is looked for."""


async def deploy(chain: RpcProvider, signer: Signer, max_fee: int) -> str:
    """Create a contract, unless one of the account's latest transactions did; return its address.

    So it is paid once, however often this is called. `max_fee` is in wei per gas.

    Raises:
        AuthorityError: it did not come into being.
        NoAnswerError: no endpoint answers.
    """
    sent: int | None = None
    with trio.move_on_after(_PATIENCE):
        while True:
            try:
                nonce = await _nonce(chain, signer, "latest")
                first = max(nonce - _LATEST, 0) if sent is None else sent
                for used in range(first, nonce):
                    address = _created_address(signer.address, used)
                    code = await chain.ask(read_hex, "eth_getCode", address, "latest") or "0x"
                    if code != "0x" and BYTECODE.hex().endswith(code[2:].lower()):
                        return address
                if sent in (None, nonce) and nonce == await _nonce(chain, signer, "pending"):
                    sent = nonce
                    await _create(chain, signer, nonce, max_fee)
            except NoAnswerError:
                if sent is None:
                    raise
            await trio.sleep(_POLL)
    raise AuthorityError(
        f"no contract by {signer.address} is in a block after {_PATIENCE:g} seconds: see what its "
        "transactions wait for, and try again; it is not paid twice"
    )


async def _create(chain: RpcProvider, signer: Signer, nonce: int, max_fee: int) -> None:
    base_fee = await _base_fee(chain)
    fees = first_fees(base_fee, await _suggested_tip(chain), max_fee)
    if fees is None:
        raise AuthorityError(too_dear(base_fee, max_fee))
    fields = {"gas": _GAS, "data": BYTECODE}
    _, raw = signer.sign(_transaction(chain.chain_id, nonce, *fees) | fields)
    try:
        await chain.ask(read_hex, "eth_sendRawTransaction", "0x" + raw.hex())
    except AnswerError as error:
        if not any(word in str(error).lower() for word in (*_SENT, "replacement")):
            raise AuthorityError(str(error)) from None


def _created_address(account: str, nonce: int) -> str:
    """Return the address of the contract that an account's transaction creates."""
    number = nonce.to_bytes((nonce.bit_length() + 7) // 8)
    rlp = number if 0 < nonce < 0x80 else bytes([0x80 + len(number)]) + number
    rlp = b"\x94" + bytes.fromhex(account[2:]) + rlp
    return eip55("0x" + keccak_256(bytes([0xC0 + len(rlp)]) + rlp)[-20:].hex())
