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
    kinds = {"initiated": 3.0, "answered": 4.0, "failed": 1.0, "refused": 2.0}
    lines = [f'recon_sessions_total{{kind="{kind}"}} {number}' for kind, number in kinds.items()]
    answer = httpx.Response(200, text="\n".join(["# HELP recon_sessions_total", *lines]))
    monkeypatch.setattr(httpx, "get", lambda url, timeout: answer)
    assert idle.sessions(Running("node", tmp_path, [])) == 7


def test_cpu_is_that_of_the_process(tmp_path) -> None:
    node = Running("node", tmp_path, [])
    assert idle.cpu_seconds(node) == pytest.approx(sum(os.times()[:2]), abs=0.5)


def test_the_session_itself_ends_in_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_ROUNDS", 2)
    assert idle.session_seconds(10) >= 0
