"""What the commands about DAGs share: requests to a node, the signing key, and errors.

The key is Ed25519. Its file, which only its owner can read, has the 32 bytes of the seed as one
line of hexadecimal text.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypedDict

import click
from nacl.signing import SigningKey
from rich.progress import (
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from recon_node.base.connection import Connection
from recon_node.base.exception_groups import unwrapped
from recon_node.base.files import draft_of, move_into_place, read_secret
from recon_node.base.setting_types import at_home, default_data_dir
from recon_node.base.terminal import echo
from recon_node.ceramic import CeramicError
from recon_node.cli.command import FILE, CommandError, one_line, progress_bar, understood
from recon_node.dag.dag_events import SORT_KEY, Identifier, Subject, replica_event, sort_value
from recon_node.dag.dag_index import KEY_FILE
from recon_node.dag.errors import DagError
from recon_node.dag.protocol.dag_operations import ReplicaError
from recon_node.dag.protocol.shards import ShardError
from recon_node.dag.protocol.ucan import UcanError
from recon_node.ipld import CID, IpldError, multibase

_REFUSALS: Final = (CeramicError, DagError, IpldError, ReplicaError, ShardError, UcanError)

key_option = click.option(
    "--key",
    "key_file",
    type=FILE,
    metavar="FILE",
    help="The Ed25519 signing key, in hexadecimal; by default dag.key in the data directory "
    "(RECON_NODE_DATA_DIR), which is created if missing.",
)


class DagCommand(click.Command):
    """A command that prints what the rooms below refuse as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with one_line(*_REFUSALS), unwrapped(CommandError, *_REFUSALS):
            return super().invoke(ctx)


def bytes_bar(what: str) -> AbstractContextManager[Progress]:
    """Show a progress bar that counts bytes."""
    after = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return progress_bar(TextColumn(what), *after)


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


def open_key(path: Path | None) -> SigningKey:
    """Return the key in a file; None: the default one, which is created by the first call."""
    chosen = path or _default_path()
    try:
        if path is None and not chosen.exists():
            return _create(chosen)
        return SigningKey(bytes.fromhex(read_secret(chosen, "ascii")))
    except OSError as error:
        raise CommandError(f"the key {chosen}: {error.strerror or error}") from None
    except ValueError:
        raise CommandError(
            f"{chosen} is not a key: it should be 64 hexadecimal digits, the seed of an Ed25519 key"
        ) from None


def _default_path() -> Path:
    configured = os.environ.get("RECON_NODE_DATA_DIR")
    try:
        return at_home(Path(configured) if configured else default_data_dir()) / KEY_FILE
    except ValueError as error:
        raise CommandError(f"{error}, or name a key with --key") from None


def _create(path: Path) -> SigningKey:
    key = SigningKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(path, wait=True, mode=0o600) as draft:
        if path.exists():  # another command made one meanwhile
            return open_key(path)
        draft.write_text(bytes(key).hex() + "\n", encoding="ascii")
        move_into_place(draft, path)
    echo(
        f"created a new key: {path}; only it can publish under its did:key, so keep it "
        "(`recon-node backup` copies it along with the node)",
        err=True,
    )
    return key
