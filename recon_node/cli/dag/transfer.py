"""Pulling a DAG from a node, and pushing one to it.

To pull is to make the node want the DAG, to wait until all of it is there, and to write it to disk.
The node gets the DAG by Recon, event by event, and keeps what came: a pull that was interrupted
continues where it stopped, whichever process was killed. Every block that the node returns is
checked again here before the result gets its name.

To push is to send the DAG's shards, then the operations that append them to it. Shards are cut,
signed and sent in turn, a few at a time; of the DAG itself, only the places of its blocks are in
memory. The same DAG is always cut into the same shards. Shards that the node already has are
skipped, so an interrupted push continues where it stopped.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import trio
from nacl.signing import SigningKey

from recon_node.base.connection import AsyncConnection, ClientError, Connection, UnreachableError
from recon_node.base.errors import unwrapped
from recon_node.base.files import move_into_place, room_at
from recon_node.base.terminal import CommandError, counted, human_size
from recon_node.ceramic import Event
from recon_node.cli.command import output_draft, understood
from recon_node.cli.streams.sending import send_event
from recon_node.dag.car_source import CarFile
from recon_node.dag.dag_events import (
    SORT_KEY,
    Identifier,
    Subject,
    replica_event,
    shard_event,
    sort_value,
)
from recon_node.dag.dag_source import DagSource
from recon_node.dag.errors import DagError
from recon_node.dag.protocol.replica import decode_replica
from recon_node.dag.protocol.shards import appends, split
from recon_node.dag.unpack import MAX_EXTENT, Unpacked, unpack_dag
from recon_node.ipld import CID, LinksError, multibase


class Missing(TypedDict):
    """What a node lacks of a DAG: how many, and the first of them."""

    count: int
    first: list[str]


class Head(TypedDict):
    """A replica, and its block as multibase text."""

    cid: str
    data: str


class DagState(TypedDict):
    """What a node has of a DAG."""

    complete: bool
    blocks: int
    bytes: int
    missing_blocks: Missing
    shards: list[str]
    unclaimed: list[str]
    missing_shards: Missing
    heads: list[str]
    head: Head | None


def state_of(node: Connection, root: CID) -> DagState:
    """Ask the node for the state of a DAG."""
    return understood(node, node.request("GET", f"/ceramic/dag/{root}"), DagState)


class Pending(TypedDict):
    """A publish that the node cannot check yet."""

    link: str
    origin: str


class RefusedPublish(TypedDict):
    """A publish that does not count, and why."""

    cid: str
    reason: str


class Published(TypedDict):
    """What is published under an identifier, as far as a node knows."""

    id: str
    link: str | None
    origin: str | None
    pending: Pending | None
    order: list[str]
    waiting_for: list[str]
    refused: list[RefusedPublish]
    ignored: int


def publication_of(node: Connection, identifier: Identifier) -> Published:
    """Ask the node what is published under an identifier."""
    answer = node.request("GET", f"/ceramic/dag/publish/{identifier}")
    return understood(node, answer, Published)


def want(node: Connection, subject: Subject) -> None:
    """Make the node want a DAG, or the publishes of an identifier.

    A node neither gets from peers nor offers them what it does not want. A node without interests
    wants everything, and stays so: its first interest would narrow that.
    """
    if node.request("GET", "/ceramic/experimental/interests")["interests"]:
        body = {"sep": SORT_KEY, "sepValue": sort_value(subject)}
        node.request("POST", "/ceramic/interests", json=body)


def post_replica(node: Connection, key: SigningKey, subject: Subject, block: bytes) -> None:
    """Send an operation on a DAG, or a publish."""
    event = replica_event(key, subject, block)
    node.request("POST", "/ceramic/events", json={"data": multibase.encode(event.car)})


T = TypeVar("T")

_MIN_PAUSE = 0.2
"""Seconds between two questions to the node, at least."""
_MAX_PAUSE = 5.0


def wait_for_link(node: Connection, identifier: Identifier, timeout: float) -> CID:
    """Return what an identifier resolves to, as soon as the node knows it.

    If the node needs more of a published DAG to check the publish, this makes the node want it. If
    that does not arrive in time, the publish before it counts.
    """
    last: Published
    wanted: set[str] = set()

    def look() -> CID | None:
        nonlocal last
        last = publication_of(node, identifier)
        pending = last["pending"]
        if pending is None:
            return None if last["link"] is None else CID.parse(last["link"])
        if pending["link"] not in wanted:
            want(node, CID.parse(pending["link"]))
            wanted.add(pending["link"])
        return None

    link = _wait(look, timeout)
    if link is not None:
        return link
    if last["link"] is not None:
        return CID.parse(last["link"])
    if last["pending"] is not None:
        raise CommandError(
            f"after {timeout:g} s the node cannot check the publish of {last['pending']['link']}: "
            f"it does not have {', '.join(last['waiting_for'][:3])}"
        )
    raise CommandError(
        f"after {timeout:g} s the node knows no publish of {identifier}: is it connected to a "
        "node that has one (`recon-node peers`)?"
    )


def wait_for_dag(
    node: Connection, root: CID, timeout: float, on_state: Callable[[DagState], None]
) -> None:
    """Wait until all blocks of a DAG are at the node; `on_state` is called with each state."""
    state: DagState

    def look() -> bool | None:
        nonlocal state
        state = state_of(node, root)
        on_state(state)
        return state["complete"] or None

    if _wait(look, timeout) is None:
        raise CommandError(f"after {timeout:g} s the DAG is not complete: {missing(state)}")


def missing(state: DagState) -> str:
    """Describe what a node lacks of a DAG."""
    blocks, shards = state["missing_blocks"], state["missing_shards"]
    first = ", ".join(blocks["first"][:3])
    have = counted(state["blocks"], "block")
    text = f"the node has {have} and lacks {blocks['count']:,} or more ({first})"
    if shards["count"]:
        lacking = counted(shards["count"], "shard")
        text += f"; it lacks {lacking} ({', '.join(shards['first'][:3])})"
    return text


_OVERHEAD_PER_BLOCK: Final = 128
"""Bytes of a CAR that a block takes beside its own, at most: its size and its CID."""
_HEADER: Final = 4096
"""Bytes of a CAR's header, at most."""
_BETWEEN_CHECKS: Final = 8 * 1024 * 1024
"""Bytes that are written between two looks at the free space of the disk."""


