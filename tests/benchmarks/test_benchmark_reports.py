"""The benchmarks as commands: the rows that they write, and the page made of them."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import publish, reconcile, round_trips
from benchmarks.contestants import CONTESTANTS
from benchmarks.plots import show_bytes, show_number, show_seconds
from benchmarks.report import read_rows, write_rows

NAMES = ["machine", "ratios", "reconcile", "round-trips", "key-store", "large-sets"]
NAMES += ["admission", "nodes", "spark", "real-nodes"]
PAGE = "# Benchmarks\n\n" + "\n\n".join(
    f"About {name}.\n\n<!-- {name} -->\nold\n<!-- end -->" for name in NAMES
)
SAMPLES = json.loads((Path(__file__).parents[1] / "data/benchmark_rows.json").read_text())
"""Rows of the benchmarks that take long, by the files that have them."""


def run_command(module, monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Rows of all benchmarks that are on the page, as their commands write them."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        arguments = ("--keys", "60,600", "--differences", "0,40", "--json")
        run_command(reconcile, patch, *arguments, folder / "reconcile.json")
        arguments = ("--keys", "600", "--differences", "0,40", "--rtt", "0,50", "--json")
        run_command(round_trips, patch, *arguments, folder / "round_trips.json")
    for name, rows in SAMPLES.items():
        write_rows(rows, folder / f"{name}.json")
    return folder


def test_reconcile_writes_a_row_for_every_case(results):
    rows = json.loads((results / "reconcile.json").read_text())
    cases = [(row["system"], row["keys"], row["differences"], row["placement"]) for row in rows]
    placements = [(0, "none"), (40, "scattered"), (40, "recent")]
    assert cases == [
        (system, keys, *case) for keys in (60, 600) for case in placements for system in CONTESTANTS
    ]
    for row in rows:
        assert row["bytes"] == row["bytes_sent"] + row["bytes_received"]
        assert row["rounds"] >= 1
        assert row["cpu_s"] > 0
        assert "Python" in row["machine"]


@pytest.mark.parametrize("text", ["", "1,,2", "-5"])
def test_options_that_are_not_numbers_are_refused(monkeypatch, capsys, text):
    with pytest.raises(SystemExit):
        run_command(reconcile, monkeypatch, f"--keys={text}")
    assert f"{text!r} is not a list of numbers like 0,1,100" in capsys.readouterr().err


def test_the_driver_takes_as_long_as_its_rounds(results):
    rows = json.loads((results / "round_trips.json").read_text())
    assert len(rows) == len(CONTESTANTS) * 2 * 2
    for row in rows:
        rtt = row["rtt_ms"] / 1000
        # The side that speaks last may be the initiator: half a round trip more.
        assert row["rounds"] * rtt <= row["waiting_s"] + 1e-9
        assert row["waiting_s"] <= (row["rounds"] + 0.5) * rtt + 1e-9
        assert row["seconds"] == pytest.approx(row["waiting_s"] + row["cpu_s"])


def test_the_page_gets_its_tables_and_plots(results, tmp_path):
    (tmp_path / "benchmarks.md").write_text(PAGE)
    of_another_benchmark = {"system": "other", "events": 5}
    rows = [of_another_benchmark, *read_rows(sorted(results.glob("*.json")))]
    publish.publish(rows, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "old" not in page
    assert all(f"About {name}." in page for name in NAMES)
    assert "### 600 keys" in page
    assert "| 40 recent |" in page
    assert "| 40 at 50 ms |" in page
    assert "| recon_node.KeyStore | 1,000 | 0.5 | 4 | 10 | 9 | 100 | 140 |" in page
    assert (
        "| 10,000,000 | 2 | 2.5 | 12 | 170 | 40 | 30 | 20 | 9 | 10 | 18 | 43 | 2.7 | 2.9 | 241 |"
        in page
    )
    assert "| peer | 0 | yes | 20,000 | 50 |  |" in page
    assert "| GET | 5,000 | 6,000 | 120 | 0.2 | 0.3 |  |" in page
    assert "| raw_events | 1,000 | 100 | 5,000 | 200 |  |  |" in page
    assert "| one event | 1,000 | 100 |  |  | 700 | 900 |" in page
    assert "| ceramic-one to recon-node | 1,000 | 10 | 100 | 1,234 | 2 | 3 | 150 |" in page
    plots = list((tmp_path / "plots").iterdir())
    assert {file.stem for file in plots} == {
        *("admission", "key-store", "round-trips", "spark", "reconcile-bytes", "reconcile-cpu"),
        *("reconcile-each-way", "reconcile-rounds"),
    }
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in plots)


def test_publishing_again_changes_nothing(results, tmp_path):
    (tmp_path / "benchmarks.md").write_text(PAGE)
    rows = read_rows([results / "key_store.json"])
    publish.publish(rows, tmp_path)
    first = (tmp_path / "benchmarks.md").read_text()
    publish.publish(rows, tmp_path)
    assert (tmp_path / "benchmarks.md").read_text() == first
    assert "<!-- reconcile -->\nold\n<!-- end -->" in first  # no rows, no change


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (None, "there is no page"),
        ("# Benchmarks\n", "no line <!-- machine -->"),
        ("<!-- machine -->\nno end", "with a line <!-- end --> after it"),
    ],
)
def test_a_page_without_places_is_refused(results, tmp_path, monkeypatch, page, message):
    if page is not None:
        (tmp_path / "benchmarks.md").write_text(page)
    with pytest.raises(SystemExit, match=message):
        run_command(publish, monkeypatch, results / "key_store.json", "--out", tmp_path)


def test_numbers_are_for_people():
    sizes = [show_bytes(size) for size in (87, 1357, 84_328, 5_900_000)]
    assert sizes == ["87 B", "1.36 KB", "84.3 KB", "5.9 MB"]
    times = [show_seconds(time) for time in (0.0005, 0.0123, 1.5, 608.4)]
    assert times == ["500 µs", "12.3 ms", "1.5 s", "608 s"]
    assert [show_number(number) for number in (5, 0.61, 3037, 148.2)] == [
        "5",
        "0.61",
        "3,037",
        "148",
    ]
