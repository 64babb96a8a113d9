"""Python's garbage collection, for work that makes very many objects and no cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch off the search for cycles, which looks at all objects again and again.

    Objects that are in no cycle are freed as always.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
