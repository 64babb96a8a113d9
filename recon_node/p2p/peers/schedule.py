"""When this node announces itself and looks for others in the DHT (CIP-124, "Peer discovery").

Theory of operation
-------------------
A *rendezvous* is a key of the DHT at which nodes find each other: that of the network, and that of
the sort value of each interest. A node announces itself at its rendezvous and looks for others
there by the same `Schedule`:

- A new rendezvous is due at once, then after ever longer waits (`ROUNDS`), then once in each
  interval. So nodes that start at the same time find each other although neither's first look
  succeeds, and a change of interests shows soon.
- When a peer has joined the DHT, the waits start again: there may be something new to find, and
  somebody new to announce to.
- Once enough peers are connected, a rendezvous takes its next turn in the interval. Whoever comes
  later looks for others, and finds this node.
- Every wait is jittered, so that nodes that start together do not stay in step.
- The work is bounded, however many interests a node has. Only `MAX_QUICK` rendezvous have short
  waits at the same time, and in each interval `MAX_IN_INTERVAL` take their turn; the interval
  grows for nodes that have more. Then some of their records lapse between two turns. Still, none of
  their interests is left out: they look up all of them in turn, and so meet nodes that have fewer.

Pure: callers have the clock and draw the random numbers.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from recon_node.ceramic import Network, rendezvous, sort_value_rendezvous
from recon_node.fairness.pacing import Backoff, jittered
from recon_node.store import Interest

ROUNDS: Final = Backoff(first=1.0, longest=60.0)
"""The waits between rounds at the start."""
FIRST_ROUNDS: Final = 7
"""Rounds until the longest of them; after that comes one in each interval."""
MAX_QUICK: Final = 32
"""Maximum rendezvous in their first rounds at the same time; others begin with a turn somewhere in
the interval."""
MAX_IN_INTERVAL: Final = 64
"""Maximum rendezvous that take their turn in one interval."""
RESTART_PAUSE: Final = 1.0
"""Seconds between two restarts, however many peers join."""
_SHA2_256_MULTIHASH: Final = b"\x12\x20"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A key of the DHT at which nodes find each other."""

    key: bytes
    """A multihash: servers drop other long keys."""
    sort_value: str | None
    """Of the interests that it is for; None: it is that of the network."""


def network_rendezvous(network: Network) -> Rendezvous:
    """Return the rendezvous of all nodes of a network."""
    return Rendezvous(_multihash(rendezvous(network)), None)


def sort_value_rendezvous_of(network: Network, sort_value: str) -> Rendezvous:
    """Return the rendezvous of the nodes that are interested in a sort value, or in part of it."""
    return Rendezvous(_multihash(sort_value_rendezvous(network, sort_value)), sort_value)


def all_rendezvous(network: Network, interests: Iterable[Interest]) -> list[Rendezvous]:
    """Return the rendezvous of a node: the network's, then those of its interests' sort values."""
    sort_values = dict.fromkeys(interest.sort_value for interest in interests)
    theirs = [sort_value_rendezvous_of(network, sort_value) for sort_value in sort_values]
    return [network_rendezvous(network), *theirs]


@dataclass(slots=True)
class _Turn:
    """When a rendezvous is due next."""

    at: float
    rounds: int
    """Rounds that have passed; after `FIRST_ROUNDS`, the waits are those of the interval."""


class Schedule:
    """When each rendezvous is due.

    Args:
        interval: seconds from turn to turn in the long run.
        draw: returns a random number from 0 to 1.
    """

    def __init__(self, interval: float, draw: Callable[[], float]) -> None:
        self._interval = interval
        self._draw = draw
        self._turns: dict[bytes, _Turn] = {}
        self._restart_at = -math.inf

    def change(self, keys: Iterable[bytes], now: float) -> None:
        """Set the keys to announce and look up, the most important first. New ones are due."""
        before, self._turns = self._turns, {}
        for key in keys:
            self._turns[key] = before.get(key) or _Turn(math.inf, FIRST_ROUNDS)
        quick = sum(turn.rounds < FIRST_ROUNDS for turn in self._turns.values())
        for turn in self._turns.values():
            if math.isinf(turn.at):
                is_quick = quick < MAX_QUICK
                quick += is_quick
                turn.rounds = 0 if is_quick else FIRST_ROUNDS
                turn.at = now + (0.0 if is_quick else self._period * self._draw())

    def restart(self, now: float) -> None:
        """Begin with the first rounds again: for the most important one, and those due first."""
        if not self._turns:
            return
        if self._restart_at <= now:  # else one is under way
            self._restart_at = max(now, self._restart_at + RESTART_PAUSE)
        first, *others = self._turns.values()
        for turn in [first, *sorted(others, key=lambda turn: turn.at)][:MAX_QUICK]:
            turn.at, turn.rounds = min(turn.at, self._restart_at), 0

    def settle(self, now: float, has_enough: Callable[[bytes], bool]) -> None:
        """Put off what is due, but need not be looked for again so soon."""
        for key, turn in self._turns.items():
            if turn.at <= now and 0 < turn.rounds < FIRST_ROUNDS and has_enough(key):
                turn.rounds = FIRST_ROUNDS
                turn.at = now + jittered(self._period, self._draw())

    def take(self, now: float, at_most: int) -> list[bytes]:
        """Return what is due, longest overdue first, and plan its next turn."""
        due = [key for key, turn in self._turns.items() if turn.at <= now]
        taken = sorted(due, key=lambda key: self._turns[key].at)[:at_most]
        for key in taken:
            turn = self._turns[key]
            turn.rounds += 1
            is_first = turn.rounds <= FIRST_ROUNDS
            wait = ROUNDS.wait(turn.rounds) if is_first else self._period
            turn.at = now + jittered(wait, self._draw())
        return taken

    def is_first_round(self, key: bytes) -> bool:
        """Return whether a rendezvous has taken one turn at most since it was new, or since a
        restart."""
        return key in self._turns and self._turns[key].rounds <= 1

    @property
    def next_at(self) -> float:
        """When something is due next; infinity if there is nothing to announce."""
        return min((turn.at for turn in self._turns.values()), default=math.inf)

    @property
    def _period(self) -> float:
        return self._interval * max(1.0, len(self._turns) / MAX_IN_INTERVAL)


def _multihash(data: bytes) -> bytes:
    return _SHA2_256_MULTIHASH + hashlib.sha256(data).digest()
