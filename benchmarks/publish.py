"""Puts benchmark results into the documentation: tables into a page, plots beside it.

    python -m benchmarks.publish benchmarks/results/*.json --out docs

The page is DIR/benchmarks.md. Its text is written by hand; what stands between a line
`<!-- NAME -->` and the next `<!-- end -->` is replaced by the table of that name, if the results
have it: machine, ratios, reconcile, round-trips, key-store, large-sets, admission, nodes, spark,
real-nodes, real-wire. Plots go to DIR/plots. Rows of other benchmarks are passed over.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.plots import (
    in_order,
    plot_admission,
    plot_key_store,
    plot_reconcile,
    plot_round_trips,
    plot_spark,
    show_bytes,
    show_number,
    show_seconds,
)
from benchmarks.report import Row, progress, read_rows

_REFERENCE: Final = "recon/1.2.0"
_KEY_STORE_COLUMNS: Final = {
    "bulk_load_us": "bulk load, µs a key",
    "insert_us": "insert, µs",
    "range_hash_us": "range hash, µs",
    "middle_us": "middle, µs",
    "split16_us": "split into 16, µs",
    "bytes_per_key": "bytes a key",
}
_LARGE_SET_COLUMNS: Final = {
    "load_cpu_s": "to load, s of CPU",
    "again_cpu_s": "with both sums, s of CPU",
    "bytes_per_key": "bytes a key",
    "unpacked_per_key": "each key read",
    "hash_us": "range hash, µs: first",
    "hash_again_us": "again",
    "insert_us": "insert, µs: first",
    "insert_again_us": "again",
    "sketch_s": "sketch, s",
    "lthash_s": "LtHash, s",
    "session_ms": "a session, ms",
    "start_s": "start of a node, s",
    "killed_start_s": "after SIGKILL, s",
    "node_mb": "its memory, MB",
}
_NODE_COLUMNS: Final = {
    "times": "times",
    "per_s": "a second",
    "cpu_us": "CPU of the node, µs",
    "ms": "median, ms",
    "ms_99": "99th percentile, ms",
    "cpu_%": "CPU of the node, % of a core",
}


class PublishError(Exception):
    """The results or the page cannot be used; the text says why."""


def publish(rows: Sequence[Row], docs: Path) -> None:
    """Write the plots and tables of the rows to a documentation folder."""
    page = docs / "benchmarks.md"
    if not page.is_file():
        raise PublishError(f"there is no page {page} to put the tables into")
    plots = docs / "plots"
    plots.mkdir(exist_ok=True)
    round_trips = [row for row in rows if "rtt_ms" in row]
    reconcile = [row for row in rows if "placement" in row and "rtt_ms" not in row]
    key_store = [row for row in rows if "bulk_load_us" in row]
    spark = [row for row in rows if "latency_p50_ms" in row]
    large_sets = [row for row in rows if "load_cpu_s" in row]
    admission = [row for row in rows if "verifier_cpu_us" in row]
    nodes = [row for row in rows if "what" in row]
    real_nodes = [row for row in rows if "measure" in row]
    real_wire = [row for row in rows if "messages" in row]
    published = [*reconcile, *round_trips, *key_store, *large_sets, *admission, *nodes, *spark]
    published += [*real_nodes, *real_wire]
    tables = {"machine": "; ".join(in_order(row["machine"] for row in published))}
    if reconcile:
        plot_reconcile(reconcile, plots)
        tables["ratios"] = ratio_table(reconcile)
        tables["reconcile"] = reconcile_tables(reconcile)
    if round_trips:
        plot_round_trips(round_trips, plots)
        tables["round-trips"] = round_trip_table(round_trips)
    if key_store:
        plot_key_store(key_store, plots)
        tables["key-store"] = key_store_table(key_store)
    if large_sets:
        tables["large-sets"] = columns_table("keys", large_sets, _LARGE_SET_COLUMNS)
    if admission:
        plot_admission(admission, plots)
        tables["admission"] = admission_table(admission)
    if nodes:
        tables["nodes"] = columns_table("what", nodes, _NODE_COLUMNS)
    if spark:
        plot_spark(spark, plots)
        tables["spark"] = spark_table(spark)
    if real_nodes:
        tables["real-nodes"] = real_nodes_table(real_nodes)
    if real_wire:
        tables["real-wire"] = real_wire_table(real_wire)
    page.write_text(fill(page.read_text(), tables))


def fill(text: str, tables: Mapping[str, str]) -> str:
    """Put tables between their markers.

    Raises PublishError where the text has no place for one.
    """
    for name, table in tables.items():
        begin = f"<!-- {name} -->"
        place = re.search(rf"{re.escape(begin)}\n.*?<!-- end -->", text, re.DOTALL)
        if not place:
            raise PublishError(f"the page has no line {begin} with a line <!-- end --> after it")
        filled = f"{begin}\n{table}\n<!-- end -->"
        text = text[: place.start()] + filled + text[place.end() :]
    return text


def reconcile_tables(rows: Sequence[Row]) -> str:
    """Return a table for each size and measure."""
    parts = []
    for size in sorted({row["keys"] for row in rows}, reverse=True):
        own = [row for row in rows if row["keys"] == size]
        parts += [
            f"### {size:,} keys",
            "**Round trips**",
            pivot(own, _differences, _show("rounds", show_number), "rounds"),
            "**Bytes** (sent + received by the initiator)",
            pivot(own, _differences, _bytes_each_way, "bytes"),
            "**CPU time**, both sides",
            pivot(own, _differences, _show("cpu_s", show_seconds), "cpu_s"),
        ]
    return "\n\n".join(parts)


def ratio_table(rows: Sequence[Row]) -> str:
    """Return the bytes of each system at the largest size, as multiples of recon/1.2.0's."""
    size = max(row["keys"] for row in rows)
    own = [row for row in rows if row["keys"] == size]
    reference = {_differences(row): row["bytes"] for row in own if row["system"] == _REFERENCE}
    ratios = [{**row, "ratio": row["bytes"] / reference[_differences(row)]} for row in own]
    return pivot(ratios, _differences, lambda row: f"{_two_digits(row['ratio'])} x", "ratio")


