"""What the commands of `recon-node snapshot` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
from rich.progress import TextColumn, TimeRemainingColumn

from recon_node.cli.output import CommandError, progress_bar
from recon_node.p2p import P2PError
from recon_node.snapshot.faults import SnapshotError
from recon_node.snapshot.objects import ObjectError
from recon_node.snapshot.root import LATEST, RootObject
from recon_node.store import StoreError
from recon_node.terminal_text import echo

SHOWN: Final = 20
"""Lines of each kind that a command prints; the rest is only counted."""

signer_option = click.option(
    "--signer",
    "signers",
    multiple=True,
    metavar="DID",
    help="Read only snapshots signed by this did:key. May be repeated. "
    "[default: the setting snapshot_signers, or anyone]",
)
root_option = click.option(
    "--root",
    "name",
    default=LATEST,
    metavar="NAME",
    help="An older snapshot, by its name in `snapshot list`. [default: the newest]",
)


def described(root: RootObject) -> dict[str, Any]:
    """Describe a snapshot as JSON."""
    found = root.manifest
    return {
        "name": root.name,
        "network": found.network.name,
        "interests": list(found.interests),
        "created": found.created_text,
        "root": None if found.tree is None else str(found.tree.link.cid),
        "ahash": None if found.tree is None else str(found.tree.link.hash),
        "events": found.count,
        "bytes": sum(size for _, size in found.packs),
        "feed": None
        if found.feed is None
        else {"epoch": found.feed.epoch, "position": found.feed.position},
        "signer": root.signer,
    }


def print_faults(faults: Sequence[object], count: int) -> None:
    """Print the first of some faults to standard error, and how many more there are."""
    for fault in faults[:SHOWN]:
        echo(str(fault), err=True)
    if count > SHOWN:
        echo(f"... and {count - SHOWN:,} more", err=True)


@contextmanager
def errors() -> Iterator[None]:
    """Turn errors into one line."""
    try:
        yield
    except (SnapshotError, ObjectError, StoreError, P2PError, OSError) as error:
        raise CommandError(str(error)) from None


@contextmanager
def step_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar; yields what the steps report to."""
    percent = TextColumn("{task.percentage:>3.0f}%")
    with progress_bar(TextColumn("{task.description}"), percent, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)

        def report(step: str, done: int, total: int | None) -> None:
            bar.update(task, description=step, completed=done, total=total)

        yield report
