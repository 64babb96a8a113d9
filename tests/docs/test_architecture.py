"""The code, and the pages about it: files that they name exist, journeys are those of real runs."""

import re
from graphlib import TopologicalSorter
from pathlib import Path
from subprocess import Popen

import grimp
import pytest

from benchmarks.journeys.routes import stated_journeys, travel
from recon_node import testnet

ROOT = Path(__file__).parents[2]
NAMES = ("architecture.md", "journeys.md", "syncing.md")
PAGES = [(ROOT / "docs" / name).read_text("utf-8") for name in NAMES]
JOURNEYS = stated_journeys()
PACKAGES = ("recon_node", "spark_sink", "tests")


def test_every_file_that_is_named_exists() -> None:
    files = [path.as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    listed = [paths for _, paths in JOURNEYS.values()]
    named = set(re.findall(r"`([a-z0-9_/]+\.py)`", "".join(PAGES))).union(*listed)
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert missing == set()


@pytest.mark.parametrize("name", JOURNEYS)
def test_the_number_is_that_of_the_files(name: str) -> None:
    number, files = JOURNEYS[name]
    assert number == len(files)


def test_files_do_not_import_each_other() -> None:
    """Nor does a file import itself through others; imports for types alone count, too."""
    graph = grimp.build_graph("recon_node", "spark_sink", "benchmarks", cache_dir=None)
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files


@pytest.mark.long
def test_the_journeys_are_those_of_real_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testnet, "Popen", Popen)  # the tracer begins when Python starts
    journeys = travel()
    assert [journey.name for journey in journeys] == list(JOURNEYS)
    for journey in journeys:
        assert journey.is_as_stated, (
            journey.name,
            journey.stated.symmetric_difference(journey.files),
        )
