"""The guides to what reads the tables, run as a reader runs them, in a new home directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from shell_blocks import PAGES, PYTHON, run_page
from support.duckdb_delta import delta_extension, duckdb_python
from support.kafka_broker import broker
from support.postgres_server import program


@pytest.mark.long
def test_typed_views(tmp_path: Path) -> None:
    output = run_page("typed-views.md", tmp_path)
    assert '{"text": "Welcome!", "title": "Hello", "stars": 3, "new": true}' in output
    assert '{"title": "Hello, views", "stars": 4}' in output
    assert re.search(r"^0 +Hello, views +4 +None$", output, re.MULTILINE)


@pytest.mark.long
def test_postgresql(tmp_path: Path) -> None:
    programs = Path(program("initdb")).parent, Path(program("postgres")).parent
    directory = tmp_path
    start = {"postgres -D": "postgres -D", "initdb ": "initdb "}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        nobody = "setpriv --reuid=postgres --regid=postgres --clear-groups "
        start = {name: f"{nobody}{name}" for name in start}
        directory = Path(tempfile.mkdtemp(prefix="how-to-", dir="/tmp"))
        directory.chmod(0o777)
    try:
        path = {"set -e -o pipefail": f"set -e -o pipefail\nPATH=$PATH:{programs[0]}\numask 0"}
        output = run_page("postgresql.md", directory, {**path, **start})
    finally:
        if directory != tmp_path:
            shutil.rmtree(directory)
    assert re.search(r"^ Hello +\| \{new\}$", output, re.MULTILINE)
    assert re.search(r"^ Hello, PostgreSQL +\| Hello, PostgreSQL$", output, re.MULTILINE)
    assert re.search(r"^ post +\| +3$", output, re.MULTILINE)


@pytest.mark.long
def test_kafka(tmp_path: Path) -> None:
    with broker(tmp_path) as running:
        (tmp_path / "home").mkdir()
        output = run_page("kafka.md", tmp_path / "home", {"localhost:9092": running.address})
    assert "True {'title': 'Hello'}" in output


@pytest.mark.long
def test_engines(tmp_path: Path) -> None:
    """The example for DuckDB, in one that has the extension, over the guide to views' tables."""
    run_page("typed-views.md", tmp_path)
    text = "\n".join(PYTHON.findall((PAGES / "engines.md").read_text(encoding="utf-8")))
    for old, new in (
        ("duckdb.connect()", "duckdb.connect(config={'allow_unsigned_extensions': True})"),
        ("INSTALL delta; LOAD delta", f"LOAD '{delta_extension()}'"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    done = subprocess.run(
        [duckdb_python(), "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[('Hello, views', None)]\n", done.stderr
