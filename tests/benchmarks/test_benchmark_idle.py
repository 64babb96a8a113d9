"""The benchmark of nodes in sync: its counting, without daemons."""

from __future__ import annotations

import os

import httpx
import pytest

from benchmarks import idle
from recon_node.testnet import TestnetNode


class Running(TestnetNode):
    """Stands for a daemon: this process, and an API that nobody serves."""

    __test__ = False
    pid = os.getpid()
    api_url = "http://node"


def test_sessions_are_counted_on_both_sides(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "recon_session_duration_seconds"
    lines = [
        f"# HELP {name}",
        f'{name}_count{{outcome="agreed",role="initiator"}} 3.0',
        f'{name}_sum{{outcome="agreed",role="initiator"}} 9.0',
        f'{name}_count{{outcome="failed",role="responder"}} 4.0',
        "recon_sessions_refused_total 2.0",
    ]
    answer = httpx.Response(200, text="\n".join(lines))
    monkeypatch.setattr(httpx, "get", lambda url, timeout: answer)
    assert idle.sessions(Running("node", tmp_path, [])) == 7


def test_cpu_is_that_of_the_process(tmp_path) -> None:
    node = Running("node", tmp_path, [])
    assert idle.cpu_seconds(node) == pytest.approx(sum(os.times()[:2]), abs=0.5)


def test_the_session_itself_ends_in_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_ROUNDS", 2)
    assert idle.session_seconds(10) >= 0
