"""A Ceramic network node: Recon (CIP-124) over libp2p, an event log, and a feed of it over HTTP."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

__version__ = "0+unknown"  # run from a source tree that is not installed
for _distribution in ("ceramic-client", "recon-node"):  # the client alone, or all of it
    with suppress(PackageNotFoundError):
        __version__ = version(_distribution)

DEFAULT_URL = "http://127.0.0.1:5101"
"""Where a node's HTTP API listens by default."""

__all__ = ["DEFAULT_URL", "__version__"]
