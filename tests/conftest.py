"""Settings of the whole suite: Hypothesis profiles, and one printed seed for the rest."""

import gc
import importlib
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings
from support import forking
from support.watchdog import limited
from xdist.scheduler.loadfile import LoadFileScheduling

from recon_node import testnet
from recon_node.store import values

# What is imported and collected stays until the end. Looking through it for garbage takes each
# process two seconds while it collects the tests, and more while it runs them.
gc.disable()

RECURSION = sys.getrecursionlimit()
"""What eth-account imports, which some tests do, lets recursion go so deep that the process ends
instead of raising (see recon_node.anchoring.signer)."""

LONGEST_FIRST = ("spark", "e2e", "dag", "store", "p2p", "cli", "chain", "interop")
"""Folders whose files take longest. A file is run by one process: the last ones should be short."""

SPARK_SESSION = "spark session"
IN_ONE_PROCESS = {
    f"tests/spark/test_spark_{name}.py": SPARK_SESSION
    for name in ("pipeline", "snapshot", "functions", "tangles")
}
"""Files that use the fixture `spark`, which takes each process 15 seconds to make."""

IN_CI = "CI" in os.environ
"""What chance finds in CI would hold up work that it has nothing to do with. So CI draws the same
numbers each time, and everyone else looks for new ones."""

SEED = int(os.environ.get("RECON_TEST_SEED", 1 if IN_CI else random.SystemRandom().getrandbits(32)))
os.environ["RECON_TEST_SEED"] = str(SEED)  # the processes that run the tests get the same
# Where gRPC has run, its handler of forks may close file descriptors of a process that is started:
# Java then ends before Spark has found it. What is started here runs another program at once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# No test is about timing: a busy machine must not fail the suite.
settings.register_profile(
    "suite", max_examples=25, deadline=None, print_blob=True, derandomize=IN_CI
)
settings.register_profile("long", parent=settings.get_profile("suite"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_report_header() -> str:
    return f"random seed: RECON_TEST_SEED={SEED}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let Ctrl-C reach the processes that tests start, even if a shell has this run in the
    background with SIGINT ignored, which children inherit."""
    _compile_a_share(session.config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _compile_a_share(config: pytest.Config) -> None:
    """Import the tests of which this process is the first to compile the asserts. All processes of
    xdist collect all tests, in the same order: after a checkout each would compile them all."""
    if not (worker := getattr(config, "workerinput", None)):
        return
    files = sorted(Path(__file__).parent.glob("*/test_*.py"))
    for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # which collecting it reports
            importlib.import_module(file.stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders of `LONGEST_FIRST` first, in this order."""
    tests = Path(__file__).parent
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(tests).parts[0], len(ranks)))


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Has a file run by one process, and some files together by the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return IN_ONE_PROCESS.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, but for those that may take minutes."""
    if item.get_closest_marker("long") or os.environ.get("HYPOTHESIS_PROFILE") == "long":
        return (yield)
    with limited(item.nodeid, item.config.stash[fault_handler_stderr_fd_key]):
        return (yield)


def pytest_collection_finish() -> None:
    sys.setrecursionlimit(RECURSION)
    gc.freeze()
    gc.enable()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator of its own for each test, from the seed that the report's header prints."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def no_settings_from_outside() -> Iterator[None]:
    """Variables of the developer's own shell must not reach the commands under test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RECON_NODE_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def stores_check_in_the_same_process() -> Iterator[None]:
    """Starting two verifier processes takes longer than most tests: who wants some says so.

    Other settings may be given without a word about verifiers: their number is "auto" then. Nodes
    that are processes of their own get it by a variable.
    """
    environment = testnet._environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "usable_cores", lambda: 0)
        patch.setattr(
            testnet, "_environment", lambda: environment() | {"RECON_NODE_VERIFIERS": "0"}
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def testnets_are_forked() -> Iterator[None]:
    """A node's imports would take most of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testnet, "Popen", forking.Popen)
        yield


@pytest.fixture(scope="session", autouse=True)
def tracebacks_are_plain() -> Iterator[None]:
    """Where no log is set up, rich shows the variables of all frames: a second of CPU each time."""
    renderer = structlog.get_config()["processors"][-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderer, "_exception_formatter", structlog.dev.plain_traceback)
        yield


@pytest.fixture(scope="session", autouse=True)
def http_clients_have_patience() -> Iterator[None]:
    """Unless told otherwise, they wait for five seconds: a busy machine may need more."""
    unless_told = httpx._config.DEFAULT_TIMEOUT_CONFIG
    with pytest.MonkeyPatch.context() as patch:
        for timeout in ("connect", "read", "write", "pool"):
            patch.setattr(unless_told, timeout, 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def http_clients_share_their_certificates() -> Iterator[None]:
    """Reading all certificates takes 20 ms for each client, and no test speaks TLS."""
    module = httpx._transports.default
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "create_ssl_context", cache(module.create_ssl_context))
        yield
