"""Several sources, and syncs that are interrupted."""

import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from snapshot_support import create, events, make_log, sync
from support import forking

from recon_node.snapshot.objects import Objects
from recon_node.snapshot.packs import pack_name

EVENTS = 400
CHILD = Path(__file__).parent / "sync_child.py"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("log")
    make_log(data_dir, events(EVENTS, seed=20))
    return data_dir


def write(log: Path, url: Path) -> list[str]:
    """Write a snapshot; return the names of its packs."""
    made = create(log, Objects.open(str(url), make=True))
    return [pack_name(cid) for cid, _ in made.root.manifest.packs]


def test_further_sources_are_read_only_as_far_as_they_are_needed(log: Path, tmp_path: Path) -> None:
    urls = [tmp_path / name for name in "abc"]
    for url in urls:
        write(log, url)
    report, count = sync(tmp_path / "node", *urls)
    assert report.is_whole
    assert count == EVENTS
    assert report.synced.counts == {"new": EVENTS}  # no event was fetched twice
    first, *others = (source.received for source in report.sources)
    assert max(others) < first / 4  # their root objects, which the first one's events equal


def test_sources_fill_each_others_gaps(log: Path, tmp_path: Path) -> None:
    urls = [tmp_path / name for name in ("a", "b", "none", "broken")]
    a, b = write(log, urls[0]), write(log, urls[1])
    assert a == b
    event_packs = [name for name in a if (urls[0] / name).read_bytes()[1:].startswith(b"\xa2")]
    assert len(event_packs) > 3
    for at, name in enumerate(event_packs):
        (urls[at % 2] / name).unlink()
    urls[3].mkdir()
    (urls[3] / "latest.car").write_bytes(b"something else")
    report, count = sync(tmp_path / "node", *urls)
    assert count == EVENTS
    assert not report.is_whole
    assert [source.error is None for source in report.sources] == [True, True, False, False]
    assert "does not exist" in str(report.sources[2].error)
    assert "not a root object" in str(report.sources[3].error)
    faults = list(map(str, report.synced.faults))
    assert all("is missing" in fault for fault in faults)
    for name in event_packs:
        assert any(name in fault for fault in faults) or len(event_packs) > len(faults)


def test_a_killed_sync_is_continued(log: Path, tmp_path: Path) -> None:
    """Kill -9 once some events were admitted, and once before any were."""
    write(log, tmp_path / "url")
    command = [sys.executable, str(CHILD), str(tmp_path / "node"), str(tmp_path / "url")]
    for after in (3, 1):
        killed = forking.run([*command, str(after)])
        assert killed.returncode == -signal.SIGKILL
    done = forking.run([*command, "0"], stdout=PIPE)
    assert 0 < int(done.stdout) < EVENTS  # those that were admitted are not fetched again
    report, count = sync(tmp_path / "node", tmp_path / "url")
    assert count == EVENTS
    assert report.synced.counts == {}
