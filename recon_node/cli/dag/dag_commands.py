"""`recon-node dag`: push, pull, publish and show DAGs."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import click

from recon_node.base.connection import Connection
from recon_node.base.terminal import (
    FILE,
    ByteSize,
    CommandError,
    counted,
    echo,
    human_size,
    json_option,
    node_options,
    print_json,
    print_result,
)
from recon_node.cli.command import number_option, refuse_existing, understood
from recon_node.cli.dag import transfer as dag_transfer
from recon_node.cli.dag.publish import (
    DagCommand,
    bytes_bar,
    grant,
    key_option,
    open_key,
    publish,
    resolve,
    show_key,
)
from recon_node.cli.dag.transfer import Head, state_of, want
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.dag.dag_events import MAX_SHARD_SIZE, Identifier, parse_root, parse_subject
from recon_node.dag.dag_source import open_source
from recon_node.dag.errors import Omissions
from recon_node.dag.file_tree import Preserve
from recon_node.dag.protocol.dag_operations import Append, ReplicaError, encode_operation
from recon_node.dag.protocol.replica import Replica, decode_replica, replica_picture
from recon_node.dag.protocol.shards import block_room
from recon_node.ipld import IpldError, multibase


class _DagGroup(click.Group):
    command_class = DagCommand


@click.group(cls=_DagGroup)
def dag() -> None:
    """Push, pull and publish DAGs: files, directories, and anything in a CAR file.

    Nodes pass a DAG on in shards, as events with the sort key "dag". A node that wants a DAG names
    its root. A publish makes an identifier (a did:key) resolve to a DAG, with the permission of the
    identifier's owner.
    """


@dag.command("push")
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--root", metavar="CID", help="The root to push, if the CAR names several or none.")
@click.option(
    "--all-blocks",
    is_flag=True,
    help="Push all blocks of the CAR, including those that are not below the root, even if some of "
    "those below it are not in the CAR.",
)
@click.option("--preserve-mode", is_flag=True, help="Keep the permissions of files; changes CIDs.")
@click.option("--preserve-mtime", is_flag=True, help="Keep the times of files; changes CIDs.")
@number_option(
    "--shard-bytes",
    MAX_SHARD_SIZE,
    "BYTES",
    "Largest shard. By default a shard is as large as an event can be. Below 256 KiB, files "
    "are cut into smaller chunks, and have other CIDs.",
    least=1024,
    most=MAX_SHARD_SIZE,
)
@key_option
@node_options
@json_option
def push(
    source: Path,
    root: str | None,
    all_blocks: bool,
    preserve_mode: bool,
    preserve_mtime: bool,
    shard_bytes: int,
    key_file: Path | None,
    node: Connection,
    as_json: bool,
) -> None:
    """Push the DAG in SOURCE to a node: a CAR file, a directory, or any other file.

    Files and directories become UnixFS, with the CIDs of `ipfs add --cid-version=1
    --chunker=size-262144`, also if permissions or times are kept. Symlinks in a directory are kept
    as they are; sockets, FIFOs and devices are left out. Prints the root CID. Blocks that the
    node has are not sent again, so an interrupted push continues when you run it again.

    \b
    Examples:
      recon-node dag push ./photos
      recon-node dag push site.car --url http://127.0.0.1:5201
    """
    key = open_key(key_file)
    with bytes_bar("pushing") as bar:
        chosen = None if root is None else parse_root(root)
        room = block_room(shard_bytes)
        preserve = Preserve(preserve_mode, preserve_mtime)
        opened = open_source(source, chosen, room, all_blocks=all_blocks, preserve=preserve)
        advance = partial(bar.advance, bar.add_task("", total=opened.size))
        with closing(opened):
            done = dag_transfer.push_dag(node, key, opened, shard_bytes, advance)
    echo(
        f"{counted(done.shards, 'shard')} ({human_size(done.size)}): {done.sent:,} sent, "
        f"{done.shards - done.sent:,} already there; replica {done.head}",
        err=True,
    )
    facts = {
        "root": str(opened.root),
        "shards": done.shards,
        "sent": done.sent,
        "bytes": done.size,
        "replica": str(done.head),
    }
    _say_left_out(opened.left_out(), facts)
    print_result(facts, str(opened.root), as_json=as_json)


@dag.command("pull")
@click.argument("name", metavar="CID|DID")
@click.option(
    "--car",
    "car_file",
    type=FILE,
    metavar="FILE",
    help="The CAR file to write; by default CID.car.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the DAG's file or directory to PATH instead of a CAR; PATH must not exist.",
)
@click.option("--force", is_flag=True, help="Replace the FILE of --car if it exists.")
@click.option(
    "--max-size",
    type=ByteSize(),
    default="16GiB",
    show_default=True,
    metavar="SIZE",
    help="Write nothing if more of the disk would be taken: a small DAG can be a huge directory.",
)
@number_option(
    "--timeout", 300.0, "SECONDS", "How long to wait for blocks that the node lacks.", least=0
)
@node_options
@json_option
def pull(
    name: str,
    car_file: Path | None,
    out: Path | None,
    force: bool,
    max_size: int,
    timeout: float,
    node: Connection,
    as_json: bool,
) -> None:
    """Get a DAG by its root CID, or by an identifier (did:key:...) that resolves to it.

    The node fetches missing blocks from its peers, and keeps them, so an interrupted pull continues
    when you run it again. Every block is checked; the file appears when it is complete. If the
    command is stopped, nothing is left behind.

    \b
    Examples:
      recon-node dag pull bafybei... --out photos
      recon-node dag pull did:key:z6Mk... --car site.car --timeout 3600
    """
    if car_file is not None and out is not None:
        raise click.UsageError("use --car or --out, not both")
    if car_file is not None:
        refuse_existing(car_file, force=force)
    subject = parse_subject(name)
    if isinstance(subject, Identifier):
        want(node, subject)
        root = dag_transfer.wait_for_link(node, subject, timeout)
        echo(f"{subject} resolves to {root}", err=True)
    else:
        root = subject
    facts: dict[str, Any] = {"root": str(root)}
    want(node, root)
    with bytes_bar("waiting") as bar:
        task = bar.add_task("", total=None)
        dag_transfer.wait_for_dag(
            node, root, timeout, lambda state: bar.update(task, completed=state["bytes"])
        )
    with bytes_bar("writing") as bar:
        advance = partial(bar.advance, bar.add_task("", total=state_of(node, root)["bytes"]))
        if out is None:
            target = car_file or Path(f"{root}.car")
            dag_transfer.download(node, root, target, max_size, advance)
            written, facts["path"] = str(target), str(target)
        else:
            done = dag_transfer.download_files(node, root, out, max_size, advance)
            written = f"{out} ({counted(done.files, 'file')})"
            if done.symlinks:
                written = f"{written[:-1]}, {counted(done.symlinks, 'symlink')})"
                facts["symlinks"] = done.symlinks
            facts |= {"path": str(out), "files": done.files}
            _say_left_out(done.left_out(), facts)
    print_result(facts, f"wrote {written}", as_json=as_json)


@dag.command("status")
@click.argument("cid")
@node_options
@json_option
def status(cid: str, node: Connection, as_json: bool) -> None:
    """Show how much of the DAG CID a node has, and its missing blocks.

    Exit code 1 if anything is missing.

    \b
    Example:
      recon-node dag status bafybei...
    """
    state = state_of(node, parse_root(cid))
    if as_json:
        print_json(state)
    elif state["complete"]:
        head = "none" if state["head"] is None else state["head"]["cid"]
        shards = len(state["shards"]) + len(state["unclaimed"])
        echo(
            f"complete: {counted(state['blocks'], 'block')}, {counted(state['bytes'], 'byte')}, in "
            f"{counted(shards, 'shard')}; replica {head}"
        )
    else:
        echo(dag_transfer.missing(state))
    if not state["complete"]:
        raise SystemExit(1)


class _Replicas(TypedDict):
    root: str
    replicas: list[Head]


@dag.command("show")
@click.argument("cid")
@node_options
@drawing_options
def show(cid: str, node: Connection, drawing: Drawing) -> None:
    """Draw the log of the DAG CID: which replica appended or joined what.

    The newest replica is at the top. Heads are replicas that no other replica continues. Replicas
    that others continue but the node does not have are marked.

    \b
    Example:
      recon-node dag show bafybei... --svg log.svg
    """
    path = f"/ceramic/dag/{parse_root(cid)}/replicas"
    answer = understood(node, node.request("GET", path), _Replicas)
    try:
        blocks = [multibase.decode(replica["data"]) for replica in answer["replicas"]]
        decoded = list(map(decode_replica, blocks))
    except (IpldError, ReplicaError) as error:
        raise CommandError(f"the node's answer cannot be read: {error}") from None
    replicas = {replica.cid: replica for replica in decoded}
    if not replicas:
        raise CommandError(f"the node has no replica of the DAG {cid}")
    continued = {base for replica in decoded for base in replica.bases}
    heads = sorted(replicas.keys() - continued, key=str)
    facts = {
        "root": answer["root"],
        "heads": list(map(str, heads)),
        "replicas": list(map(_replica_facts, decoded)),
    }
    show_picture(replica_picture(f"DAG {answer['root']}", heads, replicas), drawing, facts)


def _say_left_out(left_out: Omissions | None, facts: dict[str, Any]) -> None:
    """Print what was left out, if anything was, and add it to the facts."""
    if left_out is not None:
        facts["left_out"] = left_out.count
        more = ["..."] if len(left_out.first) < left_out.count else []
        echo(f"{left_out.count:,} {left_out.what}:", err=True)
        for name in (*left_out.first, *more):
            echo(f"  {name}", err=True)


def _replica_facts(replica: Replica) -> dict[str, Any]:
    change = replica.change
    shards = {"shards": list(map(str, change.shards))} if isinstance(change, Append) else {}
    return {
        "cid": str(replica.cid),
        "type": encode_operation(change)["type"],
        "prev": list(map(str, replica.bases)),
        **shards,
    }


for command in (publish, resolve, grant, show_key):
    dag.add_command(command)
