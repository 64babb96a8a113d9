"""Runs a trio program in virtual time so that the same seed gives the same run."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog
import trio
from trio._core import _run
from trio.testing import MockClock

T = TypeVar("T")

_FEW_COLLECTIONS: Final = (200_000, 50, 1000)
"""Garbage collection looks at everything that a thousand nodes have in memory."""
_SILENT: Final = logging.CRITICAL


def run(seed: int, main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a program in virtual time, with everything random drawn from a seed. Logs are dropped."""
    with _seeded(seed), _quiet(), _patient_collector():
        return trio.run(main, *args, clock=MockClock(autojump_threshold=0))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed Python's random numbers, and the order in which trio runs tasks.

    trio shuffles the tasks that are ready. Hypothesis sets the same switch, so that the shuffles of
    a run depend on nothing but the seed.
    """
    scheduler: Any = _run
    ours, theirs = random.getstate(), scheduler._r.getstate()
    was_deterministic = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(seed)
    scheduler._r.seed(seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        random.setstate(ours)
        scheduler._r.setstate(theirs)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = was_deterministic


@contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _patient_collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_FEW_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
