"""Lets Spark find the source "recon" without configuration.

Spark searches Python's modules for names that begin with `pyspark_` and registers their
`DefaultSource`. The wheel installs this file as the module `pyspark_recon` (see pyproject.toml).
"""

from spark_sink.source.data_source import ReconDataSource as DefaultSource

__all__ = ["DefaultSource"]
