"""A running node, as a process of its own, that the tests of the client commands share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from support import sdk_sample

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
def sample() -> list[dict[str, str]]:
    return sdk_sample.lines()


@pytest.fixture(scope="module")
def node() -> Iterator[TestnetNode]:
    with Testnet(nodes=1) as net:
        yield net.nodes[0]
