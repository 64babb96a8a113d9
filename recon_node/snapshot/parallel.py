"""Requests at once, from threads that a process need not wait for when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

K = TypeVar("K")
T = TypeVar("T")

CONCURRENT: Final = 16
"""Requests at once."""


def in_parallel(work: Callable[[K], T], items: Sequence[K]) -> list[T]:
    """Return what `work` returns for each item, in order, from `CONCURRENT` threads.

    Daemon threads: a store that does not answer must not keep a process from ending, as the
    threads of an executor would.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    source, lock = iter(enumerate(items)), threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                at, item = next(source, (-1, None))
            if item is None:
                return
            try:
                results[at] = work(item)
            except BaseException as error:  # raised by the caller
                errors.append(error)

    threads = [
        threading.Thread(target=run, daemon=True, name="snapshot")
        for _ in range(min(CONCURRENT, len(items)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(items))]
