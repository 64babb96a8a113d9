"""A real store under the real API, without a socket: httpx speaks ASGI to the application."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from api_samples import Api, api_of
from browser import chromium as chromium
from support import forking, sdk_sample

from recon_node.api.endpoint import Services
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.processes import process
from recon_node.store import Store, open_store

NETWORK = Network.local(7)


@pytest.fixture(scope="session")
def sample() -> list[dict[str, str]]:
    """Events that the Ceramic JavaScript SDK wrote, each after its prevs."""
    return sdk_sample.lines()


@pytest.fixture(scope="module", autouse=True)
def evaluations_are_forked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "Popen", forking.Popen)
        yield


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "node", NETWORK) as opened:
        yield opened


@pytest.fixture
def services(store: Store) -> Services:
    return Services(store=store)


@pytest.fixture
async def api(services: Services) -> AsyncIterator[Api]:
    async with api_of(services) as client:
        yield client


@pytest.fixture
async def filled(store: Store, sample: list[dict[str, str]]) -> list[dict[str, str]]:
    """The first 60 events of the sample, admitted to the store."""
    events = sample[:60]
    verdicts = await store.admit_local([multibase.decode(event["car"]) for event in events])
    assert [verdict.status for verdict in verdicts] == ["new"] * len(events)
    return events
