"""A running node, as a process of its own, that the tests of the client commands share."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from recon_node.testnet import Testnet, TestnetNode

SAMPLE = Path(__file__).parent.parent / "data" / "sdk_sample.jsonl"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """`recon-node run`, called in this process, sets up logging for the whole of it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """Variables of the developer's own shell must not reach the commands under test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RECON_NODE_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def sample() -> list[dict[str, str]]:
    with SAMPLE.open() as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def node() -> Iterator[TestnetNode]:
    with Testnet(nodes=1) as net:
        yield net.nodes[0]
