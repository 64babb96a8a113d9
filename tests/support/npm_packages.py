"""Packages from npm, put into node_modules by the first test that needs them."""

import fcntl
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.waiting import finished

INSTALL_LIMIT = 100.0
"""Seconds; they are needed once."""
OUR_FAULTS = ("EUSAGE", "ERESOLVE", "EJSONPARSE")
"""What npm says about package.json and its lock. Any other error comes from the registry or
the network, and must not fail a test."""


def install(folder: Path, *, dev: bool = False) -> None:
    """Install what package-lock.json says, or package.json where there is none; skip the tests
    where node, npm or the registry is missing. `dev` is with what only long tests need.

    Tests of several processes may need the same folder: the others wait for the first.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed: tests of npm packages cannot run")
    with (folder / ".installing").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _install(folder, dev)


def _install(folder: Path, dev: bool) -> None:
    lock = folder / "package-lock.json"
    wanted = lock if lock.exists() else folder / "package.json"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    mark = folder / "node_modules" / ".installed-from"
    if mark.exists() and mark.read_text() in (f"{digest} dev", digest + " dev" * dev):
        return
    command = ["ci"] if lock.exists() else ["install", "--no-package-lock"]
    command += [] if dev else ["--omit=dev"]
    try:
        done = _run(
            ["npm", *command, "--ignore-scripts", "--no-audit", "--no-fund"], folder, INSTALL_LIMIT
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm installed nothing within {INSTALL_LIMIT:g} s")
    if done.returncode:
        assert not any(fault in done.stderr for fault in OUR_FAULTS), done.stderr
        pytest.skip(f"npm cannot install packages here: {done.stderr.strip()[:200]}")
    mark.write_text(digest + " dev" * dev)


def node(folder: Path, limit: float, *args: str) -> Any:
    """Run an application in a folder for so many seconds; return what its last line says."""
    done = _run(["node", *args], folder, limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _run(command: list[str], folder: Path, limit: float) -> subprocess.CompletedProcess[str]:
    return finished(command, cwd=folder, timeout=limit)