def _two_digits(number: float) -> str:
    return f"{number:.2g}" if number < 99.5 else f"{float(f'{number:.2g}'):.0f}"


def round_trip_table(rows: Sequence[Row]) -> str:
    """Return the seconds of each system, a line for each difference and round-trip time."""

    def label(row: Row) -> str:
        return f"{row['differences']:,} at {row['rtt_ms']} ms"

    return pivot(rows, label, _show("seconds", show_seconds), "seconds")


def key_store_table(rows: Sequence[Row]) -> str:
    """Return a line for each design and size."""
    head = ["store", "keys", *_KEY_STORE_COLUMNS.values()]
    lines = [
        [row["system"], f"{row['keys']:,}", *(show_number(row[key]) for key in _KEY_STORE_COLUMNS)]
        for row in rows
    ]
    return _table(head, lines)


def columns_table(name: str, rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Return a line for each row, which the column `name` names, with those columns."""
    lines = [
        [
            f"{row[name]:,}" if isinstance(row[name], int) else row[name],
            *("" if row.get(column) is None else show_number(row[column]) for column in columns),
        ]
        for row in rows
    ]
    return _table([name, *columns.values()], lines)


def admission_table(rows: Sequence[Row]) -> str:
    """Return a line for each source and way to check: its rate, and what an event costs."""
    head = ["source", "verifiers", "native core", "events/s", "CPU of the node, µs an event"]
    head.append("of the verifiers, µs")
    lines = [
        [
            row["source"],
            str(row["verifiers"]),
            "" if row["native"] == "off" else "yes",
            show_number(row["events_per_s"]),
            show_number(row["node_cpu_us"]),
            show_number(row["verifier_cpu_us"]) if row["verifier_cpu_us"] else "",
        ]
        for row in rows
    ]
    return _table(head, lines)


def spark_table(rows: Sequence[Row]) -> str:
    """Return a line for each run of the pipeline."""

    def show(value: float | None) -> str:
        return "" if value is None else show_number(value)

    head = ["table", "events", "streams", "rows/s", "once it runs", "CPU µs a row", "p50, ms"]
    head.append("p90, ms")
    lines = [
        [
            row["table"],
            f"{row['events']:,}",
            f"{row['streams']:,}",
            show(row["rows_per_s"]),
            show(row.get("steady_rows_per_s")),
            show(row["rows_per_s"] and 1e6 * row["cpu_s"] / row["events"]),
            show(row["latency_p50_ms"]),
            show(row["latency_p90_ms"]),
        ]
        for row in rows
    ]
    return _table(head, lines)


def real_nodes_table(rows: Sequence[Row]) -> str:
    """Return a line for each run against real nodes."""
    head = ["", "events", "seconds", "events/s", "bytes an event", "CPU, s", "sender's CPU, s"]
    head += ["memory, MB", "load"]
    lines = [
        [
            f"{row['from']} to {row['to']}",
            f"{row['events']:,}",
            show_number(row["seconds"]),
            show_number(row["events_per_s"]),
            show_number(row["bytes"] / row["events"]) if row["bytes"] else "",
            show_number(row["cpu_s"]),
            show_number(row["sender_cpu_s"]) if row["sender_cpu_s"] else "",
            show_number(row["memory_mb"]),
            show_number(row["load"]),
        ]
        for row in rows
    ]
    return _table(head, lines)


def real_wire_table(rows: Sequence[Row]) -> str:
    """Return a line for each number of differences: what passed, simulated and real."""
    systems = in_order(row["system"] for row in rows)
    cases = in_order(f"{row['differences']:,} of {row['keys']:,}" for row in rows)
    lines = []
    for case in cases:
        own = [row for row in rows if f"{row['differences']:,} of {row['keys']:,}" == case]
        shown = (
            f"{row['messages']:,} ({row['bytes_sent']:,} + {row['bytes_received']:,})"
            for row in own
        )
        lines.append([case, *shown])
    return _table(["differences", *systems], lines)


def pivot(
    rows: Sequence[Row], label: Callable[[Row], str], cell: Callable[[Row], str], measure: str
) -> str:
    """Return a table with one column per system; the smallest value of each row is bold."""
    systems = in_order(row["system"] for row in rows)
    lines = []
    for name in in_order(map(label, rows)):
        own = {row["system"]: row for row in rows if label(row) == name}
        least = min(row[measure] for row in own.values())
        cells = []
        for system in systems:
            row = own.get(system)
            text = cell(row) if row else ""
            cells.append(f"**{text}**" if row and row[measure] == least else text)
        lines.append([name, *cells])
    return _table(["differences", *systems], lines)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def _differences(row: Row) -> str:
    return f"{row['differences']:,} {row['placement']}" if row["differences"] else "0"


def _show(column: str, show: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: show(row[column])


def _bytes_each_way(row: Row) -> str:
    sent, received = show_bytes(row["bytes_sent"]), show_bytes(row["bytes_received"])
    return f"{show_bytes(row['bytes'])} ({sent} + {received})"


def main() -> None:
    """Publish from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="JSON results")
    parser.add_argument("--out", type=Path, default=Path("docs"), metavar="DIR")
    options = parser.parse_args()
    try:
        publish(read_rows(options.results), options.out)
    except PublishError as error:
        raise SystemExit(f"not published: {error}") from None
    progress(f"wrote {options.out / 'benchmarks.md'} and {options.out / 'plots'}")


if __name__ == "__main__":
    main()
