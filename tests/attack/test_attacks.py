"""The short form of `make attack`: against real nodes, and with time to spare on a busy machine."""

from pathlib import Path

import pytest

from benchmarks.attack.__main__ import run
from benchmarks.attack.catalogue import ATTACKS
from benchmarks.attack.measuring import Bounds, Measured

SLACK = 20.0


QUICK = {"repeated unique fields"}
"""By the HTTP API. The others have tests without a node as well."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
        for name, attack in ATTACKS.items()
        if attack.short
    ],
)
def test_a_node_bears(name: str, tmp_path: Path) -> None:
    rows = run(ATTACKS[name], tmp_path, Bounds(slack=SLACK))
    assert len(rows) > 2
    assert [row for row in rows if not row.holds] == []


def test_what_is_beyond_a_bound_is_broken() -> None:
    measured = Measured(before=1 << 20, memory=302 << 20, liveness=1.1, crossing=3.1)
    measured.failures.append("liveness: refused")
    assert [row.holds for row in measured.rows(Bounds())] == [False] * 4
    assert [row.holds for row in measured.rows(Bounds(memory=1 << 30, slack=2))][:3] == [True] * 3
