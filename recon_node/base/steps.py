"""Runs computations that are generators: they yield what they want, and return their result."""

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Want = TypeVar("Want")
Steps: TypeAlias = Generator[None, None, T]
"""A computation in steps of about a millisecond; between two of them, other tasks may run."""


def run_steps(
    steps: Generator[Want, Any, T], answer: Callable[[Want], object] = lambda wanted: None
) -> T:
    """Run a computation to its end, and return its result.

    `answer` is called with what it yields, and returns what it is sent: by default None.
    """
    reply = None
    while True:
        try:
            wanted = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = answer(wanted)
