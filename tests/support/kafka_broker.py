"""A Kafka broker of the test's own, from Maven's packages, on free ports of the loopback."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from spark_sink.run.spark_session import find_java
from support.waiting import kept_port, wait_until

VERSION = "3.9.1"
JARS = Path.home() / ".cache" / "recon-node-tests" / f"kafka-{VERSION}"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>broker</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency></dependencies></project>"""


@cache
def jars() -> Path:
    """The broker's packages; skips the test where they cannot be had."""
    if JARS.is_dir():
        return JARS
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("mvn is not installed, by which the broker is fetched")
    draft = JARS.with_name(f"{JARS.name}.draft")
    draft.mkdir(parents=True, exist_ok=True)
    (draft / "pom.xml").write_text(_POM)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=."]
    done = subprocess.run(command, cwd=draft, capture_output=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip("Maven does not have the broker's packages here")
    draft.rename(JARS)
    return JARS


class Broker:
    """A broker that keeps its topics over restarts."""

    def __init__(self, directory: Path, port: int, controller: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._settings = directory / "server.properties"
        self._log = directory / "broker.log"
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "topics",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c").wait()

    def _java(self, *arguments: str) -> "subprocess.Popen[bytes]":
        java = find_java().program
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [java, "-Xmx400m", "-cp", f"{jars()}/*", *arguments, self._settings],
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        self.process = self._java("kafka.Kafka")
        wait_until(self.answers, "the broker answers")

    def answers(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=1)
        except Exception:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    """A broker that runs during the block."""
    jars()
    with ExitStack() as stack:
        ports = [stack.enter_context(kept_port()) for _ in range(2)]
        running = Broker(directory, *ports)
        try:
            running.start()
            yield running
        finally:
            running.kill()
