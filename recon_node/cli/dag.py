"""`recon-node dag`: push, pull and publish DAGs, and resolve identifiers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recon_node.cli.client import NodeApi, node_options
from recon_node.cli.dag_show import show
from recon_node.cli.errors import CommandError
from recon_node.cli.keys import key_option, open_key
from recon_node.cli.output import json_option

if TYPE_CHECKING:
    from rich.progress import Progress

    from recon_node.dag import Identifier
    from recon_node.ipld import CID

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(context: Any, param: Any, value: str | None) -> int | None:
    """A time span in seconds; a callback of click."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no time span, such as 90d, 12h or 30m")
    return int(match[1]) * _UNITS[match[2]]


expires_option = click.option(
    "--expires",
    callback=_seconds,
    metavar="SPAN",
    help="For how long nodes accept it anew (90d, 12h ...); by default for ever, or as long as "
    "its proofs hold.",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what is not at the node yet.",
)


@click.group()
def dag() -> None:
    """Push, pull and publish DAGs: files, directories, and whatever a CAR file holds.

    A DAG is carried from node to node in shards, as events with the sort key "dag". Whoever wants
    it names its root. A publish binds a DAG to an identifier (a did:key) whose owner permits it.
    """


dag.add_command(show)


@dag.command("push")
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--root", metavar="CID", help="Where the DAG is entered, of a CAR with many roots.")
@click.option(
    "--shard-bytes",
    type=click.IntRange(1024),
    metavar="BYTES",
    help="Largest shard; by default as large as an event can be, about 1 MB.",
)
@key_option
@node_options
def push(
    source: Path, root: str | None, shard_bytes: int | None, key_file: Path | None, node: NodeApi
) -> None:
    """Store the DAG in SOURCE at a node: a CARv1 file, a directory, or any other file.

    Files and directories become UnixFS, with the CIDs of `ipfs add --cid-version=1
    --chunker=size-262144`. Prints the root's CID. What the node has already is not sent again:
    an interrupted push goes on when it is run again.

    \b
    Examples:
      recon-node dag push photos/
      recon-node dag push site.car --url http://127.0.0.1:5102
    """
    from recon_node.cli.dag_push import push as push_to
    from recon_node.dag import MAX_SHARD_SIZE
    from recon_node.dag.sources import open_source

    if shard_bytes is not None and shard_bytes > MAX_SHARD_SIZE:
        raise CommandError(f"--shard-bytes: at most {MAX_SHARD_SIZE} fit into an event")
    key = open_key(key_file)
    with _told_to_people(), _progress("pushing") as bar:
        opened = open_source(source, None if root is None else _cid(root))
        task = bar.add_task("", total=opened.size)
        try:
            done = push_to(
                node,
                key,
                opened,
                shard_bytes or MAX_SHARD_SIZE,
                lambda shard, _: bar.update(task, advance=len(shard.car)),
            )
        finally:
            opened.close()
    click.echo(
        f"{done.shards} shards of {done.size / 1e6:.1f} MB in all: {done.sent} sent, "
        f"{done.shards - done.sent} were there; replica {done.head}",
        err=True,
    )
    click.echo(str(opened.root))


@dag.command("pull")
@click.argument("name", metavar="CID|DID")
@click.option(
    "--car",
    "car_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The CAR file to write; by default CID.car.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the file or directory that the DAG is, instead of a CAR; must not be there yet.",
)
@timeout_option
@node_options
def pull(name: str, car_file: Path | None, out: Path | None, timeout: float, node: NodeApi) -> None:
    """Get a DAG by its root's CID, or the one that an identifier (did:key:...) leads to.

    The node asks its peers for what it lacks, and keeps it: an interrupted pull goes on when it is
    run again. Every block is checked; the file takes its place when it is whole.

    \b
    Examples:
      recon-node dag pull bafybei... --out photos
      recon-node dag pull did:key:z6Mk... --car site.car --timeout 3600
    """
    from recon_node.cli import dag_pull
    from recon_node.cli.dag_push import state_of
    from recon_node.dag import Identifier, parse_subject

    if car_file is not None and out is not None:
        raise click.UsageError("--car or --out, not both")
    with _told_to_people():
        subject = parse_subject(name)
        if isinstance(subject, Identifier):
            dag_pull.want(node, subject)
            root = dag_pull.wait_for_link(node, subject, timeout)
            click.echo(f"{subject} leads to {root}", err=True)
        else:
            root = subject
        dag_pull.want(node, root)
        with _progress("waiting") as bar:
            task = bar.add_task("", total=None)
            dag_pull.wait_for_dag(
                node, root, timeout, lambda state: bar.update(task, completed=state["bytes"])
            )
        with _progress("writing") as bar:
            task = bar.add_task("", total=state_of(node, root)["bytes"])
            if out is None:
                target = car_file or Path(f"{root}.car")
                dag_pull.download(node, root, target, lambda size: bar.advance(task, size))
                written = str(target)
            else:
                files = dag_pull.download_files(
                    node, root, out, lambda size: bar.advance(task, size)
                )
                written = f"{out} ({files} files)"
    click.echo(f"wrote {written}")


