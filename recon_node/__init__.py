"""A Ceramic network node: Recon (CIP-124) over libp2p, an event log, and a feed of it over HTTP."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("recon-node")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

DEFAULT_URL = "http://127.0.0.1:5101"
"""Where a node's HTTP API listens by default."""

__all__ = ["DEFAULT_URL", "__version__"]
