"""`recon-node snapshot`: snapshots in object stores.

`sync` works on a stopped node, or by the API of a running one; the other commands need no node.
"""

import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict

import click
import msgspec
import trio

from recon_node import ipld
from recon_node.base.connection import Connection, UnreachableError
from recon_node.base.errors import unwrapped
from recon_node.base.terminal import (
    FILE_OR_DASH,
    CommandError,
    command_error,
    counted,
    echo,
    human_size,
    json_option,
    node_options,
    one_line,
    print_json,
    print_result,
)
from recon_node.ceramic import Network
from recon_node.cli.command import (
    SHOWN,
    complete_file,
    make_console,
    make_table,
    print_first,
    step_bar,
    understood,
)
from recon_node.cli.config import DataDirCommand
from recon_node.p2p import P2PError
from recon_node.p2p.transport.identity import open_identity, peer_id_of, signing_key_of
from recon_node.settings import Settings
from recon_node.snapshot.creating import Progress, create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import ObjectError, Objects, SnapshotError, scheme_of
from recon_node.snapshot.root import LATEST, RootObject
from recon_node.snapshot.settings import parse_period
from recon_node.snapshot.snapshot_reader import read_root
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, sync_all
from recon_node.snapshot.upkeep import collect, list_roots, tree_blocks, verify_snapshot
from recon_node.store import Interest, Policy, StoreError, is_in_use, open_store, parse_interest


@click.group(short_help="Make snapshots in object stores, and sync from them.")
def snapshot() -> None:
    """Make snapshots of a node's events in an object store, and sync nodes from them.

    A snapshot is a tree of the node's EventIds with the hash of each sub-tree (CIP-124, appendix
    C), and packs with the events. The store only has to keep files: a reader finds the missing
    events by itself, and fetches only those. Use snapshots to start new nodes, as backups and
    archives, and to fill Spark tables.

    \b
    URL is one of
      file:///srv/snapshots (or a path)     a directory
      s3://bucket/path                      S3, or a store with its protocol (AWS_ENDPOINT_URL)
      gs://bucket/path, az://container/path Google Cloud Storage, Azure
      https://host/path                     any web server or IPFS gateway, for reading only
    Credentials come from the environment, as for the providers' own tools.

    \b
    Examples:
      recon-node snapshot create s3://bucket/ceramic          (beside the running node)
      recon-node snapshot sync https://example.com/ceramic --data-dir /var/lib/recon-node
    """


ERRORS: Final = (SnapshotError, ObjectError, StoreError, P2PError, OSError)

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


def _described(root: RootObject) -> dict[str, Any]:
    manifest = root.manifest
    tree, feed = manifest.tree, manifest.feed
    return {
        "name": root.name,
        "network": manifest.network.name,
        "interests": list(manifest.interests),
        "created": manifest.created_text,
        "root": None if tree is None else str(tree.link.cid),
        "ahash": None if tree is None else str(tree.link.hash),
        "events": manifest.count,
        "bytes": sum(size for _, size in manifest.packs),
        "feed": None if feed is None else {"epoch": feed.epoch, "position": feed.position},
        "signer": root.signer,
    }


@snapshot.command("create", cls=DataDirCommand)
@click.argument("url", metavar="URL")
@click.option(
    "--interest",
    "texts",
    multiple=True,
    metavar="INTEREST",
    help="Only events of this interest, such as a model's StreamID. May be repeated.",
)
@click.option("--afresh", is_flag=True, help="Write everything, even what URL already has.")
@json_option
def create(
    url: str, texts: tuple[str, ...], afresh: bool, as_json: bool, settings: Settings
) -> None:
    """Write a snapshot of a node's events to URL.

    The node may be running or not: this command reads its log beside it, and needs its data
    directory (--data-dir). If URL has an earlier snapshot of this node, only new events are
    written. The snapshot is signed by the node's key, and appears when it is complete; a command
    that was interrupted can be run again, and continues.

    To make snapshots on a schedule, see the settings snapshot_url, snapshot_every, snapshot_keep.

    \b
    Examples:
      recon-node snapshot create file:///srv/snapshots
      recon-node snapshot create s3://bucket/ceramic --interest kjzl6hvfrbw6c...
    """
    with one_line(*ERRORS), step_bar() as progress:
        interests = [_interest(text) for text in texts]
        key = signing_key_of(open_identity(settings.data_dir))
        objects = Objects.open(url, make=True)
        progress("reading keys", 0, None)
        with LogSource(settings.data_dir, interests) as source:
            done = create_snapshot(source, objects, key, progress, afresh=afresh)
    for event_id in done.left_out[:SHOWN]:
        echo(f"damaged in the log, left out: {event_id}", err=True)
    facts = {
        **_described(done.root),
        "new": done.is_new,
        "events_written": done.events,
        "nodes_written": done.nodes,
        "packs_written": done.packs,
        "bytes_written": objects.traffic.sent,
        "left_out": len(done.left_out),
    }
    text = f"nothing is new since {done.root.name}"
    if done.is_new:
        text = (
            f"{done.root.name}: {counted(done.root.manifest.count, 'event')}; wrote "
            f"{counted(done.events, 'event')}, {counted(done.nodes, 'node')} "
            f"({human_size(objects.traffic.sent)})"
        )
    print_result(facts, text, as_json=as_json)


