"""Write the tables of docs/metrics.md from the code: `python config/metrics_reference.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from recon_node.api.metrics.catalogue import FAMILIES, Family
from spark_sink.run.metrics import SinkMetrics
from spark_sink.serve.flight_server import FlightMetrics
from spark_sink.serve.query_turns import QueryLimits

PAGE: Final = Path(__file__).parents[1] / "docs" / "metrics.md"


def process_families() -> list[Family]:
    """Return the metrics of a process, which `prometheus_client` measures."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return list(_families(registry.collect()))


def sink_families() -> list[Family]:
    """Return the metrics of the pipeline itself."""
    metrics = SinkMetrics()
    metrics.rows.labels("raw_events")
    metrics.reached({"raw_events": 0}, 0)
    return _own_families(metrics.registry)


def flight_families() -> list[Family]:
    """Return the metrics of the Flight SQL server itself."""
    metrics = FlightMetrics(QueryLimits())
    metrics.watch(lambda: 0, lambda: 0)
    metrics.calls.labels("DoGet", "OK")
    return _own_families(metrics.registry)


def _own_families(registry: CollectorRegistry) -> list[Family]:
    found = _families(registry.collect())
    return [each for each in found if not each.name.startswith("process_")]


def _families(metrics: Iterable[Metric]) -> Iterator[Family]:
    for metric in metrics:
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = tuple(label for label in metric.samples[0].labels if label != "le")
        yield Family(metric.type, name, metric.documentation, labels)


def table(families: Iterable[Family]) -> str:
    """Return a table in Markdown."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for each in families:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines)


def filled_in(page: str) -> str:
    """Return the page with the tables as they follow from the code."""
    tables = {
        "node": FAMILIES,
        "pipeline": sink_families(),
        "flight": flight_families(),
        "process": process_families(),
    }
    for name, families in tables.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        pattern = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
        page, found = re.subn(pattern, lambda _: table(families), page, flags=re.DOTALL)  # noqa: B023
        assert found == 1, f"{PAGE} has no place for the metrics of the {name}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
