"""Settings as `recon-node run` reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recon_node.settings import Settings, checked_settings, given_settings


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings of all sources."""
    return checked_settings(given_settings(config, flags))
