"""`recon-node snapshot create`."""

from __future__ import annotations

from pathlib import Path

import click

from recon_node.cli.output import counted
from recon_node.cli.settings_flags import SettingsCommand, read_settings
from recon_node.cli.snapshot_support import SHOWN, described, errors, step_bar
from recon_node.json_output import json_option, print_json
from recon_node.p2p.transport.identity import open_identity, signing_key_of
from recon_node.sizes import human_size
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.sources import LogSource
from recon_node.store import Interest, parse_interest
from recon_node.terminal_text import echo


@click.command("create", cls=SettingsCommand)
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
    with errors(), step_bar() as progress:
        interests = [_interest(text) for text in texts]
        key = signing_key_of(open_identity(settings.data_dir))
        objects = Objects.open(url, make=True)
        progress("reading keys", 0, None)
        with LogSource(settings.data_dir, interests) as source:
            done = create_snapshot(source, objects, key, progress, afresh=afresh)
    for event_id in done.left_out[:SHOWN]:
        echo(f"damaged in the log, left out: {event_id}", err=True)
    if as_json:
        print_json(
            {
                **described(done.root),
                "new": done.is_new,
                "events_written": done.events,
                "nodes_written": done.nodes,
                "packs_written": done.packs,
                "bytes_written": objects.traffic.sent,
                "left_out": len(done.left_out),
            }
        )
    elif done.is_new:
        echo(
            f"{done.root.name}: {counted(done.root.manifest.count, 'event')}; wrote "
            f"{counted(done.events, 'event')}, {counted(done.nodes, 'node')} "
            f"({human_size(objects.traffic.sent)})"
        )
    else:
        echo(f"nothing is new since {done.root.name}")


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
