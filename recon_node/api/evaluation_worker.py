"""A process that computes states and the like of streams: its requests are pickled functions.

It answers with a pickled pair: whether the call succeeded, and its result or error. Its memory is
limited; when it is used up, the process ends.
"""

import os
import pickle
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

import recon_node.api.routes.stream_events  # noqa: F401  # before the first request needs it
from recon_node.base.program import limit
from recon_node.processes.process import answer_requests

MEMORY: Final = 2 * 1024**3
"""Bytes of address space that are more than any answer takes."""
EXIT_MEMORY: Final = 71
"""The exit code when they are used up."""


def main() -> None:
    """Answer requests until standard input ends."""
    limit(resource.RLIMIT_AS, MEMORY)
    with suppress(OSError):  # if the machine runs out of memory, this process goes, not the node
        Path("/proc/self/oom_score_adj").write_text("1000")
    answer_requests(_answer)


def _answer(request: bytes) -> bytes:
    try:
        function = pickle.loads(request)
        del request
        return pickle.dumps((True, function()))
    except MemoryError:
        os._exit(EXIT_MEMORY)
    except Exception as error:
        return pickle.dumps((False, error))


if __name__ == "__main__":
    main()
