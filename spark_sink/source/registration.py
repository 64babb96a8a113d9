"""What makes Spark find the source "recon" by itself.

Spark looks through Python's modules for those named `pyspark_...` and registers what they call
`DefaultSource`. The wheel installs this file as the module `pyspark_recon` (see pyproject.toml).
"""

from spark_sink.source.data_source import ReconDataSource as DefaultSource

__all__ = ["DefaultSource"]
