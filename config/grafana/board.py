"""Write the Grafana board: `python config/grafana/board.py > config/grafana/dashboards/recon.json`.

The board shows every metric of the node and of the pipeline (tests/e2e/test_observability.py). A
panel is one line here, so that a reader of a change sees what changed.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

Kind = Literal["timeseries", "stat", "table", "heatmap"]
_WIDTH: Final = 24
_HEIGHT: Final = 7


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries, each with its legend, in one frame."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8


def node(name: str, *matchers: str) -> str:
    """Return the selector of a metric of the nodes that are chosen on the board."""
    return name + "{" + ",".join(['instance=~"$node"', *matchers]) + "}"


def pipeline(name: str) -> str:
    """Return the selector of a metric of the pipelines that are chosen on the board."""
    return f'{name}{{instance=~"$pipeline"}}'


def rate(name: str, by: str, *matchers: str) -> str:
    """Return the rate per second of a node's counter, by node and further labels."""
    labels = ", ".join(filter(None, ["instance", by]))
    return f"sum by ({labels}) (rate({node(name, *matchers)}[$__rate_interval]))"


def quantiles(name: str, by: str = "", legend: str = "", instance: str = "$node") -> dict[str, str]:
    """Return queries of the median and of the 99th percentile of a histogram."""
    labels = ", ".join(filter(None, ["le", by]))
    selector = f'{name}_bucket{{instance=~"{instance}"}}'
    rates = f"sum by ({labels}) (rate({selector}[$__rate_interval]))"
    return {
        f"histogram_quantile({q}, {rates})": f"{text} {legend}".strip()
        for q, text in ((0.5, "median"), (0.99, "99 %"))
    }


