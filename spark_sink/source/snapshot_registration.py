"""Lets Spark find the source "recon_snapshot", as `registration` does for "recon"."""

from spark_sink.source.snapshot_source import ReconSnapshotSource as DefaultSource

__all__ = ["DefaultSource"]
