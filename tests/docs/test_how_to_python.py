"""The guides to programs, run as a reader runs them, in a new home directory."""

from __future__ import annotations

from pathlib import Path

from shell_blocks import run_page


def test_two_devices_and_two_accounts(tmp_path: Path) -> None:
    run_page("two-devices.md", tmp_path, without=("later",))
