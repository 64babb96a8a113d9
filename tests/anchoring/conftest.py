"""A store with an anchoring service, on the development clock."""

import time
from contextlib import asynccontextmanager

import pytest

from recon_node.anchoring.anchoring_service import open_anchoring
from recon_node.anchoring.settings import AnchorSettings
from recon_node.ceramic import Network
from recon_node.chain import ChainSettings, open_anchors
from recon_node.store import StoreSettings, open_store


@pytest.fixture
def opened(tmp_path):
    """Opens both, with settings of anchoring."""

    @asynccontextmanager
    async def open_both(now=time.time, **settings):
        chain = ChainSettings(development_time=True)
        chosen = AnchorSettings(authority="development", **{"interval": 0.001, **settings})
        of_store = StoreSettings(verifiers=0)
        async with (
            open_store(tmp_path, Network.local(7), settings=of_store) as store,
            open_anchors(chain, store),
            open_anchoring(chosen, chain, store, tmp_path, now=now) as anchoring,
        ):
            yield store, anchoring

    return open_both
