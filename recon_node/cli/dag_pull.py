"""Pulling a DAG: make the node want it, wait until all of it is there, and write it to disk.

The node gets the DAG by Recon, event by event, and keeps what came: a pull that was interrupted
continues where it stopped, whichever process was killed. Every block that the node returns is
checked again here before the result gets its name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from recon_node.cli.dag_support import publication_of, state_of, want
from recon_node.cli.output import CommandError, counted, output_draft
from recon_node.connection import Connection, UnreachableError
from recon_node.dag import Identifier
from recon_node.dag.car_source import CarFile
from recon_node.dag.errors import DagError
from recon_node.dag.extent import MAX_EXTENT
from recon_node.dag.unpack import Unpacked, unpack_dag
from recon_node.files import move_into_place, room_at
from recon_node.ipld import CID, LinksError
from recon_node.sizes import human_size

T = TypeVar("T")

_MIN_PAUSE = 0.2
"""Seconds between two questions to the node, at least."""
_MAX_PAUSE = 5.0


def wait_for_link(node: Connection, identifier: Identifier, timeout: float) -> CID:
    """Return what an identifier resolves to, as soon as the node knows it.

    If the node needs more of a published DAG to check the publish, this makes the node want it. If
    that does not arrive in time, the publish before it counts.

    Raises:
        CommandError: not in time.
    """
    found: dict[str, Any] = {}
    wanted: set[str] = set()

    def look() -> CID | None:
        found.update(publication_of(node, identifier))
        pending = found["pending"]
        if pending is None:
            return None if found["link"] is None else CID.parse(found["link"])
        if pending["link"] not in wanted:
            want(node, CID.parse(pending["link"]))
            wanted.add(pending["link"])
        return None

    link = _wait(look, timeout)
    if link is not None:
        return link
    if found["link"] is not None:
        return CID.parse(found["link"])
    if found["pending"] is not None:
        raise CommandError(
            f"after {timeout:g} s the node cannot check the publish of {found['pending']['link']}: "
            f"it does not have {', '.join(found['waiting_for'][:3])}"
        )
    raise CommandError(
        f"after {timeout:g} s the node knows no publish of {identifier}: is it connected to a "
        "node that has one (`recon-node peers`)?"
    )


def wait_for_dag(
    node: Connection, root: CID, timeout: float, on_state: Callable[[dict[str, Any]], None]
) -> None:
    """Wait until all blocks of a DAG are at the node.

    Args:
        node: which node.
        root: the DAG's root.
        timeout: seconds.
        on_state: called with the state of the DAG each time the node was asked for it.

    Raises:
        CommandError: not in time; the message says what is missing.
    """
    state: dict[str, Any] = {}

    def look() -> bool | None:
        state.update(state_of(node, root))
        on_state(state)
        return state["complete"] or None

    if _wait(look, timeout) is None:
        raise CommandError(f"after {timeout:g} s the DAG is not complete: {missing(state)}")


def missing(state: dict[str, Any]) -> str:
    """Describe what a node lacks of a DAG."""
    blocks, shards = state["missing_blocks"], state["missing_shards"]
    first = ", ".join(blocks["first"][:3])
    have = counted(state["blocks"], "block")
    text = f"the node has {have} and lacks {blocks['count']:,} or more ({first})"
    if shards["count"]:
        lacking = counted(shards["count"], "shard")
        text += f"; it lacks {lacking} ({', '.join(shards['first'][:3])})"
    return text


@dataclass(frozen=True, slots=True)
class _Room:
    """How much may be written."""

    max_size: int
    directory: Path

    def check(self, size: int, what: str) -> None:
        """Raise `CommandError` if there is no room for so many bytes."""
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
    """Write a DAG that the node has to the CAR file `target`, replacing it when it is complete.

    Raises:
        CommandError: the node does not return all of it, or the file cannot be written, or there is
            no room.
    """
    room = _Room(max_size, target.parent)
    with output_draft(target) as draft:
        _fetch(node, root, draft, room, on_bytes)
        _check(draft, root)
        move_into_place(draft, target)


def download_files(
    node: Connection, root: CID, target: Path, max_size: int, on_bytes: Callable[[int], None]
) -> Unpacked:
    """Write the file or directory of a DAG to `target`.

    Raises:
        CommandError: see `download`; or `target` already exists.
        DagError: the DAG is not a file or directory.
    """
    if os.path.lexists(target):
        raise CommandError(f"{target} already exists; not overwriting")
    room = _Room(max_size, target.parent)
    with output_draft(target) as draft:
        _fetch(node, root, draft, room, on_bytes)
        _check(draft, root)
        source = CarFile(draft, root)
        try:
            return unpack_dag(root, source.read, target, room.check)
        finally:
            source.close()


def _fetch(
    node: Connection, root: CID, draft: Path, room: _Room, on_bytes: Callable[[int], None]
) -> None:
    size, blocks = itemgetter("bytes", "blocks")(state_of(node, root))
    room.check(size, counted(blocks, "block"))
    with draft.open("wb") as file:
        for piece in node.download(f"/ceramic/dag/{root}.car"):
            file.write(piece)
            on_bytes(len(piece))


def _check(path: Path, root: CID) -> None:
    """Read a CAR once: it must have all of the DAG, and every block must match its CID."""
    try:
        source = CarFile(path, root)
        try:
            for _ in source.blocks():
                pass
        finally:
            source.close()
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
            found = look()
            answered = True
        except UnreachableError:
            if not answered or started >= deadline:
                raise
            found = None
        now = time.monotonic()
        if found is not None or now >= deadline:
            return found
        pause = min(max(_MIN_PAUSE, 2 * (now - started)), _MAX_PAUSE)
        time.sleep(min(pause, max(deadline - now, 0.01)))