def _interest(text: str) -> Interest:
    try:
        interest = parse_interest(text)
    except ValueError as error:
        raise click.UsageError(f"--interest: {error}") from None
    if not isinstance(interest, Interest):
        raise click.UsageError(
            f"--interest: a stream needs its model and controller: model=STREAM_ID "
            f"controller=DID stream={text}"
        )
    return interest


_PATH: Final = "/ceramic/snapshots/sync"
_POLL: Final = 0.5
"""Seconds between two looks at a running node's sync."""


@snapshot.command("sync", cls=DataDirCommand)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@signer_option
@node_options
@json_option
def sync(
    urls: tuple[str, ...],
    signers: tuple[str, ...],
    node: Connection,
    as_json: bool,
    settings: Settings,
) -> None:
    """Fetch the missing events of the newest snapshot at each URL.

    Sub-trees that the node already has are skipped by their hash. Every object is checked against
    its CID, and every event as if a peer had sent it. Several URLs are read one after the other:
    each fills in what those before it lack. A sync that was interrupted can be run again: it
    fetches what is still missing.

    The node may be stopped, running, or not exist yet. A running one is asked to sync through its
    API (--url, --token-file), and reads the URLs itself: paths are those of its machine, and
    credentials come from its environment. Ctrl-C cancels the sync there, too. For a stopped one,
    the network and the interests are those of the settings (--config, or RECON_NODE_NETWORK).

    Exit code 1 if any source, object or event could not be used.

    \b
    Examples:
      recon-node snapshot sync https://example.com/ceramic --data-dir /var/lib/recon-node
      recon-node snapshot sync s3://bucket/ceramic file:///mnt/archive
    """
    with one_line(*ERRORS):
        if is_in_use(settings.data_dir):
            result = _sync_running(node, settings.data_dir, urls, signers)
        else:
            result = _sync_stopped(settings, urls, signers)
    print_first(result["faults"], result["fault_count"])
    failures = [source["error"] for source in result["sources"] if source["error"]]
    for failure in failures:
        echo(failure, err=True)
    received = sum(source["received"] for source in result["sources"])
    requests = sum(source["requests"] for source in result["sources"])
    print_result(
        result,
        f"{result['new']:,} new, {result['known']:,} known, {result['refused']:,} refused; "
        f"{human_size(received)} in {counted(requests, 'request')}, {result['seconds'] or 0:.1f} s",
        as_json=as_json,
    )
    if result["state"] == "cancelled":
        raise CommandError("the sync was cancelled: run it again to continue where it stopped")
    if failures or result["fault_count"]:
        sys.exit(1)


class _Source(TypedDict):
    error: str | None
    requests: int
    received: int


class _Sync(TypedDict):
    """How a sync stands, as the API says it."""

    state: str
    sources: list[_Source]
    total: int
    done: int
    new: int
    known: int
    refused: int
    fault_count: int
    faults: list[str]
    seconds: float | None


def _sync_stopped(settings: Settings, urls: tuple[str, ...], signers: tuple[str, ...]) -> _Sync:
    from recon_node.api.routes.products.snapshots import describe_sync

    policy = Policy.of(settings.policy)
    report = SnapshotSync([SourceReport(url) for url in urls])
    chosen = signers or settings.snapshot.signers

    async def main(progress: Progress) -> None:
        def show() -> None:
            progress("syncing", report.synced.done, report.synced.total)

        data_dir, network = settings.data_dir, Network.parse(settings.network)
        async with open_store(data_dir, network, settings=settings.store, policy=policy) as store:
            await store.wanted.configure(settings.wanted())
            await sync_all(report, store, chosen, show)

    with step_bar() as progress, unwrapped(StoreError):
        trio.run(main, progress)
    described: _Sync = msgspec.to_builtins(describe_sync(report))
    return described


def _sync_running(
    node: Connection, data_dir: Path, urls: tuple[str, ...], signers: tuple[str, ...]
) -> _Sync:
    """Have the node that uses a data directory sync."""
    own = peer_id_of(open_identity(data_dir))
    try:
        running = understood(node, node.request("POST", "/api/v0/id")["ID"], str)
    except UnreachableError as error:
        why = command_error(node.url, error)
        raise CommandError(f"the data directory {data_dir} is in use, but {why}") from None
    if running != own:
        raise CommandError(
            f"the data directory {data_dir} is in use by the node {own}, but the one at {node.url} "
            f"is {running}: --url and --data-dir must name the same node"
        )
    body: dict[str, Any] = {"urls": list(map(_absolute, urls))}
    if signers:
        body["signers"] = list(signers)
    sync = understood(node, node.request("POST", _PATH, json=body), _Sync)
    try:
        with step_bar() as progress:
            while sync["state"] == "running":
                progress("syncing", sync["done"], sync["total"] or None)
                time.sleep(_POLL)
                sync = understood(node, node.request("GET", _PATH), _Sync)
    except KeyboardInterrupt:
        node.request("DELETE", _PATH)
        raise
    return sync


