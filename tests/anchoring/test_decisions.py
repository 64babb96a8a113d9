"""What is signed for a root when an endpoint is wrong, for as long as it is."""

from dataclasses import replace

from recon_node.anchoring.authority import Anchored, Pending
from recon_node.anchoring.machine import Attempt, FeeLimits, Mined, Obstacle, Sight, Sign, decide

LIMITS = FeeLimits(max_fee=20 * 10**9, patience=180.0, replacements=8)
GWEI = 10**9


def sight(now: float, nonce: int) -> Sight:
    return Sight(now, nonce, nonce, nonce, GWEI, GWEI, mined=[], in_pool=False)


def test_an_endpoint_that_always_has_used_the_nonce_is_believed_ever_later() -> None:
    """It takes each transaction, and says that another one has its nonce, and is final."""
    attempts: list[Attempt] = []
    now, since, reason, is_alarming = 0.0, 0.0, "", False
    while now < 86_400:
        nonce = attempts[-1].nonce + 1 if attempts else 100
        match decide(attempts, sight(now, nonce), LIMITS, Obstacle(reason, now - since)):
            case Sign(nonce, max_fee, tip):
                attempts.append(Attempt(f"{len(attempts)}", nonce, max_fee, tip, b"", now))
            case Pending(text, is_alarming):
                since = since if text == reason else now
                reason = text
        now += 30.0
    assert len({attempt.nonce for attempt in attempts}) == len(attempts) == 9
    assert is_alarming


def test_gaps_are_filled_only_where_they_are_few() -> None:
    """An endpoint says first that the account's nonce is 1,000, and later 5."""
    attempt = Attempt("0x", 1000, GWEI, GWEI, b"", 0.0)
    gap = Obstacle("sent", 1000.0)
    assert not isinstance(decide([attempt], sight(1000.0, 996), LIMITS, gap), Pending)
    step = decide([attempt], sight(1000.0, 5), LIMITS, gap)
    assert isinstance(step, Pending)
    assert step.is_alarming
    lasting = Obstacle(step.reason, LIMITS.patience)
    assert decide([attempt], sight(1000.0, 5), LIMITS, lasting) == Sign(5, 3 * GWEI, GWEI)
    assert isinstance(decide([attempt], sight(0.0, 1000), LIMITS, Obstacle()), Attempt)


def test_a_tree_costs_what_its_reverted_calls_cost_too() -> None:
    attempts = [Attempt(f"0x0{nonce}", nonce, GWEI, GWEI, b"", 0.0) for nonce in (1, 2)]
    mined = [Mined("0x01", 7, 70, False, 5), Mined("0x02", 8, 80, True, 6)]
    seen = replace(sight(90.0, 3), mined=mined)
    assert decide(attempts, seen, LIMITS, Obstacle()) == Anchored(b"\2", 80, 11)


def test_a_transaction_is_replaced_when_the_clock_was_set_back_by_years() -> None:
    attempt = Attempt("0x", 5, GWEI, GWEI, b"", 2_000_000_000.0)
    pooled = replace(sight(1_700_000_000.0, 5), in_pool=True)
    assert isinstance(decide([attempt], pooled, LIMITS, Obstacle()), Sign)
