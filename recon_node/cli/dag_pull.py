"""Pulling a DAG: make the node want it, wait until all of it is there, and write it to disk.

The node gets the DAG by Recon, event by event, and keeps what came: a pull that was interrupted
goes on where it was, whoever was killed. What it hands out is checked here once more, block by
block, before it takes its place.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from recon_node.cli.client import TIMEOUT, NodeApi, NodeUnreachableError, error_message
from recon_node.cli.dag_node import publication_of, state_of, want
from recon_node.cli.errors import CommandError
from recon_node.dag import Identifier
from recon_node.dag.errors import DagError
from recon_node.dag.protocol.shards import ShardError, walk
from recon_node.dag.sources import CarFile
from recon_node.dag.unpack import unpack
from recon_node.ipld import CID

T = TypeVar("T")

_LEAST_PAUSE = 0.2
_MOST_PAUSE = 5.0


def wait_for_link(node: NodeApi, identifier: Identifier, timeout: float) -> CID:
    """Where an identifier leads to, as soon as the node knows it.

    A published DAG of which the node does not have enough to check the publish is wanted. If it
    does not come in time, what was published before it counts.

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
    node: NodeApi, root: CID, timeout: float, on_state: Callable[[dict[str, Any]], None]
) -> None:
    """Wait until all blocks of a DAG are at the node.

    Args:
        node: which node.
        root: the DAG's root.
        timeout: seconds.
        on_state: called with what the node says of the DAG, each time that it was asked.

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
    """What of a DAG is missing at a node, for people."""
    blocks, shards = state["missing_blocks"], state["missing_shards"]
    first = ", ".join(blocks["first"][:3])
    text = f"{state['blocks']} blocks are there, {blocks['count']} or more are missing ({first})"
    if shards["count"]:
        text += f"; {shards['count']} shards are missing ({', '.join(shards['first'][:3])})"
    return text


def download(node: NodeApi, root: CID, target: Path, on_bytes: Callable[[int], None]) -> None:
    """Write a DAG that is at the node to the CAR file `target`, which it replaces when it is whole.

    Raises:
        CommandError: the node does not give it, or not in full, or the disk does not take it.
    """
    with _draft(target) as draft:
        _fetch(node, root, draft, on_bytes)
        _check(draft, root)
        draft.replace(target)


def download_files(node: NodeApi, root: CID, target: Path, on_bytes: Callable[[int], None]) -> int:
    """Write the file or directory that a DAG is to `target`; how many files that were.

    Raises:
        CommandError: see `download`; or `target` is there already.
        DagError: the DAG is no file or directory.
    """
    if os.path.lexists(target):
        raise CommandError(f"{target} is there already: nothing is written over")
    with _draft(target) as draft:
        _fetch(node, root, draft, on_bytes)
        _check(draft, root)
        source = CarFile(draft, root)
        try:
            return unpack(root, source.read, target)
        finally:
            source.close()


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """An empty file beside `target`, for this process alone; what one that was killed left there
    is written over."""
    path = target.with_name(f".{target.name}.part")
    try:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(f"another pull is writing {target}") from None
            try:
                file.truncate(0)
                yield path
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}") from None


def _fetch(node: NodeApi, root: CID, draft: Path, on_bytes: Callable[[int], None]) -> None:
    try:
        with (
            httpx.Client(base_url=node.url, timeout=TIMEOUT, headers=node.headers) as client,
            client.stream("GET", f"/ceramic/dag/{root}.car") as answer,
        ):
            if answer.is_error:
                answer.read()
                raise CommandError(error_message(answer))
            with draft.open("wb") as file:
                for piece in answer.iter_bytes():
                    file.write(piece)
                    on_bytes(len(piece))
                file.flush()
                os.fsync(file.fileno())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NodeUnreachableError(node.url, error) from None


def _check(path: Path, root: CID) -> None:
    """Read a CAR once: all of the DAG must be in it, and every block what its CID says."""
    try:
        source = CarFile(path, root)
        try:
            for _ in walk(root, source.read):
                pass
        finally:
            source.close()
    except (DagError, ShardError) as error:
        raise CommandError(f"what the node gave is not the DAG {root}: {error}") from None


def _wait(look: Callable[[], T | None], timeout: float) -> T | None:
    """Look again and again until there is something; slower where looking takes long.

    A node that answered once may be away for a while: it is being started again, perhaps.
    """
    deadline = time.monotonic() + timeout
    answered = False
    while True:
        started = time.monotonic()
        try:
            found = look()
            answered = True
        except NodeUnreachableError:
            if not answered or started >= deadline:
                raise
            found = None
        now = time.monotonic()
        if found is not None or now >= deadline:
            return found
        pause = min(max(_LEAST_PAUSE, 2 * (now - started)), _MOST_PAUSE)
        time.sleep(min(pause, max(deadline - now, 0.01)))
