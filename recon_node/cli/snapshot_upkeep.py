"""`recon-node snapshot list`, `verify` and `gc`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import click

from recon_node.cli.output import counted, make_console, make_table
from recon_node.cli.snapshot_support import (
    described,
    errors,
    print_faults,
    root_option,
    signer_option,
    step_bar,
)
from recon_node.json_output import json_option, print_json, print_result
from recon_node.sizes import human_size
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.reading import read_root
from recon_node.snapshot.settings import parse_period
from recon_node.snapshot.upkeep import collect, list_roots, verify_snapshot


@click.command("list")
@click.argument("url", metavar="URL")
@json_option
def list_(url: str, as_json: bool) -> None:
    """List the snapshots at URL, oldest first, with who signed them.

    Plain web servers cannot list files: there, only the newest snapshot can be read.

    \b
    Example:
      recon-node snapshot list s3://bucket/ceramic
    """
    with errors():
        roots, faults = list_roots(Objects.open(url))
    if as_json:
        print_json([described(root) for root in roots])
    else:
        table = make_table("name", "network", "events", "packs", "signer", numbers=("events",))
        for root in roots:
            found = root.manifest
            size = human_size(sum(size for _, size in found.packs))
            table.add_row(root.name, found.network.name, f"{found.count:,}", size, root.signer)
        make_console().print(table)
    print_faults(faults, len(faults))
    if faults:
        sys.exit(1)


@click.command("verify")
@click.argument("url", metavar="URL")
@root_option
@signer_option
@json_option
def verify(url: str, name: str, signers: tuple[str, ...], as_json: bool) -> None:
    """Read a whole snapshot, and check each node and event against its CID and its hash.

    Exit code 1 if anything is missing or damaged; each such object is named.

    \b
    Example:
      recon-node snapshot verify s3://bucket/ceramic --signer did:key:z6Mk...
    """
    with errors(), step_bar() as progress:
        objects = Objects.open(url)
        root = read_root(objects, name, signers or None)
        found = verify_snapshot(objects, root, partial(progress, "verifying"))
    print_faults(found.faults, len(found.faults))
    print_result(
        {
            **described(root),
            "sound_events": found.events,
            "fault_count": len(found.faults),
            "faults": list(map(str, found.faults)),
        },
        f"{root.name}: {found.events:,} of {counted(root.manifest.count, 'event')} sound, "
        f"signed by {root.signer}",
        as_json=as_json,
    )
    if found.faults:
        sys.exit(1)


@click.command("gc")
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
@json_option
def gc(url: str, keep: int, min_age: str, as_json: bool) -> None:
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
    with errors():
        done = collect(Objects.open(url), keep, timedelta(seconds=seconds), datetime.now(UTC))
    print_result(
        {
            "snapshots_deleted": done.roots,
            "packs_deleted": done.packs,
            "bytes_deleted": done.size,
        },
        f"deleted {counted(done.roots, 'snapshot')} and {counted(done.packs, 'pack')} "
        f"({human_size(done.size)})",
        as_json=as_json,
    )
