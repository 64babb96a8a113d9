"""Packages from npm, put into node_modules by the first test that needs them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

INSTALL_LIMIT = 600.0
"""Seconds."""


def install(folder: Path) -> None:
    """Install what package-lock.json says, or package.json where there is none; skip the tests
    where node, npm or the registry is missing."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed: tests of npm packages cannot run")
    lock = folder / "package-lock.json"
    wanted = lock if lock.exists() else folder / "package.json"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    mark = folder / "node_modules" / ".installed-from"
    if mark.exists() and mark.read_text() == digest:
        return
    command = ["ci"] if lock.exists() else ["install", "--no-package-lock"]
    done = _run(
        ["npm", *command, "--ignore-scripts", "--no-audit", "--no-fund"], folder, INSTALL_LIMIT
    )
    if done.returncode and _run(["npm", "ping"], folder, INSTALL_LIMIT).returncode:
        pytest.skip("the npm registry does not answer: packages cannot be installed")
    assert done.returncode == 0, done.stderr
    mark.write_text(digest)


def node(folder: Path, limit: float, *args: str) -> Any:
    """Run an application in a folder for so many seconds; return what its last line says."""
    done = _run(["node", *args], folder, limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _run(command: list[str], folder: Path, limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False
    )
