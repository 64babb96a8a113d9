"""Fixtures of the p2p tests: real events, in a fixed network, with their EventIds."""

import logging

import pytest
import structlog
import trio
from p2p_support import NETWORK, Held
from support import sdk_sample

from recon_node.recon import VERSIONS, Version
from recon_node.store import open_store


@pytest.fixture(scope="session")
def sdk_cars() -> list[bytes]:
    """The CARs of the sample."""
    return sdk_sample.cars()


@pytest.fixture(scope="session")
def sdk_events(sdk_cars, tmp_path_factory) -> list[Held]:
    """The sample's EventIds and CARs in causal order, as a store delivers them."""

    async def read() -> list[Held]:
        async with open_store(tmp_path_factory.mktemp("sample"), NETWORK) as store:
            await store.admit_local(sdk_cars)
            return [(row.event_id, row.car) for row in await store.reader.feed(0, 10_000)]

    return trio.run(read)


@pytest.fixture(autouse=True)
def quiet_log():
    """Log warnings only: a failing test shows them."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.reset_defaults()


@pytest.fixture(params=VERSIONS, ids=lambda version: version.id)
def version(request) -> Version:
    """The one version of recon that both sides speak."""
    return request.param
