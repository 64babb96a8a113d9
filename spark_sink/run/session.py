"""Starting Spark in this process, quietly, and telling its errors in one line."""

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink import errors
from spark_sink.errors import SinkError, cannot_write, over_connect
from spark_sink.run.cluster import check_master, is_local
from spark_sink.run.java import Java, java_home
from spark_sink.source.data_source import ReconDataSource

# Java only directs here, the rows are Python's: the quick compiler saves 40 % of its time.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Spark puts its zipped pyspark first on the path of each Python that it starts. Out of a zip Python
# compiles all that it imports, anew in each process: 0.4 s of CPU. This very Python has an
# installed pyspark, the one that the zip is a copy of.
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
export PYTHONPATH="$path"
exec '{python}' "$@"
"""

# The gateway's level is named too, or it prints that it falls back to the root's.
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

# What Spark says of it goes on for pages, and does not begin with that.
_JAVA_GONE: Final = "its Java process is gone: was the machine's memory full?"
_PY4J_TRACE: Final = "Exception while sending command."
# Of a call that Java answered with an error.
_JAVA_TRACE: Final = ":\n"
_SIGNS: Final = {
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
    # Killed while writing its first offset, Spark leaves a file there and then refuses to start.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # Both save a quarter of a batch's latency, and are safe for a checkpoint on a local disk.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.stopTimeout": "30s",
}
# Nobody else needs to reach this Spark.
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
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
    java_options: str = JAVA_OPTIONS,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark with the source "recon" registered. Takes 6 to 8 seconds.

    Args:
        java: what to run it on.
        scratch: a directory for Spark's temporary files; emptied first.
        master: where the work is done; None: what spark-submit was told if it started this
            process, else on this machine.
        tasks: how many are worked on at once there, if `master` does not say.
        driver_memory: the Java heap, as Java writes it. Nothing to spark-submit, whose Java runs.
        verbose: let Spark's own warnings through to stderr.
        java_options: for the driver's Java.
        settings: Spark settings, on top of those of this module and of spark-submit.

    Raises:
        SinkError: Spark does not start, or not with such a `scratch`.
        TablesError: `scratch` cannot be written.
    """
    if "," in str(scratch):
        raise SinkError(
            f"the directory {scratch.parent} has a comma in its name, where Spark takes it to end: "
            "take another one"
        )
    log4j = scratch / "log4j2.properties"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        log4j.write_text(_LOG4J.format(level="warn" if verbose else "off"))
    except OSError as error:
        raise cannot_write(scratch.parent, error) from error
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL + 1)
    given = dict(settings or {})
    submitted = _submitted()
    master = master or submitted.get("spark.master", f"local[{tasks}]")
    if master.startswith("sc:"):
        raise over_connect(master)
    local = is_local(master)
    check_master(master)
    _set_environment(scratch if local else None, given.get(_WORKERS_PYTHON))
    properties = {"log4j2.configurationFile": log4j.as_uri(), "java.io.tmpdir": scratch}
    options = [_quoted(f"-D{name}={value}") for name, value in properties.items()]
    options += [java_options, given.pop(_DRIVER_OPTIONS, "")]
    own = {
        **_SETTINGS,
        **(_ON_THIS_MACHINE if local else {}),
        "spark.driver.memory": driver_memory,
        _DRIVER_OPTIONS: " ".join(options).strip(),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    own = {name: value for name, value in own.items() if name not in submitted}
    builder = SparkSession.builder.master(master).appName("spark-sink")
    for name, value in {**own, **given}.items():
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
        _hush(spark)
    spark.dataSource.register(ReconDataSource)
    return spark


def _hush(spark: SparkSession) -> None:
    """Where Java is killed, py4j and pyspark print traces of their own; `translate` says it."""
    logging.getLogger().addFilter(_is_not_py4js)
    server = spark.sparkContext._accumulatorServer
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.msg != _PY4J_TRACE


def java_exit() -> int | None:
    """How the Java that `start_session` started has ended, as `subprocess` has it; None: it runs,
    or somebody else started it."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def _quoted(option: str) -> str:
    """As Spark takes an option for Java, whatever is in it."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _submitted() -> dict[str, str]:
    """What spark-submit was told, if it started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def translate(error: BaseException) -> SinkError:
    """What went wrong, in one line for people, out of what Spark raised."""
    if isinstance(error, SinkError):
        return error
    own = re.findall(r"\bspark_sink\.errors\.(\w+): (.+)", str(error))
    for name, message in reversed(own):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SinkError):
            return kind(message.strip())
    return SinkError(f"Spark failed: {_reason(error)} Run with --verbose for its own messages")


def _reason(error: BaseException) -> str:
    """What to make of what Spark says; of an error of Python's the line that says what it is."""
    text = f"{type(error).__name__}: {error}"
    for sign, reason in _SIGNS.items():
        if sign in text:
            return f"{reason} (Nothing is lost: start again.)"
    if type(error) is Py4JError and _JAVA_TRACE not in text:
        return f"{_JAVA_GONE} (Nothing is lost: start again.)"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    return f"{raised[-1].rstrip('.') if raised else _first_line(error)}."


def _set_environment(scratch: Path | None, python: str | None) -> None:
    """Spark's Python processes must run this Python; another Spark on the machine stays out.

    With `scratch`, all of them run on this machine, start more quickly, and nobody else's can reach
    them. Elsewhere `python` may have another place.
    """
    workers = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if scratch is not None:
        workers = str(_quick_python(scratch))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = workers
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)


def _quick_python(directory: Path) -> Path:
    """A program in `directory` that is this Python, without Spark's zips on its path."""
    program = directory / "python"
    program.write_text(_PYTHON.format(python=sys.executable.replace("'", "'\\''")))
    program.chmod(0o755)
    return program


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Who ends while Spark starts leaves nothing behind that the next start does not remove."""
    before = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Spark takes SIGINT for itself when it starts; it stays ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _first_line(error: BaseException) -> str:
    """The first line of a message that says something; Spark's go on for pages."""
    text = str(error)
    if isinstance(error, PySparkException):
        text = error.getMessage() or text
    lines = (line.strip(" :") for line in text.splitlines())
    says = (line for line in lines if line and not line.startswith(_SAYS_NOTHING))
    return next(says, type(error).__name__).rstrip(".")
