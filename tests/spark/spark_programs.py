"""Spark's own programs on the loopback, among them a cluster of a master and two workers."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from spark_helpers import PATIENCE
from support.waiting import finished, wait_until

from spark_sink.run.feed_reader import _STARTS
from spark_sink.run.spark_session import _write_python, find_java, is_without_process

BIN = Path(sys.executable).parent
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
HOST = "127.0.0.1"
# Executors that start quickly, two of them on a small machine.
FRUGAL = {
    "spark.executor.memory": "500m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_DEPLOY = "org.apache.spark.deploy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def configured(option: str, settings: dict[str, str]) -> list[str]:
    """Settings of Spark as a program takes them: `--conf NAME=VALUE`."""
    return [part for setting in settings.items() for part in (option, "=".join(setting))]


class Programs:
    """Programs, each in a process group of its own; all end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[subprocess.Popen[bytes]] = []
        java = find_java().program.resolve()
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java.parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "700m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "XDG_STATE_HOME": str(directory / "state"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *command: object) -> Path:
        """Start a program; returns the file that gets what it says."""
        log = self.directory / f"{len(self.running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment,
                cwd=self.directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return log

    def run(self, *command: object, **environment: str) -> str:
        """Run a program to its end; returns what it printed.

        On a busy machine, Spark may wait for a Python process in vain: then again, as users would.
        """
        for _ in range(_STARTS):
            done = self.ended(*command, **environment)
            if not (done.returncode and is_without_process(Exception(done.stdout + done.stderr))):
                break
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ended(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, whichever."""
        return finished(
            [str(part) for part in command],
            env=self.environment | environment,
            cwd=self.directory,
            timeout=5 * PATIENCE,  # as for a `spark-sink run` in a process of its own
        )

    def close(self) -> None:
        for process in reversed(self.running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Cluster(Programs):
    """A master and two workers of a core each. `python` is one that starts quickly."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        with ExitStack() as stack:
            stack.callback(self.close)
            self._start_all()
            stack.pop_all()

    def _start_all(self) -> None:
        self.python = _write_python(self.directory)
        port = free_port()
        self.master = f"spark://{HOST}:{port}"
        start = ("spark-class", f"{_DEPLOY}.master.Master", "--host", HOST)
        self._log = self.start(*start, "--port", port, "--webui-port", 0)
        wait_until(lambda: listens(port), "the master listens")
        for number in range(2):
            self.start(
                *("spark-class", f"{_DEPLOY}.worker.Worker", self.master, "--host", HOST),
                *("--cores", 1, "--memory", "1g", "--webui-port", 0),
                *("--work-dir", self.directory / f"worker-{number}"),
            )
        wait_until(
            lambda: self._log.read_text().count("Registering worker") == 2, "all workers are known"
        )

    def executors(self) -> set[Path]:
        """Of all applications so far: the directories of their executors, one for each start."""
        return set(self.directory.glob("worker-*/app-*/*"))
