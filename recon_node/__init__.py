"""A Ceramic network node: Recon (CIP-124) over libp2p, an event log, and a feed of it over HTTP."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("recon-node")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
