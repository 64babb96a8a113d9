"""The Grafana board, the alert rules and the reference of the metrics, against the code."""

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.waiting import finished

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
BOARD = CONFIG / "grafana" / "dashboards" / "recon.json"
ALERTS = CONFIG / "prometheus" / "alerts.yml"
REFERENCE = runpy.run_path(str(CONFIG / "metrics_reference.py"))
FAMILIES = {
    family.name: family
    for part in ("process_families", "sink_families", "flight_families")
    for family in REFERENCE[part]()
} | {family.name: family for family in REFERENCE["FAMILIES"]}
EVERYWHERE = {"instance", "job", "le"}
"""Labels that Prometheus adds to every metric, or to a histogram's buckets."""


def metrics_in(expression: str) -> dict[str, set[str]]:
    """The metrics that an expression of PromQL reads, each with the labels of its selector."""
    used: dict[str, set[str]] = {}
    pattern = r"\b((?:recon|spark_sink|process)_\w+)(?:\{([^}]*)\})?"
    for name, matchers in re.findall(pattern, expression):
        stem = re.sub(r"_(bucket|sum|count)$", "", name)
        is_histogram = stem in FAMILIES and FAMILIES[stem].kind == "histogram"
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        used.setdefault(stem if is_histogram else name, set()).update(labels)
    return used


def board_expressions() -> list[str]:
    board = json.loads(BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(expressions: list[str]) -> set[str]:
    """Raise unless the metrics and their labels exist; return the metrics."""
    used = set()
    for expression in expressions:
        for name, labels in metrics_in(expression).items():
            assert name in FAMILIES, f"{name} is not a metric: {expression}"
            unknown = labels - EVERYWHERE - set(FAMILIES[name].labels)
            assert not unknown, f"{name} has no label {unknown}: {expression}"
            used.add(name)
    return used


def test_the_board_shows_every_metric() -> None:
    assert check(board_expressions()) == set(FAMILIES)


def test_every_panel_says_what_its_metrics_mean() -> None:
    for panel in json.loads(BOARD.read_text())["panels"]:
        if panel["type"] != "row":
            used = set().union(*(metrics_in(target["expr"]) for target in panel["targets"]))
            means = [FAMILIES[name].help for name in used if name in FAMILIES]
            assert all(words in panel["description"] for words in means), panel["title"]
            assert panel["description"]


def test_the_legends_distinguish_nodes() -> None:
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", []) if panel["type"] == "timeseries" else []:
            grouped = re.search(r" by \(([^)]*)\)", target["expr"])
            labels = set(grouped[1].split(", ")) - {"le"} if grouped else {"instance"}
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= named, panel["title"]


def test_the_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_alerts_read_metrics_that_exist() -> None:
    used = check([rule["expr"] for rule in rules()])
    assert used >= {"recon_peers", "recon_events", "spark_sink_lag_events"}
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_names_follow_the_conventions() -> None:
    for family in FAMILIES.values():
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not re.search(r"_(ms|millis|kb|mb|count|sum|bucket)\b", family.name)
        assert "seconds" in family.name or family.kind != "histogram", family.name
        assert family.help.endswith(".")


def test_the_reference_is_up_to_date() -> None:
    page = REFERENCE["PAGE"].read_text(encoding="utf-8")
    assert REFERENCE["filled_in"](page) == page, "run config/metrics_reference.py"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_its_configuration_and_the_alerts_fire() -> None:
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = finished(["promtool", *arguments], cwd=CONFIG / "prometheus")
        assert done.returncode == 0, done.stdout + done.stderr
