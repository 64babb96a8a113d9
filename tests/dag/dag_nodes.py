"""Three daemons in a row: A and C know B only."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from recon_node.cli import main
from recon_node.testnet import Testnet, TestnetNode


class Row(NamedTuple):
    a: TestnetNode
    b: TestnetNode
    c: TestnetNode


@pytest.fixture(scope="module")
def row() -> Iterator[Row]:
    with Testnet(3, flags=("--sync-interval", "1", "--no-discovery")) as net:
        b, a, c = net.nodes  # the first is the bootstrap peer of the others
        yield Row(a, b, c)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of the test's own, for the key."""
    home = tmp_path / "home"
    monkeypatch.setenv("RECON_NODE_DATA_DIR", str(home))
    return home


def call(node: TestnetNode, *args: str) -> Result:
    """Run `recon-node dag ...` against a node."""
    return CliRunner().invoke(main, ["dag", *args, "--url", node.api_url])


def done(node: TestnetNode, *args: str) -> str:
    """The same, of a command that should go well; what it printed."""
    result = call(node, *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()
