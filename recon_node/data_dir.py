"""Where a node keeps its data by default; apart from the settings, which take long to import."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/recon-node`, or `~/.recon-node` where that variable is not set."""
    xdg = os.environ.get("XDG_DATA_HOME")
    return Path(xdg) / "recon-node" if xdg else Path("~/.recon-node").expanduser()
