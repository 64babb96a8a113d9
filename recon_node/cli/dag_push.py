"""Pushing a DAG to a node: its shards first, then the operations that say that they belong to it.

Shards are cut, signed and sent one after another, a few at once: of the DAG, only where its blocks
lie is in memory. Cutting the same DAG gives the same shards: those that the node has already are
passed over, and so a push that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import trio
from nacl.signing import SigningKey

from recon_node.ceramic import Event
from recon_node.cli.client import TIMEOUT, NodeApi
from recon_node.cli.dag_node import post_replica, state_of, want
from recon_node.cli.errors import CommandError
from recon_node.cli.sending import post_event
from recon_node.dag import shard_event
from recon_node.dag.protocol.replica import decode_replica
from recon_node.dag.protocol.shards import Shard, appends, split
from recon_node.dag.sources import Source
from recon_node.ipld import CID, multibase

WORKERS = 4


@dataclass(slots=True)
class Pushed:
    """What a push did."""

    shards: int = 0
    sent: int = 0
    """Those that were not there."""
    size: int = 0
    """Bytes of all of them."""
    head: CID | None = None
    """The replica that has them."""


def push(
    node: NodeApi,
    key: SigningKey,
    source: Source,
    shard_size: int,
    on_shard: Callable[[Shard, bool], None],
) -> Pushed:
    """Push a DAG; what is there already is not sent again.

    Args:
        node: where to.
        key: signs the events.
        source: the DAG.
        shard_size: bytes of a shard at most.
        on_shard: called after each shard, with whether it was sent.

    Raises:
        CommandError: the node refuses an event, or does not answer.
        DagError, ShardError: the DAG cannot be read, or not be cut so; inside of exception groups.
    """
    want(node, source.root)
    state = state_of(node, source.root)
    here = {*state["shards"], *state["unclaimed"]}
    done = Pushed()
    mine: list[CID] = []

    async def work(give: _Sender) -> None:
        for_all = iter(split(source.root, source.read, shard_size))
        while (shard := await trio.to_thread.run_sync(_next, for_all)) is not None:
            mine.append(shard.cid)
            done.shards += 1
            done.size += len(shard.car)
            is_new = str(shard.cid) not in here
            if is_new:
                done.sent += 1
                await give(shard_event(key, source.root, shard.car))
            on_shard(shard, is_new)

    trio.run(_send_all, node, work)
    done.head = _claim(node, key, source.root, mine)
    return done


def join_heads(node: NodeApi, key: SigningKey, root: CID) -> CID | None:
    """The replica that has all shards of the DAG that the node knows; None when there is none.

    Where several replicas have no successor, their join is sent.
    """
    state = state_of(node, root)
    if state["head"] is None:
        return None
    if state["heads"] != [state["head"]["cid"]]:
        block = multibase.decode(state["head"]["data"])
        post_replica(node, key, root, decode_replica(block).block)
    return CID.parse(state["head"]["cid"])


def _claim(node: NodeApi, key: SigningKey, root: CID, shards: list[CID]) -> CID | None:
    """Append the shards that no replica names yet."""
    unclaimed = set(state_of(node, root)["unclaimed"])
    head = join_heads(node, key, root)
    for replica in appends((cid for cid in shards if str(cid) in unclaimed), head):
        post_replica(node, key, root, replica.block)
        head = replica.cid
    return head


def _next(shards: Iterator[Shard]) -> Shard | None:
    return next(shards, None)


_Sender = Callable[[Event], Any]


async def _send_all(node: NodeApi, work: Callable[[_Sender], Any]) -> None:
    """Run `work`, which is given what sends an event; a few are under way at once."""
    limits = httpx.Limits(max_connections=WORKERS)
    give, take = trio.open_memory_channel[Event](0)

    async def send(client: httpx.AsyncClient, take: trio.MemoryReceiveChannel[Event]) -> None:
        async with take:
            async for event in take:
                data = await trio.to_thread.run_sync(multibase.encode, event.car)
                reason = await post_event(client, data)
                if reason is not None:
                    raise CommandError(f"the node refuses a shard: {reason}")

    async with (
        httpx.AsyncClient(
            base_url=node.url, timeout=TIMEOUT, limits=limits, headers=node.headers
        ) as client,
        trio.open_nursery() as nursery,
        give,
    ):
        for _ in range(WORKERS):
            nursery.start_soon(send, client, take.clone())
        take.close()
        await work(give.send)
