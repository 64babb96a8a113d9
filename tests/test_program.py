"""What the programs of this package share."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from support.waiting import finished

from recon_node.base.program import collect_seldom


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generation of each collection that has ended, while a node's settings hold."""
    threshold, ended = gc.get_threshold(), list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            ended.append(info["generation"])

    gc.callbacks.append(note)
    try:
        collect_seldom()
        ended.clear()
        yield ended
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)


def test_a_batch_of_objects_is_made_without_collections(collections: list[int]) -> None:
    batch = [[number] for number in range(5_000)]
    assert collections == []
    del batch


def test_cycles_are_still_collected(collections: list[int]) -> None:
    for _ in range(400_000):
        cycle: list[object] = []
        cycle.append(cycle)
    assert len(collections) >= 5


def test_a_process_that_is_limited_further_starts() -> None:
    """As by LimitAS of systemd, or ulimit -v: no state of a stream could be computed."""
    worker = (
        f"ulimit -v 2000000 && {sys.executable} -m recon_node.api.evaluation_worker > /dev/null"
    )
    done = finished(["sh", "-c", worker], input="")
    assert (done.returncode, done.stderr) == (0, "")


def test_text_that_standard_output_cannot_encode_is_escaped() -> None:
    """Anybody may call a model what a terminal of Latin-1 does not have."""
    code = "from recon_node.base.terminal import ProgramGroup, echo\n"
    code += "ProgramGroup(callback=lambda: echo('日'), invoke_without_command=True)([])"
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    assert finished([sys.executable, "-c", code], env=env).stdout == "\\u65e5\n"
