"""A PostgreSQL server of the test's own, on a socket in a directory of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.waiting import wait_until

_INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


def program(name: str) -> str:
    """The path of a program of PostgreSQL; skips the test if it is not installed."""
    beside = str(_INSTALLED[-1].parent) if _INSTALLED else ""
    program = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"PostgreSQL's {name} is not installed: apt-get install postgresql")
    return program


@dataclass
class Server:
    """A server in a directory."""

    directory: Path
    command: list[str]
    user: str | None

    @property
    def url(self) -> str:
        return f"postgresql://{self.user or ''}@/postgres?host={self.directory}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, user=self.user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self.answers)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, number: int = signal.SIGQUIT) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql).fetchall()

    def run(self, sql: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(sql)


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs during the block."""
    initdb, postgres = program("initdb"), program("postgres")
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    if user is not None:
        shutil.chown(directory, user)
    data = str(directory / "data")
    try:
        subprocess.run(
            [initdb, "--no-sync", "--encoding=UTF8", "--auth=trust", data],
            user=user,
            check=True,
            capture_output=True,
        )
        settings = {"listen_addresses": "", "unix_socket_directories": str(directory)}
        options = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        made = Server(directory, [postgres, "-D", data, *options], user)
        try:
            made.start()
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(directory)
