"""A Ceramic network node: Recon (CIP-124) over libp2p, an event log, and a feed of it over HTTP."""

from typing import TYPE_CHECKING

DEFAULT_URL = "http://127.0.0.1:5101"
"""Where a node's HTTP API listens by default."""

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Look up `__version__` when it is first needed: that takes longer than Python's start."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        installed = "0+unknown"  # run from a source tree that is not installed
        for distribution in ("ceramic-client", "recon-node"):  # the client alone, or all of it
            try:
                installed = version(distribution)
            except PackageNotFoundError:
                continue
        globals()[name] = installed
        return installed


__all__ = ["DEFAULT_URL", "__version__"]