ROWS: Final[dict[str, list[Panel]]] = {
    "Nodes": [
        Panel("Nodes that answer", {'sum(up{job="recon-node"})': "nodes"}, kind="stat", width=4),
        Panel("Events", {f"max({node('recon_feed_head')})": "feed"}, kind="stat", width=4),
        Panel(
            "Versions",
            {node("recon_build_info"): "", pipeline("spark_sink_build_info"): ""},
            kind="table",
        ),
        Panel("Networks, epochs and peer ids", {node("recon_node_info"): ""}, kind="table"),
        Panel("Events by state", {node("recon_events"): "{{instance}} {{state}}"}),
        Panel("Feed", {node("recon_feed_head"): "{{instance}}"}),
        Panel("Peers", {node("recon_peers"): "{{instance}} {{state}}"}),
    ],
    "Syncing": [
        Panel(
            "Sessions",
            {
                rate("recon_session_duration_seconds_count", "role, outcome"): (
                    "{{instance}} {{role}} {{outcome}}"
                ),
                rate("recon_sessions_refused_total", ""): "{{instance}} refused",
            },
            "ops",
        ),
        Panel("Duration of sessions", quantiles("recon_session_duration_seconds"), "s"),
        Panel("Rounds", {rate("recon_rounds_total", ""): "{{instance}}"}, "ops"),
        Panel(
            "Traffic",
            {
                rate("recon_sync_bytes_total", "protocol, direction"): (
                    "{{instance}} {{protocol}} {{direction}}"
                )
            },
            "Bps",
        ),
        Panel(
            "Events of peers",
            {rate("recon_peer_events_total", "outcome"): "{{instance}} {{outcome}}"},
            "ops",
        ),
        Panel(
            "Keys that are left out, or unwanted",
            {
                rate("recon_keys_left_out_total", "by"): "{{instance}} left out by {{by}}",
                rate("recon_keys_unwanted_total", ""): "{{instance}} unwanted",
            },
            "ops",
        ),
    ],
    "Peers": [
        Panel(
            "Interests",
            {
                rate(
                    "recon_interest_statements_total", "direction"
                ): "{{instance}} {{direction}}/s",
                node("recon_peers_stating_interests"): "{{instance}} peers that have stated theirs",
            },
        ),
        Panel(
            "Discovery",
            {
                node("recon_rendezvous"): "{{instance}} rendezvous {{state}}",
                node("recon_rendezvous_found"): "{{instance}} found at {{at}}",
                node("recon_provider_records"): "{{instance}} provider records",
            },
        ),
        Panel(
            "Trouble with peers",
            {
                rate("recon_dials_failed_total", ""): "{{instance}} dials failed",
                rate("recon_peers_cut_off_total", ""): "{{instance}} cut off",
            },
            "ops",
        ),
        Panel(
            "Memory for peers",
            {
                node("recon_peer_memory_bytes"): "{{instance}} {{kind}}",
                node("recon_peer_memory_limit_bytes"): "{{instance}} limit",
            },
            "bytes",
        ),
    ],
    "Admission and log": [
        Panel(
            "Verdicts", {rate("recon_verdicts_total", "status"): "{{instance}} {{status}}"}, "ops"
        ),
        Panel("Duration of batches", quantiles("recon_admission_batch_duration_seconds"), "s"),
        Panel(
            "Batches",
            {
                rate("recon_admission_batch_duration_seconds_count", "outcome"): (
                    "{{instance}} {{outcome}}"
                )
            },
            "ops",
        ),
        Panel(
            "Damage",
            {
                node("recon_damaged_events"): "{{instance}} damaged",
                node("recon_mended_events_total"): "{{instance}} mended since the start",
                node("recon_unprocessed_streams"): "{{instance}} streams set aside",
            },
        ),
        Panel(
            "Failures of the write policy",
            {rate("recon_policy_failures_total", ""): "{{instance}}"},
            "ops",
        ),
        Panel(
            "Free disk",
            {
                node("recon_disk_free_bytes"): "{{instance}}",
                node("recon_disk_keep_free_bytes"): "{{instance}}: kept free of peers' events",
            },
            "bytes",
        ),
    ],
    "Anchors and snapshots": [
        Panel(
            "Pending",
            {
                node("recon_pending_proofs"): "{{instance}} proofs",
                node("recon_events", 'state="pending"'): "{{instance}} events",
            },
        ),
        Panel(
            "Lookups",
            {
                rate(
                    "recon_anchor_lookups_total", "chain, outcome"
                ): "{{instance}} {{chain}} {{outcome}}",
                rate(
                    "recon_rpc_failures_total", "chain"
                ): "{{instance}} {{chain}} requests without an answer",
            },
            "ops",
        ),
        Panel(
            "Duration of RPC requests",
            quantiles("recon_rpc_duration_seconds", "chain", "{{chain}}"),
            "s",
        ),
        Panel(
            "Snapshots by duration",
            {
                f"sum by (le) (increase({node('recon_snapshot_duration_seconds_bucket')}[1d]))": (
                    "{{le}}"
                )
            },
            "s",
            "heatmap",
        ),
        Panel(
            "Age of the last snapshot",
            {
                f"time() - ({node('recon_snapshot_last_success_timestamp_seconds')} > 0)": (
                    "{{instance}}"
                )
            },
            "s",
        ),
    ],
    "HTTP API": [
        Panel(
            "Requests",
            {
                rate("recon_http_request_duration_seconds_count", "path, status"): (
                    "{{instance}} {{path}} {{status}}"
                )
            },
            "reqps",
        ),
        Panel(
            "Duration of requests",
            quantiles("recon_http_request_duration_seconds", "path", "{{path}}"),
            "s",
        ),
        Panel(
            "Requests in progress",
            {node("recon_http_requests_in_progress"): "{{instance}}"},
            width=4,
        ),
        Panel(
            "Event loop held",
            {node("recon_event_loop_hold_seconds"): "{{instance}}"},
            "s",
            width=4,
        ),
    ],
    "Pipeline": [
        Panel("Lag", {pipeline("spark_sink_lag_events"): "{{instance}}"}),
        Panel(
            "Positions",
            {
                pipeline("spark_sink_position"): "{{instance}} {{table}}",
                pipeline("spark_sink_feed_head"): "{{instance}} feed",
            },
        ),
        Panel(
            "Rows",
            {
                'sum by (table) (rate(spark_sink_rows_total{instance=~"$pipeline"}'
                "[$__rate_interval]))": "{{table}}"
            },
            "rowsps",
        ),
        Panel(
            "Duration of batches",
            quantiles("spark_sink_batch_duration_seconds", instance="$pipeline"),
            "s",
        ),
        Panel(
            "Health",
            {
                pipeline("spark_sink_node_up"): "{{instance}} node answers",
                pipeline("spark_sink_takeovers_total"): "{{instance}} changes to another node",
                pipeline("spark_sink_streams_set_aside_total"): "{{instance}} streams set aside",
            },
        ),
        Panel(
            "Free disk",
            {pipeline("spark_sink_disk_free_bytes"): "{{instance}} tables"},
            "bytes",
        ),
    ],
    "Flight SQL": [
        Panel(
            "Calls",
            {
                "sum by (method, status) (rate(spark_sink_flight_call_duration_seconds_count"
                "[$__rate_interval]))": "{{method}} {{status}}"
            },
            "reqps",
        ),
        Panel(
            "Duration of calls",
            quantiles(
                "spark_sink_flight_call_duration_seconds", "method", "{{method}}", instance=".*"
            ),
            "s",
        ),
        Panel(
            "Running",
            {
                "spark_sink_flight_running": "{{instance}} {{kind}}",
                "spark_sink_flight_limit": "{{instance}} {{kind}}, at most",
            },
        ),
        Panel(
            "Bytes sent",
            {"rate(spark_sink_flight_sent_bytes_total[$__rate_interval])": "{{instance}}"},
            "Bps",
        ),
        Panel("Versions", {"spark_sink_flight_build_info": ""}, kind="table"),
    ],
    "Processes": [
        Panel(
            "CPU",
            {"rate(process_cpu_seconds_total[$__rate_interval])": "{{job}} {{instance}}"},
            "percentunit",
        ),
        Panel(
            "Memory",
            {
                "process_resident_memory_bytes": "{{job}} {{instance}} resident",
                "process_virtual_memory_bytes": "{{job}} {{instance}} virtual",
            },
            "bytes",
        ),
        Panel(
            "File descriptors",
            {
                "process_open_fds": "{{job}} {{instance}} open",
                "process_max_fds": "{{job}} {{instance}} limit",
            },
        ),
        Panel(
            "Time since the start",
            {"time() - process_start_time_seconds": "{{job}} {{instance}}"},
            "s",
        ),
    ],
}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_CHOICE_OF_SOURCE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}


