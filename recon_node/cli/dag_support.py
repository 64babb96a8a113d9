"""What the commands about DAGs share: reading their arguments, telling of errors, progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from recon_node.cli.errors import CommandError
from recon_node.cli.output import make_console

if TYPE_CHECKING:
    from rich.progress import Progress

    from recon_node.ipld import CID


def read_cid(text: str) -> CID:
    """The CID that an argument is; raises `CommandError`."""
    from recon_node.ipld import CID, CidError

    try:
        return CID.parse(text)
    except CidError as error:
        raise CommandError(str(error)) from None


@contextmanager
def told_to_people() -> Iterator[None]:
    """Turn what this floor and those below refuse into one line; also out of exception groups."""
    from recon_node.ceramic import CeramicError
    from recon_node.dag import DagError
    from recon_node.dag.protocol.operations import ReplicaError
    from recon_node.dag.protocol.shards import ShardError
    from recon_node.dag.protocol.ucan import UcanError
    from recon_node.ipld import IpldError

    known = (CeramicError, DagError, IpldError, ReplicaError, ShardError, UcanError)
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            raise click.Abort from None
        if group.split((CommandError, *known))[1] is not None:
            raise
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise (error if isinstance(error, CommandError) else CommandError(str(error))) from None
    except known as error:
        raise CommandError(str(error)) from None


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 shard", "2 shards"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar of bytes on standard error, where that is a terminal."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = make_console(stderr=True)
    with Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        yield progress
