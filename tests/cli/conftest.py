"""A running node, as a process of its own, that the tests of the client commands share."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trio
from cli_run import Events
from support import sdk_sample

from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.store import StoreSettings, open_store
from recon_node.testnet import Testnet, TestnetNode


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """`recon-node run`, called in this process, sets up logging for the whole of it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def sample() -> Events:
    return sdk_sample.lines()


@pytest.fixture(scope="module")
def node() -> Iterator[TestnetNode]:
    with Testnet(nodes=1) as net:
        yield net.nodes[0]


@pytest.fixture
def log(tmp_path: Path, sample: Events) -> Path:
    """The data directory of a node of the network local-7 that has stopped, with 60 events."""
    directory = tmp_path / "log"

    async def fill() -> None:
        settings = StoreSettings(verifiers=0)
        async with open_store(directory, Network.local(7), settings=settings) as store:
            await store.admit_local([multibase.decode(event["car"]) for event in sample[:60]])

    trio.run(fill)
    return directory
