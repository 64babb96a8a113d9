"""`recon-node dag`: push, pull and publish DAGs, and resolve identifiers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from recon_node.cli.client import NodeApi, node_options
from recon_node.cli.complete_file import refuse_existing
from recon_node.cli.dag_identifiers import grant, publish, resolve, show_key
from recon_node.cli.dag_show import show
from recon_node.cli.dag_support import counted, progress_bar, read_cid, told_to_people
from recon_node.cli.errors import CommandError
from recon_node.cli.keys import key_option, open_key
from recon_node.cli.output import json_option

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
      recon-node dag push ./photos
      recon-node dag push site.car --url http://127.0.0.1:5102
    """
    from recon_node.cli.dag_push import push as push_to
    from recon_node.dag import MAX_SHARD_SIZE
    from recon_node.dag.sources import open_source

    if shard_bytes is not None and shard_bytes > MAX_SHARD_SIZE:
        raise CommandError(f"--shard-bytes: at most {MAX_SHARD_SIZE} fit into an event")
    key = open_key(key_file)
    with told_to_people(), progress_bar("pushing") as bar:
        opened = open_source(source, None if root is None else read_cid(root))
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
        f"{counted(done.shards, 'shard')}, {done.size / 1e6:.1f} MB in all: {done.sent} sent, "
        f"{done.shards - done.sent} already there; replica {done.head}",
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
@click.option("--force", is_flag=True, help="Replace the FILE of --car if it exists.")
@timeout_option
@node_options
def pull(
    name: str,
    car_file: Path | None,
    out: Path | None,
    force: bool,
    timeout: float,
    node: NodeApi,
) -> None:
    """Get a DAG by its root's CID, or the one that an identifier (did:key:...) leads to.

    The node asks its peers for what it lacks, and keeps it: an interrupted pull goes on when it is
    run again. Every block is checked; the file takes its place when it is whole.

    \b
    Examples:
      recon-node dag pull bafybei... --out photos
      recon-node dag pull did:key:z6Mk... --car site.car --timeout 3600
    """
    from recon_node.cli import dag_pull
    from recon_node.cli.dag_node import state_of, want
    from recon_node.dag import Identifier, parse_subject

    if car_file is not None and out is not None:
        raise click.UsageError("--car or --out, not both")
    if car_file is not None:
        refuse_existing(car_file, force=force)
    with told_to_people():
        subject = parse_subject(name)
        if isinstance(subject, Identifier):
            want(node, subject)
            root = dag_pull.wait_for_link(node, subject, timeout)
            click.echo(f"{subject} leads to {root}", err=True)
        else:
            root = subject
        want(node, root)
        with progress_bar("waiting") as bar:
            task = bar.add_task("", total=None)
            dag_pull.wait_for_dag(
                node, root, timeout, lambda state: bar.update(task, completed=state["bytes"])
            )
        with progress_bar("writing") as bar:
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
    from recon_node.cli.dag_node import state_of
    from recon_node.cli.dag_pull import missing

    with told_to_people():
        state = state_of(node, read_cid(cid))
    if as_json:
        click.echo(json.dumps(state, indent=2))
    elif state["complete"]:
        head = "none" if state["head"] is None else state["head"]["cid"]
        click.echo(
            f"complete: {counted(state['blocks'], 'block')}, {state['bytes']} bytes, in "
            f"{counted(len(state['shards']) + len(state['unclaimed']), 'shard')}; replica {head}"
        )
    else:
        click.echo(missing(state))
    if not state["complete"]:
        raise SystemExit(1)


for command in (show, publish, resolve, grant, show_key):
    dag.add_command(command)