def board() -> dict[str, Any]:
    """Return the board as Grafana reads it."""
    return {
        "uid": "recon",
        "title": "Recon",
        "tags": ["ceramic", "recon"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "templating": {
            "list": [
                _CHOICE_OF_SOURCE,
                _variable("node", "Node", "recon_build_info"),
                _variable("pipeline", "Pipeline", "spark_sink_build_info"),
            ]
        },
        "panels": _panels(),
    }


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, instance)"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, Any]]:
    """Return rows and panels, from left to right and from top to bottom."""
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        position = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        made.append({"type": "row", "title": title, "id": len(made) + 1, "gridPos": position})
        y, x = y + 1, 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                y, x = y + _HEIGHT, 0
            position = {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}
            made.append(_panel(panel, len(made) + 1, position))
            x += panel.width
        y += _HEIGHT
    return made


@cache
def _meanings() -> dict[str, str]:
    """Return what each metric means, by its name."""
    path = Path(__file__).parents[1] / "metrics_reference.py"
    reference = SimpleNamespace(**runpy.run_path(str(path)))
    found = {each.name: each.help for each in reference.all_families()}
    return {"up": "Whether Prometheus could read the metrics of the node.", **found}


def _description(panel: Panel) -> str:
    """Return what the metrics of a panel mean, which Grafana shows beside its title."""
    words = re.findall(r"\w+", " ".join(panel.queries))
    names = (re.sub("_(count|sum|bucket)$", "", word) for word in words)
    used = dict.fromkeys(name for name in names if name in _meanings())
    if len(used) == 1:
        return _meanings()[next(iter(used))]
    return "\n".join(f"- `{name}`: {_meanings()[name]}" for name in used)


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + n),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
            "instant": is_table or panel.kind == "stat",
            "range": not (is_table or panel.kind == "stat"),
            "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        }
        for n, (query, legend) in enumerate(panel.queries.items())
    ]
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": _description(panel),
        "gridPos": position,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
    if is_table:
        hidden = dict.fromkeys(("Time", "Value", "Value #A", "Value #B", "__name__", "job"), True)
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden}},
        ]
    return made


if __name__ == "__main__":
    sys.stdout.write(json.dumps(board(), indent=2) + "\n")
