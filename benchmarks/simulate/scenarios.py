"""What is simulated: each function runs one network and returns what came of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from benchmarks.report import Row
from benchmarks.simulate import deterministic
from benchmarks.simulate.host import DIAL_BYTES, DIALS
from benchmarks.simulate.world import EVENTS, KINDS_OF_TRAFFIC, RECON, Node, Plan, Spread, World

SETTLING: Final = 60.0
"""Seconds in which the nodes find each other before anything is measured."""
IDLE: Final = 30.0
"""Seconds in which the traffic of an idle network is measured."""
SPREAD_TIMEOUT: Final = 300.0
"""Longest wait for an event to reach all."""
PAUSE: Final = 10.0
"""Seconds between two events; less if only some of the nodes want each."""
PARTITION: Final = 120.0
"""Seconds for which a network is divided."""
DOWN: Final = 30.0
"""Seconds for which a node is down that churn stops."""
SESSIONS: Final = "sessions"
_CURVE: Final = [part / 50 for part in range(1, 51)]
"""The shares of nodes for which a curve of an event's spread has points."""
_P99: Final = 0.99


@dataclass(slots=True)
class Outcome:
    """What came of a simulation."""

    row: Row
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Shares of the nodes that want an event, and the median seconds until it reached them."""


def spread(plan: Plan, written: int, churn: float = 0.0) -> Outcome:
    """Write events, one after another, and see how long each takes to reach all that want it.

    Args:
        plan: the network.
        written: how many events.
        churn: the share of nodes that are stopped in each minute, and started again.
    """
    return deterministic.run(plan.seed, _spread, plan, written, churn)


def heal(plan: Plan, written: int, share: float) -> Outcome:
    """Divide the network for a while, write events on both sides, and see how long it takes after
    the end of the partition until everybody has them.

    Args:
        plan: the network.
        written: how many events, evenly spread over the time and the nodes.
        share: the share of nodes that are cut off from the others.
    """
    return deterministic.run(plan.seed, _heal, plan, written, share)


async def _spread(plan: Plan, written: int, churn: float) -> Outcome:
    async with trio.open_nursery() as nursery:
        world = World(plan, nursery)
        rng = random.Random(plan.seed + 1)
        world.start(world.nodes)
        await trio.sleep(SETTLING)
        connections, sharing = world.connections(), world.sharing()
        made = world.sent()[KINDS_OF_TRAFFIC[DIALS]] / DIAL_BYTES
        if churn:
            nursery.start_soon(_stop_and_start, world, churn, rng)
        before = _traffic(world)
        await trio.sleep(IDLE)
        idle = _rates(before, _traffic(world), IDLE)
        started, before = trio.current_time(), _traffic(world)
        spreads = await _write_all(world, written, rng)
        seconds = trio.current_time() - started
        busy = _rates(before, _traffic(world), seconds)
        refused = sum(node.store.refused for node in world.honest)
        nursery.cancel_scope.cancel()
    receivers = sum(len(item.times) for item in spreads)
    for_events = {kind: (busy[kind] - idle[kind]) * seconds for kind in (RECON, EVENTS)}
    sessions = (busy[SESSIONS] - idle.pop(SESSIONS)) * seconds
    row = {
        **_described(plan),
        "connections": _quantile(connections, 0.5),
        **_meetings(plan, sharing, made),
        "written": written,
        **_times(spreads),
        "limit": 1.5 * math.log2(max(2, max(len(item.times) for item in spreads) + 1)),
        "bytes_per_receiver": sum(for_events.values()) / receivers,
        **{f"{kind}_per_receiver": size / receivers for kind, size in for_events.items()},
        "sessions_per_receiver": sessions / receivers,
        "bytes_per_node": sum(for_events.values()) / (written * len(world.honest)),
        **{f"idle_{kind}": rate / len(world.honest) for kind, rate in sorted(idle.items())},
        "refused": refused,
    }
    return Outcome(row, _curve(spreads))


async def _write_all(world: World, written: int, rng: random.Random) -> list[Spread]:
    """Write events and wait until they have spread: one after another, unless few want each."""
    interests = world.plan.interests
    spreads: list[Spread] = []
    for _ in range(written):
        spreads.append(_write(world, rng))
        if interests:
            await trio.sleep(max(1.0, PAUSE * interests / world.plan.models))
            continue
        with trio.move_on_after(SPREAD_TIMEOUT):
            await spreads[-1].done.wait()
        await trio.sleep(PAUSE)
    with trio.move_on_after(SPREAD_TIMEOUT):
        for item in spreads:
            await item.done.wait()
    if interests:
        await trio.sleep(PAUSE)
    return spreads


def _traffic(world: World) -> Counter[str]:
    """Return the bytes that were sent, by what they are for, and the number of sessions."""
    traffic = world.sent()
    traffic[SESSIONS] = world.sessions()
    return traffic


def _rates(before: Counter[str], after: Counter[str], seconds: float) -> dict[str, float]:
    """Return how much there was of each kind in a second."""
    return {kind: (size - before[kind]) / seconds for kind, size in after.items()}


async def _heal(plan: Plan, written: int, share: float) -> Outcome:
    async with trio.open_nursery() as nursery:
        world = World(plan, nursery)
        rng = random.Random(plan.seed + 1)
        world.start(world.nodes)
        await trio.sleep(SETTLING)
        world.partition(world.nodes[: round(share * len(world.nodes))])
        spreads = []
        for _ in range(written):
            spreads.append(_write(world, rng))
            await trio.sleep(PARTITION / written)
        missing = [len(item.missing) for item in spreads]
        healed, before = trio.current_time(), world.sent()
        world.partition([])
        with trio.move_on_after(2 * SPREAD_TIMEOUT):
            for item in spreads:
                await item.done.wait()
        seconds = trio.current_time() - healed
        sent = world.sent() - before
        nursery.cancel_scope.cancel()
    late = [
        time - (healed - item.started)
        for item in spreads
        for time in item.times
        if item.started + time > healed
    ]
    row = {
        **_described(plan),
        "share": share,
        "written": written,
        "missing": sum(missing),
        "t50": _quantile(late, 0.5),
        "t99": _quantile(late, _P99),
        "healed_s": seconds,
        "unreached": sum(len(item.missing) for item in spreads),
        "bytes_per_node": sum(sent.values()) / len(world.honest),
    }
    curve = [(share, _quantile(late, share)) for share in _CURVE]
    return Outcome(row, curve)


async def _stop_and_start(world: World, churn: float, rng: random.Random) -> None:
    """Stop random nodes, and start each again after a while."""

    async def stop_and_start(node: Node) -> None:
        node.stop()
        await trio.sleep(DOWN)
        world.start([node])

    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(rng.expovariate(churn * len(world.honest) / 60))
            node = rng.choice(world.honest)
            if node.is_running:
                nursery.start_soon(stop_and_start, node)


def _write(world: World, rng: random.Random) -> Spread:
    """Write an event at a random node, of a model that it wants."""
    node = rng.choice([candidate for candidate in world.honest if candidate.is_running])
    return world.write(node, rng.choice(node.models) if world.plan.interests else None)


def _described(plan: Plan) -> Row:
    return {
        "nodes": plan.nodes,
        "version": plan.version or "all",
        "interests": plan.interests or "all",
        "bad": plan.bad,
        "loss": plan.loss,
        "seed": plan.seed,
    }


def _meetings(plan: Plan, sharing: Sequence[int], made: float) -> Row:
    """Return, of nodes with shards, whom they have met after `SETTLING`, and what that took."""
    if not plan.shards:
        return {}
    return {
        "shards": " and ".join(map(str, plan.shards)),
        "rendezvous": "shard" if plan.meet_by_shard else "model",
        "sharing": _quantile(sharing, 0.5),
        "least_sharing": min(sharing),
        "connections_made": made / plan.nodes,
    }


def _times(spreads: Sequence[Spread]) -> dict[str, Any]:
    """Return how long events took to reach half of the nodes, 99 % and all; and in push rounds.

    The length of a push round is the median time that an event took for each of its hops.
    """
    reached = [item for item in spreads if item.times]
    last = [max(item.times) for item in reached]
    a_round = _quantile(
        [time / hops for item in reached for time, hops in zip(item.times, item.hops, strict=True)],
        0.5,
    )
    return {
        "t50": _quantile([_quantile(item.times, 0.5) for item in reached], 0.5),
        "t99": _quantile([_quantile(item.times, _P99) for item in reached], 0.5),
        "all_median": _quantile(last, 0.5),
        "all_p99": _quantile(last, _P99),
        "unreached": sum(len(item.missing) for item in spreads),
        "hops_p99": _quantile([max(item.hops) for item in reached], _P99),
        "round_s": a_round,
        "rounds_p99": _quantile(last, _P99) / a_round if a_round else 0.0,
    }


def _curve(spreads: Sequence[Spread]) -> list[tuple[float, float]]:
    reached = [item.times for item in spreads if item.times]
    return [
        (share, _quantile([_quantile(times, share) for times in reached], 0.5)) for share in _CURVE
    ]


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that this share of the values does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
