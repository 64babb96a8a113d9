"""docs/architecture.md: the files that it names exist, and its journeys are those of real runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from benchmarks.journeys.routes import travel
from recon_node import testnet

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
_JOURNEY = re.compile(r"```\n([^\n]+): (\d+) files\n(.*?)```", re.DOTALL)
ROOMS = ("recon_node", "spark_sink", "tests")
APART = 2
"""Files by which two runs may differ: some things are done once in a while."""


def listed() -> dict[str, set[str]]:
    return {name: set(_paths(lines)) for name, _, lines in _JOURNEY.findall(PAGE)}


def _paths(lines: str) -> Iterator[str]:
    for line in lines.splitlines():
        folder, *names = line.split()
        for name in names:
            room = "" if folder.startswith("spark_sink/") else "recon_node"
            yield (Path(room) / folder / f"{name}.py").as_posix()


def test_every_file_that_is_named_exists() -> None:
    files = [path.as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    named = set(re.findall(r"`([a-z0-9_/]+\.py)`", PAGE)).union(*listed().values())
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert missing == set()


@pytest.mark.parametrize(("name", "number", "lines"), _JOURNEY.findall(PAGE))
def test_the_number_is_that_of_the_files(name: str, number: str, lines: str) -> None:
    assert int(number) == len(set(_paths(lines))), name


@pytest.mark.long
def test_the_journeys_are_those_of_real_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testnet, "Popen", Popen)  # the tracer begins when Python starts
    journeys = travel(tables=False)
    for journey, name in zip(journeys, ("recon/1.2.0 message", "CAR", "merge"), strict=True):
        assert len(listed()[name].symmetric_difference(journey.files)) <= APART, name
