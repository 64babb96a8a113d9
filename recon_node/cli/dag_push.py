"""Pushing a DAG to a node: its shards first, then the operations that append them to it.

Shards are cut, signed and sent in turn, a few at a time; of the DAG itself, only the places of its
blocks are in memory. The same DAG is always cut into the same shards. Shards that the node already
has are skipped, so an interrupted push continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from nacl.signing import SigningKey

from recon_node.ceramic import Event
from recon_node.cli.dag_support import post_replica, state_of, want
from recon_node.cli.output import CommandError
from recon_node.cli.sending import send_event
from recon_node.connection import AsyncConnection, Connection
from recon_node.dag import shard_event
from recon_node.dag.protocol.replica import decode_replica
from recon_node.dag.protocol.shards import Shard, appends, split
from recon_node.dag.sources import DagSource
from recon_node.ipld import CID, multibase

WORKERS = 4
"""Requests at once."""


@dataclass(slots=True)
class Pushed:
    """What a push did."""

    shards: int = 0
    sent: int = 0
    """Shards that the node did not have."""
    size: int = 0
    """Bytes of all shards."""
    head: CID | None = None
    """The replica that has all shards."""


def push_dag(
    node: Connection,
    key: SigningKey,
    source: DagSource,
    shard_size: int,
    on_shard: Callable[[Shard, bool], None],
) -> Pushed:
    """Push a DAG; shards that the node already has are not sent again.

    Args:
        node: where to push it.
        key: signs the events.
        source: the DAG.
        shard_size: largest shard, in bytes.
        on_shard: called after each shard, with whether it was sent.

    Raises:
        CommandError: the node refuses an event, or does not answer.
        DagError, IpldError, ShardError: the DAG cannot be read or cut into such shards; in
            exception groups.
    """
    want(node, source.root)
    state = state_of(node, source.root)
    here = {*state["shards"], *state["unclaimed"]}
    done = Pushed()
    mine: list[CID] = []

    async def work(give: _Sender) -> None:
        shards = split(source.root, source.blocks(), shard_size)
        while (shard := await trio.to_thread.run_sync(next, shards, None)) is not None:
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


def join_heads(node: Connection, key: SigningKey, root: CID) -> CID | None:
    """Return the replica that has all shards of the DAG that the node knows, or None.

    If several replicas have no successor, their join is sent.
    """
    state = state_of(node, root)
    if state["head"] is None:
        return None
    if state["heads"] != [state["head"]["cid"]]:
        block = multibase.decode(state["head"]["data"])
        post_replica(node, key, root, decode_replica(block).block)
    return CID.parse(state["head"]["cid"])


def _claim(node: Connection, key: SigningKey, root: CID, shards: list[CID]) -> CID | None:
    """Append the shards that no replica has yet."""
    unclaimed = set(state_of(node, root)["unclaimed"])
    head = join_heads(node, key, root)
    for replica in appends((cid for cid in shards if str(cid) in unclaimed), head):
        post_replica(node, key, root, replica.block)
        head = replica.cid
    return head


_Sender = Callable[[Event], Any]


async def _send_all(node: Connection, work: Callable[[_Sender], Any]) -> None:
    """Run `work` with a function that sends an event; a few requests run at once."""
    give, take = trio.open_memory_channel[Event](0)

    async def send(client: AsyncConnection, take: trio.MemoryReceiveChannel[Event]) -> None:
        async with take:
            async for event in take:
                data = await trio.to_thread.run_sync(multibase.encode, event.car)
                reason = await send_event(client, data)
                if reason is not None:
                    raise CommandError(f"the node refuses a shard: {reason}")

    async with (
        AsyncConnection(node.url, token=node.token) as client,
        trio.open_nursery() as nursery,
        give,
    ):
        for _ in range(WORKERS):
            nursery.start_soon(send, client, take.clone())
        take.close()
        await work(give.send)
