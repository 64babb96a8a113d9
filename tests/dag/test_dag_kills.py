"""100 MB from A to C through B, while everything involved is killed at random moments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from dag_kills import MB, transfer
from dag_nodes import Row


@pytest.mark.long
def test_100_mb_arrive_whatever_is_killed(row: Row, tmp_path: Path, rng: random.Random) -> None:
    transfer(row, tmp_path, rng, size=100 * MB, kills=6)
