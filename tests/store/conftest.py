"""Fixtures of the store's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_helpers import NETWORK

from recon_node.store import Store, open_store
from recon_node.verification.verifiers import NATIVE_VERSION


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store. Tests that open it again, or otherwise, do so themselves."""
    async with open_store(tmp_path, NETWORK) as opened:
        yield opened


@pytest.fixture(params=[False, True], ids=["python", "native"])
def with_native(request: pytest.FixtureRequest) -> bool:
    """Whether the native core checks signatures; both ways have the same outcome."""
    if request.param and NATIVE_VERSION is None:
        pytest.skip("recon-node-native is not installed: `make native` installs it")
    return bool(request.param)
