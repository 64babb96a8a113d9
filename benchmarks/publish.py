"""Puts benchmark results into the documentation: tables into a page, plots beside it.

    python -m benchmarks.publish benchmarks/results/*.json --out docs

The page is DIR/benchmarks.md. Its text is written by hand; what stands between a line
`<!-- NAME -->` and the next `<!-- end -->` is replaced by the table of that name, if the results
have it: machine, ratios, reconcile, round-trips, key-store, large-sets, admission, nodes, spark,
real-nodes. Plots go to DIR/plots. Rows of other benchmarks are passed over.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

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
Cell = Callable[[Row], object]
Columns = Mapping[str, str | Cell]
"""Headings of columns, and what is below them: a column of the rows, or computed."""


class _Table(NamedTuple):
    of: str
    """The column that the rows of this table have, and no others."""
    columns: Columns
    plot: Callable[[Sequence[Row], Path], None] | None = None


_TABLES: Final = {
    "key-store": _Table(
        "bulk_load_us",
        {
            "store": "system",
            "keys": "keys",
            "bulk load, µs a key": "bulk_load_us",
            "insert, µs": "insert_us",
            "range hash, µs": "range_hash_us",
            "middle, µs": "middle_us",
            "split into 16, µs": "split16_us",
            "bytes a key": "bytes_per_key",
        },
        plot_key_store,
    ),
    "large-sets": _Table(
        "load_cpu_s",
        {
            "keys": "keys",
            "to load, s of CPU": "load_cpu_s",
            "with both sums, s of CPU": "again_cpu_s",
            "bytes a key": "bytes_per_key",
            "each key read": "unpacked_per_key",
            "first range hash, µs": "hash_us",
            "range hash again, µs": "hash_again_us",
            "first insert, µs": "insert_us",
            "insert again, µs": "insert_again_us",
            "sketch, s": "sketch_s",
            "LtHash, s": "lthash_s",
            "a session, ms": "session_ms",
            "start of a node, s": "start_s",
            "after SIGKILL, s": "killed_start_s",
            "its memory, MB": "node_mb",
        },
    ),
    "admission": _Table(
        "verifier_cpu_us",
        {
            "source": "source",
            "verifiers": "verifiers",
            "native core": lambda row: "" if row["native"] == "off" else "yes",
            "events/s": "events_per_s",
            "CPU of the node, µs an event": "node_cpu_us",
            "of the verifiers, µs": lambda row: row["verifier_cpu_us"] or None,
        },
        plot_admission,
    ),
    "nodes": _Table(
        "what",
        {
            "what": "what",
            "times": "times",
            "a second": "per_s",
            "CPU of the node, µs": "cpu_us",
            "median, ms": "ms",
            "99th percentile, ms": "ms_99",
            "CPU of the node, % of a core": "cpu_%",
        },
    ),
    "spark": _Table(
        "latency_p50_ms",
        {
            "table": "table",
            "events": "events",
            "streams": "streams",
            "rows/s": "rows_per_s",
            "CPU µs a row": lambda row: row["rows_per_s"] and 1e6 * row["cpu_s"] / row["events"],
            "p50, ms": "latency_p50_ms",
            "p90, ms": "latency_p90_ms",
        },
        plot_spark,
    ),
    "real-nodes": _Table(
        "measure",
        {
            "": lambda row: f"{row['from']} to {row['to']}",
            "events": "events",
            "seconds": "seconds",
            "events/s": "events_per_s",
            "bytes an event": lambda row: row["bytes"] / row["events"] if row["bytes"] else None,
            "CPU, s": "cpu_s",
            "sender's CPU, s": lambda row: row["sender_cpu_s"] or None,
            "memory, MB": "memory_mb",
            "load": "load",
        },
    ),
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
    plain = {name: [row for row in rows if table.of in row] for name, table in _TABLES.items()}
    published = chain(reconcile, round_trips, *plain.values())
    tables = {"machine": "; ".join(in_order(row["machine"] for row in published))}
    if reconcile:
        plot_reconcile(reconcile, plots)
        tables["ratios"] = ratio_table(reconcile)
        tables["reconcile"] = reconcile_tables(reconcile)
    if round_trips:
        plot_round_trips(round_trips, plots)
        tables["round-trips"] = round_trip_table(round_trips)
    for name, own in plain.items():
        if own:
            tables[name] = columns_table(own, _TABLES[name].columns)
            if (plot := _TABLES[name].plot) is not None:
                plot(own, plots)
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


def columns_table(rows: Sequence[Row], columns: Columns) -> str:
    """Return a line for each row, with these columns."""
    lines = [
        [_cell(row.get(cell) if isinstance(cell, str) else cell(row)) for cell in columns.values()]
        for row in rows
    ]
    return _table([*columns], lines)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return show_number(value)


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
