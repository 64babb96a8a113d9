"""Which simulations there are, by name: the rows of one table each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.simulate.scenarios import Outcome, heal, spread
from benchmarks.simulate.world import Plan, version_names

SIZES: Final = (0.03, 0.1, 0.3, 1.0)
"""Shares of the nodes, for the simulations of smaller networks."""
INTERESTS: Final = 3
"""Models, of those of the network, that a node with interests wants."""
SHARDED: Final = 3
"""Models that are cut into shards."""
MORE_INTERESTS: Final = (1, 3, 10, 30)
BAD: Final = 0.01
LOSS: Final = 0.01
CHURN: Final = 0.1
"""The share of nodes that restart in a minute."""
CUT_OFF: Final = 0.1


@dataclass(frozen=True, slots=True)
class Simulation:
    """One row."""

    label: str
    run: Callable[[], Outcome]


def sizes(plan: Plan, events: int) -> Iterator[Simulation]:
    """Networks of different sizes; all nodes want everything."""
    for nodes in _sizes(plan, SIZES):
        yield Simulation(f"{nodes:,} nodes", partial(spread, replace(plan, nodes=nodes), events))


def versions(plan: Plan, events: int) -> Iterator[Simulation]:
    """Networks in which all nodes speak one version of recon."""
    for name in version_names():
        run = partial(spread, replace(plan, version=name), events)
        yield Simulation(f"recon/{name}", run)


def interests(plan: Plan, events: int) -> Iterator[Simulation]:
    """Nodes with few of the network's models: in larger networks, and with more of them."""
    for nodes in _sizes(plan, SIZES[1:]):
        smaller = replace(plan, nodes=nodes, interests=INTERESTS)
        label = f"{INTERESTS} of {plan.models} models, {nodes:,} nodes"
        yield Simulation(label, partial(spread, smaller, events))
    (nodes,) = _sizes(plan, SIZES[2:3])
    for number in MORE_INTERESTS:
        if number != INTERESTS:
            variant = replace(plan, nodes=nodes, interests=number)
            label = f"{number} of {plan.models} models, {nodes:,} nodes"
            yield Simulation(label, partial(spread, variant, events))


def shards(plan: Plan, events: int) -> Iterator[Simulation]:
    """Nodes with a shard of one of a few models, which meet at their model's rendezvous or at one
    of the shard; while a model goes from four shards to five, both are in use."""
    for cut in ((4,), (4, 5), (16,)):
        for by_shard in (False, True):
            cut_up = replace(plan, models=SHARDED, interests=1, shards=cut, meet_by_shard=by_shard)
            name = " and ".join(map(str, cut))
            label = f"{name} shards, meeting by {'shard' if by_shard else 'model'}"
            yield Simulation(label, partial(spread, cut_up, events))


def trouble(plan: Plan, events: int) -> Iterator[Simulation]:
    """Bad nodes, lossy lines, and nodes that come and go."""
    yield Simulation("none", partial(spread, plan, events))
    yield Simulation(f"{BAD:.0%} bad nodes", partial(spread, replace(plan, bad=BAD), events))
    yield Simulation(f"{LOSS:.0%} loss", partial(spread, replace(plan, loss=LOSS), events))
    yield Simulation(f"{CHURN:.0%} restart in a minute", partial(spread, plan, events, CHURN))


def partition(plan: Plan, events: int) -> Iterator[Simulation]:
    """A tenth of the nodes is cut off for two minutes."""
    yield Simulation(f"{CUT_OFF:.0%} cut off", partial(heal, plan, events, CUT_OFF))


def _sizes(plan: Plan, shares: Sequence[float]) -> list[int]:
    return list(dict.fromkeys(max(2, round(share * plan.nodes)) for share in shares))


Suite = Callable[[Plan, int], Iterator[Simulation]]
SUITES: Final[dict[str, Suite]] = {
    "sizes": sizes,
    "versions": versions,
    "interests": interests,
    "shards": shards,
    "trouble": trouble,
    "partition": partition,
}