@dag.command("status")
@click.argument("cid")
@node_options
@json_option
def status(cid: str, node: NodeApi, as_json: bool) -> None:
    """Say what of the DAG CID is at a node, and what is missing.

    Exit code 1 if something is missing.

    \b
    Example:
      recon-node dag status bafybei...
    """
    from recon_node.cli.dag_pull import missing
    from recon_node.cli.dag_push import state_of

    with _told_to_people():
        state = state_of(node, _cid(cid))
    if as_json:
        click.echo(json.dumps(state, indent=2))
    elif state["complete"]:
        head = "none" if state["head"] is None else state["head"]["cid"]
        click.echo(
            f"complete: {state['blocks']} blocks of {state['bytes']} bytes, in "
            f"{len(state['shards']) + len(state['unclaimed'])} shards; replica {head}"
        )
    else:
        click.echo(missing(state))
    if not state["complete"]:
        raise SystemExit(1)


@dag.command("publish")
@click.argument("root", metavar="CID")
@click.option("--id", "identifier", metavar="DID", help="The identifier; by default the key's own.")
@click.option(
    "--proof",
    "proofs",
    multiple=True,
    metavar="UCAN",
    help="What permits the key to publish under another's identifier; @FILE reads it from a file.",
)
@click.option("--origin", metavar="CID", help="The replica; by default all that the node knows.")
@expires_option
@key_option
@node_options
def publish(
    root: str,
    identifier: str | None,
    proofs: tuple[str, ...],
    origin: str | None,
    expires: int | None,
    key_file: Path | None,
    node: NodeApi,
) -> None:
    """Make an identifier lead to the DAG CID, which is at the node.

    The identifier is the did:key of the key, or one whose owner granted it (`dag grant`).

    \b
    Examples:
      recon-node dag publish bafybei...
      recon-node dag publish bafybei... --id did:key:z6Mk... --proof @grant.ucan
    """
    from recon_node.cli.dag_publish import publish_dag

    key = open_key(key_file)
    with _told_to_people():
        found = publish_dag(
            node,
            key,
            root=_cid(root),
            identifier=None if identifier is None else _identifier(identifier),
            proofs=[_read_proof(proof) for proof in proofs],
            origin=None if origin is None else _cid(origin),
            expires=None if expires is None else int(time.time()) + expires,
        )
    click.echo(f"{found.identifier} leads to {found.link} (publish {found.replica})")


@dag.command("resolve")
@click.argument("did")
@click.option("-v", "--verbose", is_flag=True, help="Show the publishes in their order, too.")
@node_options
@json_option
def resolve(did: str, verbose: bool, node: NodeApi, as_json: bool) -> None:
    """Print the root's CID of the DAG that the identifier DID leads to, as the node knows it.

    Exit code 1 if nothing was published.

    \b
    Example:
      recon-node dag resolve did:key:z6Mk...
    """
    from recon_node.cli.dag_pull import publication_of

    with _told_to_people():
        found = publication_of(node, _identifier(did))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for line in _described(found, verbose):
            click.echo(line)
    if found["link"] is None:
        raise SystemExit(1)


@dag.command("grant")
@click.argument("audience", metavar="DID")
@expires_option
@key_option
def grant(audience: str, expires: int | None, key_file: Path | None) -> None:
    """Print a UCAN by which DID may publish under this key's identifier.

    \b
    Example:
      recon-node dag grant did:key:z6Mk... --expires 90d > grant.ucan
    """
    from recon_node.ceramic.did import ed25519_did, public_key
    from recon_node.lattice.publishing import ABILITY
    from recon_node.lattice.ucan import Capability, issue_ucan

    key = open_key(key_file)
    with _told_to_people():
        public_key(audience)
    owner = ed25519_did(bytes(key.verify_key))
    until = None if expires is None else int(time.time()) + expires
    click.echo(issue_ucan(key, audience, [Capability(owner, ABILITY)], until))


@dag.command("key")
@key_option
def show_key(key_file: Path | None) -> None:
    """Print the did:key of the key that signs: what it publishes under.

    \b
    Example:
      recon-node dag key
    """
    from recon_node.ceramic.did import ed25519_did

    click.echo(ed25519_did(bytes(open_key(key_file).verify_key)))


def _described(found: dict[str, Any], verbose: bool) -> Iterator[str]:
    if found["link"] is not None:
        yield found["link"]
    elif not verbose:
        yield f"nothing was published under {found['id']}, as far as this node knows"
    if verbose:
        yield f"origin {found['origin']}"
        yield from (f"{place}. {cid}" for place, cid in enumerate(found["order"], 1))
        yield from (f"not here: {cid}" for cid in found["waiting_for"])
        yield from (f"refused: {each['cid']}: {each['reason']}" for each in found["refused"])
        yield f"{found['ignored']} other events ignored"


def _cid(text: str) -> CID:
    from recon_node.ipld import CID, CidError

    try:
        return CID.parse(text)
    except CidError as error:
        raise CommandError(str(error)) from None


def _identifier(text: str) -> Identifier:
    from recon_node.ceramic import DidError
    from recon_node.dag import Identifier

    try:
        return Identifier.parse(text)
    except DidError as error:
        raise CommandError(str(error)) from None


def _read_proof(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{text[1:]}: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def _told_to_people() -> Iterator[None]:
    """Turn what this floor and those below refuse into one line; also out of exception groups."""
    from recon_node.ceramic import CeramicError
    from recon_node.dag import DagError
    from recon_node.ipld import IpldError
    from recon_node.lattice.operations import ReplicaError
    from recon_node.lattice.shards import ShardError
    from recon_node.lattice.ucan import UcanError

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


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """A bar of bytes on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
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
