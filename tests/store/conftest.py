"""Fixtures of the store's tests."""

import pytest

from recon_node.verification.verifiers import NATIVE_VERSION


@pytest.fixture(params=[False, True], ids=["python", "native"])
def with_native(request: pytest.FixtureRequest) -> bool:
    """Whether the native core checks signatures; both ways have the same outcome."""
    if request.param and NATIVE_VERSION is None:
        pytest.skip("recon-node-native is not installed: `make native` installs it")
    return bool(request.param)
