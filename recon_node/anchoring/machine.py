"""What to do next to have a root in a transaction of an EVM chain: pure decisions.

Theory of operation. All transactions that are signed for a root are calls of the contract, by one
account. Only one of them may ever be mined. Hence they all have the same *nonce*, of which a chain
mines one transaction: a transaction that is stuck is replaced by one with a higher fee and the same
nonce. Another nonce is chosen only once none of the earlier ones can be mined any more: it is final
that another transaction used their nonce, or that the call was reverted; or their nonce is far from
the account's, as an endpoint was wrong about it. An endpoint that says so wrongly costs a call for
each, so each time it is believed after twice the time.

`decide` looks at what was signed, all of which is on disk, and at what the chain says now, and
returns one step. It keeps nothing itself. So it does not matter when the process ends: the next to
ask again after a restart, a reorganisation, or an hour without an endpoint gets a step that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recon_node.anchoring.authority import Anchored, Pending

_LEAST_RAISE: Final = 1125
"""What a replacement must offer, in thousandths of the fee before: nodes ask for 110 % or less."""
_BASE_FEES: Final = 2
"""Base fees that are offered at first: a base fee doubles in six full blocks."""
_MAX_DOUBLINGS: Final = 20
"""Doublings of the patience, at most."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A signed transaction."""

    tx_hash: str
    """0x and 64 digits."""
    nonce: int
    max_fee: int
    """The most that is paid, in wei per gas (EIP-1559)."""
    tip: int
    """At most this part of it goes to the maker of the block."""
    raw: bytes
    signed_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Mined:
    """Where a transaction is in the chain."""

    tx_hash: str
    number: int
    """Of its block."""
    block_time: int | None
    """Unix seconds; None while the block is not final."""
    succeeded: bool
    cost: int
    """Wei."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the chain says at one moment."""

    now: float
    """Unix seconds."""
    next_nonce: int
    """Of the account, after the latest block."""
    queued_nonce: int
    """The same, after the transactions that wait in the endpoint's pool."""
    final_nonce: int | None
    """The same, after the latest final block; None if that is not known, or not needed."""
    base_fee: int
    """Of the next block, in wei per gas."""
    tip: int
    """What the endpoint suggests."""
    mined: Sequence[Mined]
    """Those of the attempts that are in the chain."""
    in_pool: bool
    """Whether the endpoint has the latest attempt."""
    too_cheap: bool = False
    """Whether it refused it because of its fee."""


@dataclass(frozen=True, slots=True)
class FeeLimits:
    """What may be spent, and how long to wait."""

    max_fee: int
    """Wei per gas."""
    patience: float
    """Seconds after which a transaction that was not mined is replaced."""
    replacements: int
    """Of one transaction, at most; also the calls that may revert, and the gaps that are filled."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign a call of the contract, keep it, and ask again."""

    nonce: int
    max_fee: int
    tip: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Send a transaction without effect: the chain waits for one with this nonce."""

    nonce: int
    max_fee: int
    tip: int


Step = Sign | Fill | Attempt | Pending | Anchored
"""What to do next. An attempt is to be sent (again)."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the root was not anchored when the chain was last asked."""

    reason: str = ""
    seconds: float = 0.0
    """For how long that has been so without a break."""

    def lasted(self, reason: str) -> float:
        """Return for how many seconds this has been the reason."""
        return self.seconds if reason == self.reason else 0.0


