"""Attacks on the Spark pipeline, by what a peer gave the node."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import adbc_driver_flightsql.dbapi as flight

from benchmarks.attack.catalogue import attack
from benchmarks.attack.derived_work import (
    dear_numbers,
    dear_schema,
    many_conflicts,
    repeated_fields,
)
from benchmarks.attack.field import Field
from benchmarks.attack.measuring import MIB, memory_of
from recon_node.ceramic import Event


@attack()
def poison_for_the_pipeline(here: Field) -> None:
    """One stream of a stranger stops all derived tables, again at each start."""
    poison: list[Event] = []
    for events, _ in (repeated_fields(60_000), dear_schema(), dear_numbers(), many_conflicts()):
        poison += events
    tables = here.directory / "tables"
    command = [sys.executable, "-m", "spark_sink", "run", "--once", "--url", here.url]
    with here.attacked():
        here.add(poison)
        here.await_event(poison[-1])
        started = time.monotonic()
        code = _run([*command, "--tables", str(tables)], 300)
        here.at_most("the pipeline's run", time.monotonic() - started, 120.0)
    here.expect("exit code of the pipeline", 0, code)
    here.expect("second run", 0, _run([*command, "--tables", str(tables)], 300))
    asked = f"SELECT stream_id FROM stream_states WHERE stream_id = '{here.stream}'"
    queried = subprocess.run(
        [sys.executable, "-m", "spark_sink", "query", "--tables", str(tables), asked],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    here.expect("honest stream in the tables", 1, queried.stdout.count(str(here.stream)))


_SERVER_MEMORY: Final = 4 * (512 + 256) * MIB
"""Of four queries at once, by default: what DuckDB may take, and what a process takes besides."""


@contextmanager
def _serving(here: Field) -> Iterator[tuple[str, int]]:
    """Serve the tables of the node; yields the address and the process id."""
    tables = here.directory / "tables"
    command = [sys.executable, "-m", "spark_sink"]
    _run([*command, "run", "--once", "--url", here.url, "--tables", str(tables)], 300)
    address = f"127.0.0.1:{_free_port()}"
    server = subprocess.Popen(
        [*command, "serve", "--tables", str(tables), "--listen", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    complain, sys.unraisablehook = sys.unraisablehook, lambda _: None  # as it says at length
    try:
        _await_server(address)
        yield address, server.pid
    finally:
        sys.unraisablehook = complain
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@attack()
def slow_queries(here: Field) -> None:
    """One client of Flight SQL keeps all slots with statements that are slow to plan."""
    with _serving(here) as (address, server):
        before = memory_of(server)
        longest, memory = _queries_beside_slow_ones(address, server)
        here.at_most("another client's query", longest, 10.0)
        grown = memory - before
        here.expect("memory below 3 GiB more", True, grown < _SERVER_MEMORY)


_STATEMENTS: Final = {
    "reads a file": "FROM read_text('{secret}')",
    "reads its tables' directory": "FROM glob('{tables}/*')",
    "writes a file": "COPY (SELECT 1) TO '{tables}/written'",
    "opens a database": "ATTACH '{tables}/written' AS mine",
    "changes a setting": "SET memory_limit = '100GB'",
    "asks for the environment": "SELECT getenv('HOME')",
    "is nested deeply": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "is long": "SELECT 1" + " + 1" * 500_000,
    "multiplies rows": "SELECT count(*) FROM " + "range(1000000), " * 4 + "stream_states",
    "recurs without end": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) "
    "SELECT count(*) FROM r",
    "gathers a list without end": "SELECT list(range) FROM range(10000000000)",
}


@attack()
def hostile_statements(here: Field) -> None:
    """Statements of Flight SQL read files and settings, or take the server's memory and time."""
    secret = here.directory / "secret"
    secret.write_text("secret")
    tables = here.directory / "tables"
    answered: list[str] = []

    def send(what: str, sql: str) -> None:
        with suppress(flight.Error, RuntimeError):
            _query(address, sql.replace("{secret}", str(secret)).replace("{tables}", str(tables)))
            answered.append(what)

    with _serving(here) as (address, server):
        before = memory_of(server)
        threads = [
            threading.Thread(target=send, args=statement, daemon=True)
            for statement in _STATEMENTS.items()
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 12
        longest, memory = 0.0, 0
        while time.monotonic() < end:
            started = time.monotonic()
            _query(address, "SELECT count(*) FROM stream_states")
            longest = max(longest, time.monotonic() - started)
            memory = max(memory, memory_of(server))
            time.sleep(0.2)
        here.at_most("another client's query", longest, 10.0)
        here.expect("memory below 3 GiB more", True, memory - before < _SERVER_MEMORY)
    here.expect("statements that are answered", [], [x for x in answered if x != "is long"])
    here.expect("files written", False, (tables / "written").exists())


def _queries_beside_slow_ones(address: str, server: int) -> tuple[float, int]:
    """The longest time that a short query takes meanwhile, and the server's memory at most."""
    end = time.monotonic() + 20
    slow = "SELECT count(*) FROM conclusion_events WHERE length(repeat('x', 400000000)) = 1"

    def be_greedy() -> None:
        while time.monotonic() < end:
            with suppress(flight.Error, RuntimeError):  # its driver cannot close what has failed
                _query(address, slow)

    threads = [threading.Thread(target=be_greedy, daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    longest, memory = 0.0, 0
    while time.monotonic() < end:
        started = time.monotonic()
        try:
            _query(address, "SELECT count(*) FROM conclusion_events")
        except flight.Error:
            return math.inf, memory
        longest = max(longest, time.monotonic() - started)
        memory = max(memory, memory_of(server))
        time.sleep(0.5)
    return longest, memory


def _query(address: str, sql: str) -> int:
    uri = f"grpc://{address}"
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetch_arrow_table().num_rows)


def _await_server(address: str) -> None:
    limit = time.monotonic() + 60
    while True:
        try:
            _query(address, "SELECT 1")
            return
        except flight.Error:
            if time.monotonic() > limit:
                raise
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _run(command: list[str], limit: float) -> int:
    """Run a command, which is killed with all that it started if it takes longer."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
