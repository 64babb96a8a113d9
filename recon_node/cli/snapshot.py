"""`recon-node snapshot`: snapshots in object stores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.progress import TextColumn, TimeRemainingColumn

from recon_node.ceramic import EventId, Network
from recon_node.cli.output import (
    CommandError,
    counted,
    human_size,
    json_option,
    make_console,
    make_table,
    print_json,
    progress_bar,
)
from recon_node.cli.settings_flags import SettingsCommand, read_settings
from recon_node.exception_groups import unwrapped
from recon_node.p2p import P2PError
from recon_node.p2p.transport.identity import open_identity, signing_key_of
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.objects import ObjectError, Objects
from recon_node.snapshot.reading import Fault, SnapshotError, read_root
from recon_node.snapshot.root import LATEST, RootObject
from recon_node.snapshot.service import sync_from
from recon_node.snapshot.settings import parse_period
from recon_node.snapshot.sources import LogSource
from recon_node.snapshot.syncing import Synced
from recon_node.snapshot.upkeep import (
    collect,
    compare_snapshots,
    list_roots,
    verify_snapshot,
)
from recon_node.store import Interest, StoreError, open_store, parse_interest

_SHOWN: Final = 20
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


@click.group(short_help="Make snapshots in object stores, and sync from them.")
def snapshot() -> None:
    """Make snapshots of a node's events in an object store, and sync nodes from them.

    A snapshot is a tree of the node's EventIDs with the hash of each sub-tree (CIP-124, appendix
    C), and packs with the events. The store only has to keep files: a reader finds out by itself
    what it lacks, and fetches only that. Use snapshots to start new nodes, as backups and archives,
    and to fill Spark tables.

    \b
    URL is one of
      file:///srv/snapshots (or a path)     a directory
      s3://bucket/path                      S3, and what speaks its protocol (AWS_ENDPOINT_URL)
      gs://bucket/path, az://container/path Google Cloud Storage, Azure
      https://host/path                     any web server or IPFS gateway, for reading only
    Credentials come from the environment, as for the providers' own tools.

    \b
    Examples:
      recon-node snapshot create s3://bucket/ceramic          (beside the running node)
      recon-node snapshot sync https://example.com/ceramic --data-dir /var/lib/recon-node
    """


@snapshot.command("create", cls=SettingsCommand)
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
    url: str,
    texts: tuple[str, ...],
    afresh: bool,
    as_json: bool,
    config: Path | None,
    data_dir: Path | None,
) -> None:
    """Write a snapshot of a node's events to URL.

    The node may be running or not: this command reads its log beside it, and needs its data
    directory (--data-dir). If URL has an earlier snapshot of this node, only what is new is
    written. The snapshot is signed by the node's key, and appears when it is complete; a command
    that was interrupted can be run again, and continues.

    To make snapshots on a schedule, see the settings snapshot_url, snapshot_every, snapshot_keep.

    \b
    Examples:
      recon-node snapshot create file:///srv/snapshots
      recon-node snapshot create s3://bucket/ceramic --interest kjzl6hvfrbw6c...
    """
    settings = read_settings(config, {"data_dir": data_dir})
    with _errors(), _progress() as progress:
        interests = [_interest(text) for text in texts]
        key = signing_key_of(open_identity(settings.data_dir))
        objects = Objects.open(url)
        progress("reading keys", 0, None)
        with LogSource(settings.data_dir, interests) as source:
            done = create_snapshot(source, objects, key, progress, afresh=afresh)
    for event_id in done.left_out[:_SHOWN]:
        click.echo(f"damaged in the log, left out: {event_id}", err=True)
    if as_json:
        print_json(
            {
                **_described(done.root),
                "new": done.is_new,
                "events_written": done.events,
                "nodes_written": done.nodes,
                "packs_written": done.packs,
                "bytes_written": objects.traffic.sent,
                "left_out": len(done.left_out),
            }
        )
    elif done.is_new:
        click.echo(
            f"{done.root.name}: {counted(done.root.manifest.count, 'event')}; wrote "
            f"{counted(done.events, 'event')}, {counted(done.nodes, 'node')} "
            f"({human_size(objects.traffic.sent)})"
        )
    else:
        click.echo(f"nothing is new since {done.root.name}")


@snapshot.command("sync", cls=SettingsCommand, all_flags=False)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@signer_option
def sync(
    urls: tuple[str, ...], signers: tuple[str, ...], config: Path | None, data_dir: Path | None
) -> None:
    """Fetch what a stopped node lacks of the newest snapshot at each URL.

    Sub-trees that the node already has are skipped by their hash. Every object is checked against
    its CID, and every event as if a peer had sent it. A sync that was interrupted can be run again:
    it fetches what is still missing. With several URLs, the later ones fill in what the earlier
    ones lack.

    The node must be stopped, or not exist yet. For a running node, put the URLs into the setting
    snapshot_sources: it syncs from them when it starts. The network and the interests are those of
    the settings (--config, or RECON_NODE_NETWORK).

    Exit code 1 if any object or event could not be used.

    \b
    Examples:
      recon-node snapshot sync https://example.com/ceramic --data-dir /var/lib/recon-node
      recon-node snapshot sync s3://bucket/ceramic file:///mnt/archive
    """
    settings = read_settings(config, {"data_dir": data_dir})
    result = Synced()
    started = time.monotonic()
    failures: list[str] = []
    received = requests = 0
    with _errors(), _progress() as progress:

        async def main() -> None:
            nonlocal received, requests
            network = Network.parse(settings.network)
            async with open_store(settings.data_dir, network, settings=settings.store) as store:
                await store.wanted.configure(settings.wanted())
                for url in urls:
                    show = partial(_show_sync, progress, result)
                    try:
                        objects = await sync_from(
                            url, store, signers or settings.snapshot.signers or None, result, show
                        )
                    except (SnapshotError, ObjectError) as error:
                        failures.append(str(error))
                        continue
                    received += objects.traffic.received
                    requests += objects.traffic.requests

        with unwrapped():
            trio.run(main)
    _print_faults(result.faults, result.fault_count)
    for failure in failures:
        click.echo(failure, err=True)
    counts, seconds = result.counts, time.monotonic() - started
    click.echo(
        f"{counts['new']:,} new, {counts['known']:,} known, {counts['refused']:,} refused; "
        f"{human_size(received)} in {counted(requests, 'request')}, {seconds:.1f} s"
    )
    if failures or result.fault_count:
        sys.exit(1)


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
    with _errors():
        roots, faults = list_roots(Objects.open(url))
    if as_json:
        print_json([_described(root) for root in roots])
    else:
        table = make_table("name", "network", "events", "packs", "signer", numbers=("events",))
        for root in roots:
            found = root.manifest
            size = human_size(sum(size for _, size in found.packs))
            table.add_row(root.name, found.network.name, f"{found.count:,}", size, root.signer)
        make_console().print(table)
    _print_faults(faults, len(faults))
    if faults:
        sys.exit(1)


@snapshot.command("verify")
@click.argument("url", metavar="URL")
@root_option
@signer_option
def verify(url: str, name: str, signers: tuple[str, ...]) -> None:
    """Read a whole snapshot, and check each node and event against its CID and its hash.

    Exit code 1 if anything is missing or damaged; each such object is named.

    \b
    Example:
      recon-node snapshot verify s3://bucket/ceramic --signer did:key:z6Mk...
    """
    with _errors(), _progress() as progress:
        objects = Objects.open(url)
        root = read_root(objects, name, signers or None)
        found = verify_snapshot(objects, root, partial(progress, "verifying"))
    _print_faults(found.faults, len(found.faults))
    click.echo(
        f"{root.name}: {found.events:,} of {counted(root.manifest.count, 'event')} sound, "
        f"signed by {root.signer}"
    )
    if found.faults:
        sys.exit(1)


@snapshot.command("diff")
@click.argument("first", metavar="URL")
@click.argument("second", metavar="[OTHER_URL]", required=False)
@root_option
@click.option("--other-root", default=LATEST, metavar="NAME", help="The same for OTHER_URL.")
@click.option("--keys", is_flag=True, help="Print the EventIDs that differ, with - or +.")
def diff(first: str, second: str | None, name: str, other_root: str, keys: bool) -> None:
    """Show which events two snapshots do not share.

    Only nodes that differ are read. Without OTHER_URL, both snapshots are at URL.

    \b
    Examples:
      recon-node snapshot diff s3://bucket/ceramic https://example.com/ceramic
      recon-node snapshot diff /srv/snapshots --root roots/20261122T060000Z-bagc....car --keys
    """
    with _errors():
        sides = []
        for url, root in ((first, name), (second or first, other_root)):
            objects = Objects.open(url)
            sides.append((objects, read_root(objects, root)))
        only = compare_snapshots(sides[0], sides[1])
    if keys:
        for sign, found in zip("-+", only, strict=True):
            for key in found:
                click.echo(f"{sign} {EventId(key)}")
    click.echo(f"{len(only[0]):,} only in the first, {len(only[1]):,} only in the second")


@snapshot.command("gc")
@click.argument("url", metavar="URL")
@click.option(
    "--keep", type=click.IntRange(min=1), default=7, show_default=True, help="Snapshots to keep."
)
@click.option(
    "--min-age",
    default="1d",
    show_default=True,
    metavar="TIME",
    help="Keep younger packs: they may belong to a snapshot that is being written.",
)
def gc(url: str, keep: int, min_age: str) -> None:
    """Delete all but the newest snapshots at URL, and packs that none of the others needs.

    Do not run it while a snapshot that takes longer than --min-age is being made there.

    \b
    Example:
      recon-node snapshot gc s3://bucket/ceramic --keep 30
    """
    try:
        seconds = 0.0 if min_age == "0" else parse_period(min_age) or 0.0
    except ValueError as error:
        raise click.UsageError(f"--min-age: {error}") from None
    with _errors():
        done = collect(Objects.open(url), keep, timedelta(seconds=seconds), datetime.now(UTC))
    click.echo(
        f"deleted {counted(done.roots, 'snapshot')} and {counted(done.packs, 'pack')} "
        f"({human_size(done.size)})"
    )


def _described(root: RootObject) -> dict[str, Any]:
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
        "signer": root.signer,
    }


def _interest(text: str) -> Interest:
    try:
        found = parse_interest(text)
    except ValueError as error:
        raise click.UsageError(f"--interest: {error}") from None
    if not isinstance(found, Interest):
        raise click.UsageError(
            f"--interest: a stream needs its model and controller: model=STREAM_ID "
            f"controller=DID stream={text}"
        )
    return found


def _show_sync(progress: Callable[[str, int, int | None], None], result: Synced) -> None:
    progress("syncing", result.done, result.total)


def _print_faults(faults: list[Fault], count: int) -> None:
    for fault in faults[:_SHOWN]:
        click.echo(str(fault), err=True)
    if count > _SHOWN:
        click.echo(f"... and {count - _SHOWN:,} more", err=True)


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors into one line."""
    try:
        yield
    except (SnapshotError, ObjectError, StoreError, P2PError, OSError) as error:
        raise CommandError(str(error)) from None


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar; yields what the steps report to."""
    percent = TextColumn("{task.percentage:>3.0f}%")
    with progress_bar(TextColumn("{task.description}"), percent, TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=None)

        def report(step: str, done: int, total: int | None) -> None:
            bar.update(task, description=step, completed=done, total=total)

        yield report