@dataclass(frozen=True, slots=True)
class _Room:
    """How much may be written."""

    max_size: int
    directory: Path

    def check(self, size: int, what: str) -> None:
        """Raise `CommandError` if that many bytes do not fit."""
        takes = f"the DAG takes {human_size(size)} ({what})"
        if size >= MAX_EXTENT:
            takes = f"the DAG takes more than {human_size(MAX_EXTENT)}"
        if size > self.max_size:
            raise CommandError(
                f"{takes}, which is more than {human_size(self.max_size)}; if you trust who made "
                "it, allow more with --max-size"
            )
        room = room_at(self.directory)
        if size > room:
            raise CommandError(
                f"{takes}, and {self.directory.resolve()} has room for {human_size(room)}, without "
                "the last 1 GiB (or 5 %) of the disk; nothing was written"
            )


def download(
    node: Connection, root: CID, target: Path, max_size: int, on_bytes: Callable[[int], None]
) -> None:
    """Write a DAG that the node has to the CAR file `target`, replacing it when it is complete."""
    room = _Room(max_size, target.parent)
    with output_draft(target) as draft:
        _fetch(node, root, draft, room, on_bytes)
        _check(draft, root)
        move_into_place(draft, target)


def download_files(
    node: Connection, root: CID, target: Path, max_size: int, on_bytes: Callable[[int], None]
) -> Unpacked:
    """Write the file or directory of a DAG to `target`, which must not exist."""
    if os.path.lexists(target):
        raise CommandError(f"{target} already exists; not overwriting")
    room = _Room(max_size, target.parent)
    with output_draft(target) as draft:
        _fetch(node, root, draft, room, on_bytes)
        _check(draft, root)
        with closing(CarFile(draft, root)) as source:
            return unpack_dag(root, source.read, target, room.check)


def _fetch(
    node: Connection, root: CID, draft: Path, room: _Room, on_bytes: Callable[[int], None]
) -> None:
    state = state_of(node, root)
    size, blocks = state["bytes"], state["blocks"]
    room.check(size, counted(blocks, "block"))
    most = min(size + blocks * _OVERHEAD_PER_BLOCK, 2 * room.max_size) + _HEADER
    checked = 0
    with draft.open("wb") as file:
        for piece in node.download(f"/ceramic/dag/{root}.car"):
            file.write(piece)
            on_bytes(len(piece))
            if file.tell() > most:
                raise CommandError(f"the node sends more than the {size:,} bytes that it announced")
            if file.tell() - checked > _BETWEEN_CHECKS:
                checked = file.tell()
                room.check(max(size - checked, 1), counted(blocks, "block"))


def _check(path: Path, root: CID) -> None:
    """Read a CAR once: it must have all of the DAG, and every block must match its CID."""
    try:
        with closing(CarFile(path, root)) as source:
            for _ in source.blocks():
                pass
    except (DagError, LinksError) as error:
        raise CommandError(f"the node's answer is not the DAG {root}: {error}") from None


def _wait(look: Callable[[], T | None], timeout: float) -> T | None:
    """Call `look` until it returns something or time is up; the pauses grow with its duration.

    A node that has answered once may be unreachable for a while: it may be restarting.
    """
    deadline = time.monotonic() + timeout
    answered = False
    while True:
        started = time.monotonic()
        try:
            result = look()
            answered = True
        except UnreachableError:
            if not answered or started >= deadline:
                raise
            result = None
        now = time.monotonic()
        if result is not None or now >= deadline:
            return result
        pause = min(max(_MIN_PAUSE, 2 * (now - started)), _MAX_PAUSE)
        time.sleep(min(pause, max(deadline - now, 0.01)))


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
    on_bytes: Callable[[int], None],
) -> Pushed:
    """Push a DAG; shards that the node already has are not sent again.

    `on_bytes` is called with the size of each shard.
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
            if str(shard.cid) not in here:
                done.sent += 1
                await give(shard_event(key, source.root, shard.car))
            on_bytes(len(shard.car))

    with unwrapped(ClientError):
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
