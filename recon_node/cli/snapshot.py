"""`recon-node snapshot`: snapshots in object stores."""

from __future__ import annotations

import click

from recon_node.cli.snapshot_create import create
from recon_node.cli.snapshot_sync import sync
from recon_node.cli.snapshot_upkeep import gc, list_, verify


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


for each in (create, sync, list_, verify, gc):
    snapshot.add_command(each)