def _absolute(url: str) -> str:
    """Return a path as the node needs it: it has a working directory of its own."""
    return url if scheme_of(url) else str(Path(url).expanduser().absolute())


@snapshot.command("list")
@click.argument("url", metavar="URL")
@json_option
def list_(url: str, as_json: bool) -> None:
    """List the snapshots at URL, oldest first, with who signed them.

    Plain web servers cannot list files: there, only the newest snapshot can be read.

    \b
    Example:
      recon-node snapshot list s3://bucket/ceramic
    """
    with one_line(*ERRORS):
        roots, faults = list_roots(Objects.open(url))
    if as_json:
        print_json(list(map(_described, roots)))
    else:
        table = make_table("name", "network", "events", "packs", "signer", numbers=("events",))
        for root in roots:
            manifest = root.manifest
            size = human_size(sum(size for _, size in manifest.packs))
            name, network = root.name, manifest.network.name
            table.add_row(name, network, f"{manifest.count:,}", size, root.signer)
        make_console().print(table)
    print_first(faults, len(faults))
    if faults:
        sys.exit(1)


@snapshot.command("verify")
@click.argument("url", metavar="URL")
@root_option
@signer_option
@json_option
def verify(url: str, name: str, signers: tuple[str, ...], as_json: bool) -> None:
    """Read a whole snapshot, and check each node and event against its CID and its hash.

    Exit code 1 if anything is missing or damaged; the first such objects are named.

    \b
    Example:
      recon-node snapshot verify s3://bucket/ceramic --signer did:key:z6Mk...
    """
    with one_line(*ERRORS), step_bar() as progress:
        objects = Objects.open(url)
        root = read_root(objects, name, signers or None)
        verified = verify_snapshot(objects, root, partial(progress, "verifying"))
    print_first(verified.faults, verified.fault_count)
    print_result(
        {
            **_described(root),
            "sound_events": verified.events,
            "fault_count": verified.fault_count,
            "faults": list(map(str, verified.faults)),
        },
        f"{root.name}: {verified.events:,} of {counted(root.manifest.count, 'event')} sound, "
        f"signed by {root.signer}",
        as_json=as_json,
    )
    if verified.faults:
        sys.exit(1)


@snapshot.command("tree")
@click.argument("url", metavar="URL")
@click.argument("file", type=FILE_OR_DASH)
@click.option("--dag-json", is_flag=True, help="Write a line of DAG-JSON for each block instead.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@root_option
@signer_option
def tree(
    url: str, file: Path, dag_json: bool, force: bool, name: str, signers: tuple[str, ...]
) -> None:
    """Write the tree of a snapshot to FILE (- for standard output), for IPLD tools.

    FILE is a CAR of the manifest, its root, and all nodes, as DAG-CBOR. With --dag-json, each line
    is {"block": ..., "cid": ...}: a block, rendered, and the CID that it has as DAG-CBOR.

    \b
    Examples:
      recon-node snapshot tree s3://bucket/ceramic tree.car
      recon-node snapshot tree /srv/snapshots - --dag-json | jq .block
    """
    with one_line(*ERRORS), complete_file(file, force=force) as out:
        objects = Objects.open(url)
        root = read_root(objects, name, signers or None)
        for number, (cid, block) in enumerate(tree_blocks(objects, root)):
            if dag_json:
                value = {"block": ipld.dag_cbor.decode(block), "cid": cid}
                out.write(ipld.dag_json.encode(value) + b"\n")
                continue
            if number == 0:
                out.write(ipld.car.encode([cid], {}))
            out.write(ipld.encode_varint(len(cid) + len(block)) + cid + block)


@snapshot.command("gc")
@click.argument("url", metavar="URL")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    metavar="N",
    help="Snapshots to keep.",
)
@click.option(
    "--min-age",
    default="1d",
    show_default=True,
    metavar="TIME",
    help="Keep younger packs, by this machine's clock: they may belong to a snapshot that is being "
    "written.",
)
@json_option
def gc(url: str, keep: int, min_age: str, as_json: bool) -> None:
    """Delete all but the newest snapshots at URL, and packs that no remaining one needs.

    Do not run it while a snapshot that takes longer than --min-age is being made there.

    \b
    Example:
      recon-node snapshot gc s3://bucket/ceramic --keep 30
    """
    try:
        seconds = 0.0 if min_age == "0" else parse_period(min_age) or 0.0
    except ValueError as error:
        raise click.UsageError(f"--min-age: {error}") from None
    with one_line(*ERRORS):
        done = collect(Objects.open(url), keep, timedelta(seconds=seconds), datetime.now(UTC))
    facts = {"snapshots_deleted": done.roots, "packs_deleted": done.packs}
    print_result(
        {**facts, "bytes_deleted": done.size},
        f"deleted {counted(done.roots, 'snapshot')} and {counted(done.packs, 'pack')} "
        f"({human_size(done.size)})",
        as_json=as_json,
    )
