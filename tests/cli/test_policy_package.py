"""A write policy of a package that is installed beside the node, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from nacl.signing import SigningKey

from recon_node.ceramic.builder import controller_of, init_event, model_event
from recon_node.cli import main
from recon_node.ipld import multibase
from recon_node.testnet import Testnet, TestnetError

MEMBER, GUEST, DENIED = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
MODULE = f"""
MEMBERS = {{"{controller_of(MEMBER)}", "{controller_of(DENIED)}"}}

def members_only(stream):
    return None if stream.controller in MEMBERS else "its controller is not a member"
"""


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that has a write policy, for the processes of this test."""
    place = tmp_path / "packages"
    metadata = place / "members-1.0.dist-info"
    metadata.mkdir(parents=True)
    (place / "members.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: members\nVersion: 1.0\n")
    entry_point = "[recon_node.write_policy]\nmembers = members:members_only\n"
    (metadata / "entry_points.txt").write_text(entry_point)
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.usefixtures("_package")
def test_a_package_s_policy_and_the_lists_hold_together(tmp_path: Path) -> None:
    flags = ["--write-policy", "members", "--deny-controller", controller_of(DENIED)]
    model = model_event(MEMBER, {"name": "Note"}).stream_id()
    with Testnet(nodes=1, flags=flags) as net:
        [node] = net.nodes
        answers = [
            httpx.post(
                f"{node.api_url}/ceramic/events",
                json={"data": multibase.encode(init_event(key, model, None).car)},
            )
            for key in (MEMBER, GUEST, DENIED)
        ]
        assert [each.status_code for each in answers] == [204, 403, 403]
        assert "not a member (write policy members)" in answers[1].json()["message"]
        assert "is in deny_controllers" in answers[2].json()["message"]
        status = CliRunner().invoke(main, ["status", "--url", node.api_url])
        assert "2 events, 0 keys not fetched" in status.output
        assert "members" in status.output


def test_a_policy_that_is_not_installed_keeps_the_node_from_starting(tmp_path: Path) -> None:
    """Rather than have it accept everything."""
    with (
        pytest.raises(TestnetError) as caught,
        Testnet(nodes=1, flags=["--write-policy", "nobody"]),
    ):
        pass
    assert "cannot use the setting `write_policy`" in str(caught.value)
    assert "no installed package offers a write policy 'nobody'" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_list_that_cannot_be_used_is_exit_code_2() -> None:
    for flag, words in (("--allow-model", "is not a StreamID"), ("--deny-controller", "not a DID")):
        result = CliRunner().invoke(main, ["run", flag, "x"])
        assert result.exit_code == 2
        assert f"Error: {flag}: " in result.stderr
        assert words in result.stderr
