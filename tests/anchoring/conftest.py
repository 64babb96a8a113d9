"""A store with an anchoring service, on the development clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anchoring_support import NETWORK, Opened

from recon_node.anchoring.anchoring_service import Anchoring, open_anchoring
from recon_node.anchoring.settings import AnchorSettings
from recon_node.chain import ChainSettings, open_anchors
from recon_node.store import Store, StoreSettings, open_store


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    @asynccontextmanager
    async def open_both(**settings: Any) -> AsyncIterator[tuple[Store, Anchoring]]:
        chain = ChainSettings(development_time=True)
        chosen = AnchorSettings(authority="development", **{"interval": 0.001, **settings})
        async with (
            open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store,
            open_anchors(chain, store),
            open_anchoring(chosen, chain, store, tmp_path) as anchoring,
        ):
            assert anchoring is not None
            yield store, anchoring

    return open_both