def decide(
    attempts: Sequence[Attempt], sight: Sight, limits: FeeLimits, obstacle: Obstacle
) -> Step:
    """Return the next step; `attempts` are what was signed for the root, the oldest first."""
    reverted = -1
    for mined in sight.mined:
        if mined.block_time is None:
            return Pending(f"in block {mined.number}, which is not final yet")
        if mined.succeeded:
            cost = sum(each.cost for each in sight.mined)  # also of calls that were reverted
            return Anchored(bytes.fromhex(mined.tx_hash[2:]), mined.block_time, cost)
        nonces = (attempt.nonce for attempt in attempts if attempt.tx_hash == mined.tx_hash)
        reverted = max(reverted, next(nonces))
    live = [attempt for attempt in attempts if attempt.nonce > reverted]
    spent = len({attempt.nonce for attempt in attempts})
    reason = _hopeless(live[-1].nonce, sight, limits) if live else ""
    if reason:
        patience = limits.patience * 2 ** min(spent - 1, _MAX_DOUBLINGS)
        if obstacle.lasted(reason) < patience:
            is_wrong = live[-1].nonce > sight.next_nonce
            return Pending(reason, is_alarming=is_wrong or spent > limits.replacements)
        live = []
    if live:
        return _follow(live, sight, limits, obstacle)
    if reverted >= 0 and spent > limits.replacements:
        return Pending("the contract has reverted every call", is_alarming=True)
    reason = "other transactions of the account are waiting"
    if sight.queued_nonce > sight.next_nonce and obstacle.lasted(reason) < limits.patience:
        return Pending(reason)
    return _offer(Sign, sight, limits)


def _hopeless(nonce: int, sight: Sight, limits: FeeLimits) -> str:
    """Return why a transaction with a nonce cannot be mined any more; "" if it can."""
    if sight.final_nonce is not None and nonce < sight.final_nonce:
        return f"another transaction has used the nonce {nonce}"
    if nonce - sight.next_nonce > limits.replacements:
        return f"an endpoint was wrong: the account's nonce is {sight.next_nonce}, not {nonce}"
    return ""


def _follow(live: Sequence[Attempt], sight: Sight, limits: FeeLimits, obstacle: Obstacle) -> Step:
    """Return the next step for attempts one of which can be mined."""
    latest = live[-1]
    if latest.nonce < sight.next_nonce:
        return Pending(
            f"another transaction has used the nonce {latest.nonce}; it is not final yet"
        )
    if latest.nonce > sight.next_nonce and obstacle.seconds >= limits.patience:
        return _offer(Fill, sight, limits)
    passed = abs(sight.now - latest.signed_at)  # the clock may have been set back since
    is_late = passed >= limits.patience and latest.nonce == sight.next_nonce
    if sight.too_cheap or is_late:
        same = [attempt for attempt in live if attempt.nonce == latest.nonce]
        raised = _raised(latest, sight, limits)
        is_outbid = latest.max_fee < sight.base_fee <= limits.max_fee
        if raised is not None and (is_outbid or len(same) <= limits.replacements):
            return Sign(latest.nonce, *raised)
        if sight.in_pool or not is_late:
            return Pending("not mined, and the fee has reached its limit", is_alarming=True)
    if not sight.in_pool:
        return latest
    if latest.nonce > sight.next_nonce:
        return Pending(f"the chain waits for a transaction with the nonce {sight.next_nonce}")
    return Pending("sent, and not in a block yet")


def _offer(step: type[Sign | Fill], sight: Sight, limits: FeeLimits) -> Step:
    fees = first_fees(sight.base_fee, sight.tip, limits.max_fee)
    if fees is not None:
        return step(sight.next_nonce, *fees)
    return Pending(too_dear(sight.base_fee, limits.max_fee), is_alarming=True)


def first_fees(base_fee: int, tip: int, limit: int) -> tuple[int, int] | None:
    """Return what to offer at first; None if that is not enough for the next block."""
    offered = min(tip, limit - base_fee)
    if offered < 0 or (offered == 0 < tip):
        return None
    return min(_BASE_FEES * base_fee + offered, limit), offered


def too_dear(base_fee: int, limit: int) -> str:
    """Return why nothing is offered."""
    return f"the base fee is {base_fee / 1e9:.3g} gwei, and anchor_max_fee {limit / 1e9:.3g}"


def _raised(latest: Attempt, sight: Sight, limits: FeeLimits) -> tuple[int, int] | None:
    """Return what to offer in place of an attempt; None if it would be more than the limit."""
    first = first_fees(sight.base_fee, sight.tip, limits.max_fee) or (0, 0)
    max_fee = max(first[0], _raise(latest.max_fee))
    tip = max(first[1], _raise(latest.tip))
    return (max_fee, min(tip, max_fee)) if max_fee <= limits.max_fee else None


def _raise(fee: int) -> int:
    return fee * _LEAST_RAISE // 1000 + 1
