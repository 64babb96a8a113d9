"""The tutorial and the guides, run as a reader runs them, in a new home directory."""

import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from shell_blocks import LIMIT, PAGES, PYTHON, run, run_page, script
from support.duckdb_delta import delta_extension, duckdb_python
from support.kafka_broker import broker
from support.postgres_server import program
from support.waiting import finished, kept_port, wait_until


def test_what_a_guide_starts_ends_with_the_tests(tmp_path: Path) -> None:
    """Even if these are killed."""
    text = "sleep 1000 > /dev/null & echo $! > new; mv new pid; wait"
    code = f"import pathlib, shell_blocks; shell_blocks.run({text!r}, pathlib.Path(), 100)"
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Popen([sys.executable, "-c", code], cwd=tmp_path, env=here) as tests:
        try:
            wait_until((tmp_path / "pid").exists)
        finally:
            tests.kill()
    program = Path("/proc", (tmp_path / "pid").read_text().strip(), "exe")
    wait_until(lambda: not program.exists())


def test_two_devices_and_two_accounts(tmp_path: Path) -> None:
    run_page("two-devices.md", tmp_path, without=("later",))


@pytest.mark.long
def test_the_tutorial(tmp_path: Path) -> None:
    with ExitStack() as stack:
        run(_on_other_ports(script(PAGES.parent / "tutorial.md"), stack), tmp_path, 1.5 * LIMIT)


def _on_other_ports(text: str, stack: ExitStack) -> str:
    """The script with free ports instead of the usual ones, which other tests may be using."""
    ports = {usual: stack.enter_context(kept_port()) for usual in (5101, 5201, 4101, 4201)}
    first = "recon-node run --network local-7\n"
    assert text.count(first) == 1
    text = text.replace(
        first, f"{first.rstrip()} --api 127.0.0.1:5101 --listen /ip4/127.0.0.1/tcp/4101\n"
    )
    text = f"export RECON_NODE_URL=http://127.0.0.1:5101\n{text}"
    for usual, free in ports.items():
        text = text.replace(str(usual), str(free))
    return text


@pytest.mark.long
def test_from_nothing_to_an_anchored_stream(tmp_path: Path) -> None:
    if not (shutil.which("npx") and shutil.which("curl")):
        pytest.skip("npx or curl is not installed: the guide's chain cannot run")
    text = script(PAGES / "anchors.md", without=("any node",))
    start = "recon-node run --config anchoring.toml\n"
    assert text.count(start) == 1
    with ExitStack() as stack:
        chain, api, peers = (stack.enter_context(kept_port()) for _ in range(3))
        flags = f"--api 127.0.0.1:{api} --listen /ip4/127.0.0.1/tcp/{peers} --no-discovery"
        text = text.replace(start, f"{start.rstrip()} {flags}\n").replace("8545", str(chain))
        text = text.replace("status >", f"status --url http://127.0.0.1:{api} >")
        text = f"export RECON_NODE_URL=http://127.0.0.1:{api}\n{text}"
        output = run(text, tmp_path, LIMIT)
    anchored = output.partition("stream anchor")[2]
    assert ": anchored 20" in anchored
    assert "[anchored]" in anchored
    assert "Anchoring on eip155:1337" in anchored
    assert re.search(r"[1-9] anchored in [1-9] trees?\b", anchored)


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
def test_typed_views_and_engines(tmp_path: Path) -> None:
    """The guide to views, then the example for DuckDB over its tables, in a DuckDB that has the
    extension."""
    output = run_page("typed-views.md", tmp_path)
    assert '{"text": "Welcome!", "title": "Hello", "stars": 3, "new": true}' in output
    assert '{"title": "Hello, views", "stars": 4}' in output
    assert re.search(r"^0 +Hello, views +4 +None$", output, re.MULTILINE)
    text = "\n".join(PYTHON.findall((PAGES / "engines.md").read_text(encoding="utf-8")))
    for old, new in (
        ("duckdb.connect()", "duckdb.connect(config={'allow_unsigned_extensions': True})"),
        ("INSTALL delta; LOAD delta", f"LOAD '{delta_extension()}'"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    done = finished([duckdb_python(), "-c", text], cwd=tmp_path)
    assert done.stdout == "[('Hello, views', None)]\n", done.stderr
