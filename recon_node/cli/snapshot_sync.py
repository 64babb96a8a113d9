"""`recon-node snapshot sync`: of a stopped node, or by the API of a running one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
import trio

from recon_node.ceramic import Network
from recon_node.cli.client import command_error, node_options
from recon_node.cli.output import CommandError, counted
from recon_node.cli.settings_flags import SettingsCommand, read_settings
from recon_node.cli.snapshot_support import errors, print_faults, signer_option, step_bar
from recon_node.connection import Connection, UnreachableError
from recon_node.exception_groups import unwrapped
from recon_node.json_output import json_option, print_result
from recon_node.p2p.transport.identity import open_identity, peer_id_of
from recon_node.settings import Settings
from recon_node.sizes import human_size
from recon_node.snapshot.all_sources import SnapshotSync, SourceReport, sync_all
from recon_node.store import PolicyError, StoreError, is_in_use, open_store
from recon_node.terminal_text import echo

_PATH: Final = "/ceramic/snapshots/sync"
_POLL: Final = 0.5
"""Seconds between two looks at a running node's sync."""

Progress = Callable[[str, int, int | None], None]


@click.command("sync", cls=SettingsCommand, all_flags=False)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@signer_option
@node_options
@json_option
def sync(
    urls: tuple[str, ...],
    signers: tuple[str, ...],
    node: Connection,
    as_json: bool,
    config: Path | None,
    data_dir: Path | None,
) -> None:
    """Fetch what a node lacks of the newest snapshot at each URL.

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
    settings = read_settings(config, {"data_dir": data_dir})
    with errors():
        if is_in_use(settings.data_dir):
            found = _sync_running(node, settings.data_dir, urls, signers)
        else:
            found = _sync_stopped(settings, urls, signers)
    print_faults(found["faults"], found["fault_count"])
    failures = [each["error"] for each in found["sources"] if each["error"]]
    for failure in failures:
        echo(failure, err=True)
    received, requests = (
        sum(each[name] for each in found["sources"]) for name in ("received", "requests")
    )
    print_result(
        found,
        f"{found['new']:,} new, {found['known']:,} known, {found['refused']:,} refused; "
        f"{human_size(received)} in {counted(requests, 'request')}, {found['seconds']:.1f} s",
        as_json=as_json,
    )
    if found["state"] == "cancelled":
        raise CommandError("the sync was cancelled: run it again to continue where it stopped")
    if failures or found["fault_count"]:
        sys.exit(1)


def _sync_stopped(
    settings: Settings, urls: tuple[str, ...], signers: tuple[str, ...]
) -> dict[str, Any]:
    """Open the store and sync it."""
    from recon_node.api.routes.snapshots import describe_sync

    try:
        policy = settings.policy.load()
    except PolicyError as error:
        raise CommandError(f"cannot use the setting `write_policy`: {error}") from None
    report = SnapshotSync([SourceReport(url) for url in urls])
    chosen = signers or settings.snapshot.signers

    async def main(progress: Progress) -> None:
        def show() -> None:
            progress("syncing", report.synced.done, report.synced.total)

        network = Network.parse(settings.network)
        async with open_store(
            settings.data_dir, network, settings=settings.store, policy=policy
        ) as store:
            await store.wanted.configure(settings.wanted())
            await sync_all(report, store, chosen, settings.data_dir, show)

    with step_bar() as progress, unwrapped(StoreError):
        trio.run(main, progress)
    described: dict[str, Any] = msgspec.to_builtins(describe_sync(report))
    return described


def _sync_running(
    node: Connection, data_dir: Path, urls: tuple[str, ...], signers: tuple[str, ...]
) -> dict[str, Any]:
    """Have the node that uses a data directory sync."""
    own = peer_id_of(open_identity(data_dir))
    try:
        found: dict[str, Any] = node.request("POST", "/api/v0/id")
    except UnreachableError as error:
        why = command_error(node.url, error)
        raise CommandError(f"the data directory {data_dir} is in use, but {why}") from None
    if found["ID"] != own:
        raise CommandError(
            f"the data directory {data_dir} is in use by the node {own}, but the one at {node.url} "
            f"is {found['ID']}: --url and --data-dir must name the same node"
        )
    body: dict[str, Any] = {"urls": list(map(_absolute, urls))}
    if signers:
        body["signers"] = list(signers)
    found = node.request("POST", _PATH, json=body)
    try:
        with step_bar() as progress:
            while found["state"] == "running":
                progress("syncing", found["done"], found["total"] or None)
                time.sleep(_POLL)
                found = node.request("GET", _PATH)
    except KeyboardInterrupt:
        node.request("DELETE", _PATH)
        raise
    return found


def _absolute(url: str) -> str:
    """Return a path as the node needs it: it has a working directory of its own."""
    return url if urlsplit(url).scheme else str(Path(url).expanduser().absolute())
