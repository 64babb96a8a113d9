"""A Python with DuckDB and its extension for Delta, in a directory of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

_VERSION = "1.4.4"
_PACKAGES = (f"duckdb=={_VERSION}", f"duckdb-ext-delta=={_VERSION}.20260205")
_HOME = Path.home() / ".cache" / "recon-node-tests" / f"duckdb-{_VERSION}"


def duckdb_python() -> Path:
    """The Python; skips the test where the extension cannot be had."""
    python = _HOME / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", _HOME], check=True)
    install = [python, "-m", "pip", "install", "--quiet", *_PACKAGES]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("DuckDB's extension for Delta cannot be installed here")
    return python


def delta_extension() -> Path:
    """The extension's file."""
    duckdb_python()
    [extension] = _HOME.rglob("delta.duckdb_extension")
    return extension
