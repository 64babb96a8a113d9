"""A Spark whose workers are other processes, on other machines as a rule: can they do the work?

Each of them needs this package in its Python, and the directory of the tables at the same path, for
workers write the rows (`tables.staging`). That is looked at before the first batch, where what
is missing can be told; later on it would be the failure of some task. A cluster may also be away,
or have no room: Spark would wait for ever. In local mode there is nothing of this to ask.
"""

import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_sink.derive.workers import SparkWorkers
from spark_sink.errors import INSTALL, SinkError, TablesError

# Seconds: how long a master has to answer, and a cluster to give its first worker.
_MASTER_PATIENCE: Final = 10.0
WORKERS_PATIENCE: Final = 300.0
_PACKAGE: Final = "recon-node"
_STANDALONE: Final = "spark://"
_STANDALONE_PORT: Final = 7077

# What Spark says somewhere in its pages, and what to do about it.
_FAULTS: Final = (
    (
        r"No module named '([\w.]+)",
        "the Python of Spark's workers has no module {0}: install the same version as here there, "
        f"{INSTALL}; or name a Python that has it",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "Spark's workers have no {0}: name the Python that they have",
    ),
    (
        r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+?)\.?(?:\n|$)",
        "{0}; name one of the driver's version for the workers",
    ),
)
_NAME_IT: Final = ", as in --spark-conf spark.pyspark.python=/opt/env/bin/python"


def is_local(master: str) -> bool:
    """Whether the work is done by processes of this one, as with local[4]."""
    return master.partition("[")[0] == "local"


def check_master(master: str) -> None:
    """Is there a master of a standalone cluster, if that is what `master` names?

    Raises:
        SinkError: none of those named answers. Spark would say so after a minute, and not as that.
    """
    if not master.startswith(_STANDALONE):
        return
    faults = []
    for place in master.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            address = (host or place, int(port) if host else _STANDALONE_PORT)
            with socket.create_connection(address, _MASTER_PATIENCE):
                return
        except (OSError, ValueError) as error:
            faults.append(f"{place}: {getattr(error, 'strerror', None) or error}")
    raise SinkError(f"no Spark master answers at {master} ({'; '.join(faults)})")


def check_workers(
    spark: SparkSession,
    directory: Path,
    no_workers: Callable[[], None] = lambda: None,
    *,
    silence: float = 10.0,
    patience: float = WORKERS_PATIENCE,
) -> None:
    """Have the workers that are there by now what it takes?

    Args:
        spark: of a cluster.
        directory: of the tables; a file is made in it for the workers to see, and deleted.
        no_workers: called when there is none after `silence` seconds.
        silence: see `no_workers`.
        patience: seconds until a cluster without workers is an error.

    Raises:
        SinkError: the cluster gives no worker, or they lack something; the message says what.
    """
    mark = directory / f"_seen-{uuid.uuid4()}"
    mark.touch()
    try:
        with _told_after(silence, no_workers):
            found = _ask_workers(spark, partial(_look, mark), patience)
    finally:
        mark.unlink(missing_ok=True)
    own = _version()
    for worker in found:
        if worker.version != own and worker.version and own:
            raise SinkError(
                f"Spark's worker on {worker.host} has {_PACKAGE} {worker.version}, the driver "
                f"{own}: install the same on all machines"
            )
        if not worker.sees:
            raise TablesError(
                f"Spark's worker on {worker.host} does not see the tables in {directory}: all "
                "workers and the driver must have that directory at the same path (a shared file "
                "system)"
            )


@dataclass(frozen=True, slots=True)
class _Worker:
    host: str
    version: str | None
    sees: bool


def _look(mark: Path, _: int) -> _Worker:
    """Runs in a worker."""
    return _Worker(socket.gethostname(), _version(), mark.exists())


def _version() -> str | None:
    """Of this package; None where it is there without being installed, as in a directory of
    PYTHONPATH."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return None


def _ask_workers(
    spark: SparkSession, question: Callable[[int], _Worker], patience: float
) -> Sequence[_Worker]:
    context = spark.sparkContext
    late = threading.Event()

    def give_up() -> None:
        late.set()
        context.cancelAllJobs()

    timer = threading.Timer(patience, give_up)
    timer.daemon = True
    timer.start()

    def ask() -> list[_Worker]:
        return list(SparkWorkers(spark).map(question, range(max(2, context.defaultParallelism))))

    try:
        with ThreadPoolExecutor(1) as pool:  # so that signals are heard here while Spark waits
            return pool.submit(ask).result()
    except Exception as error:
        if late.is_set():
            memory = context.getConf().get("spark.executor.memory", "1g")
            raise SinkError(
                f"the Spark cluster {context.master} gave no worker in {patience:.0f} s: has it "
                f"cores and memory to spare? An executor takes {memory} and more; --spark-conf "
                "spark.executor.memory=512m asks for less"
            ) from error
        raise _told(error) from error
    finally:
        timer.cancel()


def _told(error: Exception) -> Exception:
    """What workers lack, where Spark's message has it; else the error itself."""
    for pattern, advice in _FAULTS:
        if found := re.search(pattern, str(error)):
            return SinkError(advice.format(found[1]) + _NAME_IT)
    return error


@contextmanager
def _told_after(seconds: float, tell: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
