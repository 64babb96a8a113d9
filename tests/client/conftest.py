"""Real stores under the real API, without sockets: the client speaks ASGI to the application."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from client_samples import KEY

from recon_node.api.app import ENDPOINTS, create_app
from recon_node.api.endpoint import Services
from recon_node.ceramic import Network
from recon_node.client import AsyncCeramic
from recon_node.store import Store, open_store


class OfCeramicOne(httpx.ASGITransport):
    """Answers what a ceramic-one node does not have as such a node would."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        own = [
            endpoint.path.split("/")
            for endpoint in ENDPOINTS
            if endpoint.own and endpoint.method == request.method
        ]
        path = request.url.path.split("/")
        for parts in own:
            if len(parts) == len(path) and all(
                part == segment or part.startswith("{")
                for part, segment in zip(parts, path, strict=True)
            ):
                return httpx.Response(404, text="")
        return await super().handle_async_request(request)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "node", Network.local(7)) as opened:
        yield opened


@pytest.fixture(params=[httpx.ASGITransport, OfCeramicOne], ids=["own node", "ceramic-one"])
async def ceramic(store: Store, request: pytest.FixtureRequest) -> AsyncIterator[AsyncCeramic]:
    """A client of a node with everything, then of one with the paths of ceramic-one only."""
    transport = request.param(create_app(Services(store=store)))
    async with AsyncCeramic("node", key=KEY, transport=transport) as client:
        yield client
