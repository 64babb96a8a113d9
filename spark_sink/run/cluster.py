"""Checks that the workers of a Spark cluster can do the work.

Each worker needs this package in its Python, and the tables' directory at the same path or their
store, because workers write rows there (`tables.staging`). This is checked before the first batch,
where the error can name what is missing; later it would be the failure of some task. A cluster may
also be down or full, and Spark would wait forever. Local mode needs none of this.
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

from recon_node.base.errors import reason_of
from spark_sink.derive.workers import SparkWorkers
from spark_sink.errors import INSTALL, SinkError, TablesError, one_line, store_fault
from spark_sink.schema import RAW
from spark_sink.tables.location import FAULTS, Location, is_delta

_MASTER_PATIENCE: Final = 10.0
"""Seconds to wait for an answer of the master."""
WORKERS_PATIENCE: Final = 300.0
"""Seconds to wait for the cluster's first worker."""
_SILENCE: Final = 10.0
"""Seconds without a worker after which that is reported."""
_PACKAGE: Final = "recon-node"
_STANDALONE: Final = "spark://"
_STANDALONE_PORT: Final = 7077

_FAULTS: Final = (
    (
        r"No module named '([\w.]+)",
        "the Python of Spark's workers has no module {0}: install the driver's version there, "
        f"{INSTALL}; or name a Python that has it",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "Spark's workers have no {0}: name the Python that they have",
    ),
    (
        r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+?)\.?(?:\n|$)",
        "{0}; name a Python of the driver's version for the workers",
    ),
)
"""Patterns in Spark's long error messages, and what to do about them."""
_NAME_IT: Final = ", as in --spark-conf spark.pyspark.python=/opt/env/bin/python"


def is_local(master: str) -> bool:
    """Return whether the work is done on this machine, as with local[4]."""
    return master.partition("[")[0] == "local"


def check_master(master: str) -> None:
    """Check that a standalone master answers, if `master` names one.

    Raises:
        SinkError: none does. Spark would take a minute to fail, with a less helpful message.
    """
    if not master.startswith(_STANDALONE):
        return
    faults = []
    for master_address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = master_address.rpartition(":")
        try:
            address = (host or master_address, int(port) if host else _STANDALONE_PORT)
            with socket.create_connection(address, _MASTER_PATIENCE):
                return
        except (OSError, ValueError) as error:
            faults.append(f"{master_address}: {reason_of(error)}")
    raise SinkError(f"no Spark master answers at {master} ({'; '.join(faults)})")


def check_workers(
    spark: SparkSession,
    directory: Location,
    no_workers: Callable[[], None] = lambda: None,
    *,
    patience: float = WORKERS_PATIENCE,
) -> None:
    """Check that the workers available now have what they need.

    Args:
        spark: of a cluster.
        directory: of the tables; on a disk, a file is created in it for the workers to see.
        no_workers: called if no worker has answered after ten seconds.
        patience: seconds until a cluster without workers is an error.

    Raises:
        SinkError: the cluster provides no worker, or the workers lack something.
    """
    with calling_after(_SILENCE, no_workers), _mark(directory) as mark:
        workers = _ask_workers(spark, partial(_look, mark), patience)
    own = _version()
    for worker in workers:
        if worker.version != own and worker.version and own:
            raise SinkError(
                f"Spark's worker on {worker.host} has {_PACKAGE} {worker.version}, the driver "
                f"{own}: install the same version on all machines"
            )
        if worker.fault:
            raise TablesError(
                f"Spark's worker on {worker.host} cannot read the tables in {directory}: "
                f"{worker.fault}. Workers take credentials from their own environment, or from "
                "--storage-option"
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
    fault: str = ""


@contextmanager
def _mark(directory: Location) -> Iterator[Location]:
    """Provide what a worker must see if it sees the tables, which are there already."""
    if not isinstance(directory, Path):
        yield directory / RAW
        return
    mark = directory / f"_seen-{uuid.uuid4()}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _look(mark: Location, _: int) -> _Worker:
    """Runs in a worker."""
    host, own = socket.gethostname(), _version()
    if isinstance(mark, Path):
        return _Worker(host, own, mark.exists())
    try:
        return _Worker(host, own, is_delta(mark))
    except FAULTS as error:
        return _Worker(host, own, sees=False, fault=store_fault(error) or one_line(error))


def _version() -> str | None:
    """Return the version of this package; None if it is on the path without being installed."""
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

    def ask() -> list[_Worker]:
        return list(SparkWorkers(spark).map(question, range(max(2, context.defaultParallelism))))

    try:
        with (
            calling_after(patience, give_up),
            ThreadPoolExecutor(1) as pool,
        ):  # this thread handles signals while Spark waits
            return pool.submit(ask).result()
    except Exception as error:
        if late.is_set():
            memory = context.getConf().get("spark.executor.memory", "1g")
            raise SinkError(
                f"the Spark cluster {context.master} provided no worker in {patience:.0f} s: does "
                f"it have free cores and memory? An executor needs more than {memory}; "
                "--spark-conf spark.executor.memory=512m asks for less"
            ) from error
        raise _explained(error) from error


def _explained(error: Exception) -> Exception:
    """Return an error that says what workers lack, if Spark's message has it; else the error."""
    for pattern, advice in _FAULTS:
        if match := re.search(pattern, str(error)):
            return SinkError(advice.format(match[1]) + _NAME_IT)
    return error


@contextmanager
def calling_after(seconds: float, function: Callable[[], None]) -> Iterator[None]:
    """Call a function in another thread if the block takes longer."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
