"""What `make` says on a machine that lacks something, such as a compiler."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import finished

ROOT = Path(__file__).parents[2]
PREFLIGHT = ROOT / "config" / "preflight.sh"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
WITHOUT_COMPILER = "(Without a compiler: make install WHEELS=DIRECTORY; see docs/operations.md.)"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has this Python and Debian's basic commands."""
    for name in ("id", "ls", "sh", "tr"):
        command = shutil.which(name)
        assert command is not None
        (tmp_path / name).symlink_to(command)
    return {"PATH": str(tmp_path), "PYTHON": sys.executable}


def preflight(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = finished(["/bin/sh", str(PREFLIGHT), *arguments], env=environment, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_missing_compiler_can_be_installed_or_done_without(bare: dict[str, str]) -> None:
    code, said = preflight(bare)
    assert code == 1
    assert "gcc libc6-dev libgmp-dev" in said
    assert WITHOUT_COMPILER in said


def test_with_wheels_no_compiler_is_needed(bare: dict[str, str], tmp_path: Path) -> None:
    for name in ("cbrrr-1.1.0", "fastecdsa-2.3.2"):
        (tmp_path / f"{name}-{TAG}-{TAG}-linux_x86_64.whl").touch()
    assert preflight({**bare, "WHEELS": str(tmp_path)}) == (0, "")


@pytest.mark.parametrize("tag", [None, "cp27"], ids=["missing", "of another Python"])
def test_a_directory_without_the_wheels_is_refused_by_name(bare, tmp_path, tag):
    (tmp_path / f"cbrrr-1.1.0-{TAG}-{TAG}-linux_x86_64.whl").touch()
    if tag is not None:
        (tmp_path / f"fastecdsa-2.3.2-{tag}-{tag}-linux_x86_64.whl").touch()
    code, said = preflight({**bare, "WHEELS": str(tmp_path)})
    assert code == 1
    assert f"WHEELS={tmp_path} has no wheel of fastecdsa for {sys.executable} ({TAG})" in said


def test_on_a_machine_without_python_all_that_is_missing_is_named(bare: dict[str, str]) -> None:
    _, said = preflight({**bare, "PYTHON": "missing"})
    assert "apt-get install -y python3 python3-venv python3-dev gcc libc6-dev libgmp-dev" in said
    _, said = preflight({**bare, "PYTHON": "missing", "WHEELS": "dist"})
    assert said.count("python3") == 2
    assert "apt-get install -y python3 python3-venv\n" in said


def test_the_demo_does_not_install_what_only_tests_need(tmp_path: Path) -> None:
    would_run = {
        target: subprocess.run(
            ["make", "--dry-run", target, f"VENV={tmp_path}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for target in ("demo", "install")
    }
    assert all("--requirement requirements/spark.lock" in text for text in would_run.values())
    assert "--requirement requirements.lock" in would_run["install"]
    assert "--requirement requirements.lock" not in would_run["demo"]
