"""Plots of benchmark rows. A system has the same colour in all of them.

Functions import matplotlib, since that takes half a second in each process that collects the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS: Final = {
    "recon/1.2.0": "#CC79A7",
    "recon/1.0.0": "#56B4E9",
    "recon/1.0.0, 8 MiB": "#009E73",
    "negentropy": "#D55E00",
    "recon/0.1.0": "#555555",
    "recon_node.KeyStore": "#0072B2",
}
_MARKERS: Final = {
    "recon/1.2.0": "^",
    "recon/1.0.0": "s",
    "negentropy": "D",
}
_OTHER_COLOUR: Final = "#999999"
_STYLE: Final[dict[Any, Any]] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}
_LEGEND_WIDTH: Final = 9.5
_PLACEMENTS: Final = ("scattered", "recent")
_KEY_STORE_PANELS: Final = {
    "bulk_load_us": "bulk load, µs a key",
    "insert_us": "insert, µs",
    "range_hash_us": "range hash, µs",
    "middle_us": "middle of a range, µs",
    "split16_us": "split into 16, µs",
    "bytes_per_key": "memory, bytes a key",
}


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, in the order in which they come first."""
    return list(dict.fromkeys(values))


def show_bytes(size: float, _: object = None) -> str:
    """Format a number of bytes."""
    for unit, factor in (("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def show_seconds(seconds: float, _: object = None) -> str:
    """Format a time."""
    if seconds >= 1:
        return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def show_number(number: float, _: object = None) -> str:
    """Format a count, or a number with a unit."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def plot_reconcile(rows: Sequence[Row], folder: Path) -> None:
    """Draw rounds, bytes and CPU time over the differences, one panel per size and placement."""
    sizes = sorted({row["keys"] for row in rows})
    for name, column, show in (
        ("rounds", "rounds", show_number),
        ("bytes", "bytes", show_bytes),
        ("cpu", "cpu_s", show_seconds),
    ):
        with _grid(folder / f"reconcile-{name}.png", len(_PLACEMENTS), len(sizes)) as axes:
            for line, placement in enumerate(_PLACEMENTS):
                for panel, size in zip(axes[line], sizes, strict=True):
                    _plot_differences(panel, _of(rows, size, placement), column)
                    panel.set_title(f"{size:,} keys, {placement}")
            _label(axes, "differences", show)
    each_way = {
        "bytes_sent": "sent by the initiator",
        "bytes_received": "received by the initiator",
    }
    with _grid(folder / "reconcile-each-way.png", len(_PLACEMENTS), len(each_way)) as axes:
        for line, placement in enumerate(_PLACEMENTS):
            for panel, (column, title) in zip(axes[line], each_way.items(), strict=True):
                _plot_differences(panel, _of(rows, sizes[-1], placement), column)
                panel.set_title(f"{title}: {sizes[-1]:,} keys, {placement}")
        _label(axes, "differences", show_bytes)


def plot_round_trips(rows: Sequence[Row], folder: Path) -> None:
    """Draw the time of a reconciliation over the round-trip time, one panel per number of keys."""
    numbers = sorted({row["differences"] for row in rows})
    with _grid(folder / "round-trips.png", 1, len(numbers)) as axes:
        for panel, number in zip(axes[0], numbers, strict=True):
            chosen = [row for row in rows if row["differences"] == number]
            _plot_lines(panel, chosen, "rtt_ms", "seconds")
            panel.set_title(f"{chosen[0]['keys']:,} keys, differences: {number:,}")
        _label(axes, "round-trip time, ms", show_seconds)


def plot_key_store(rows: Sequence[Row], folder: Path) -> None:
    """Draw a panel of bars for each operation of the key store, at the largest size."""
    largest = max(row["keys"] for row in rows)
    chosen = [row for row in rows if row["keys"] == largest][::-1]
    height = 1 + 0.28 * len(chosen)
    with _grid(folder / "key-store.png", 2, 3, height=height, legend=False, sharex=False) as axes:
        for panel, (column, title) in zip(chain(*axes), _KEY_STORE_PANELS.items(), strict=True):
            _plot_bars(panel, chosen, "system", column)
            panel.set_title(title)
        axes[0][0].figure.suptitle(f"{largest:,} keys; logarithmic, shorter is better")


_STAGES: Final = ("parse", "verify", "log")


def plot_admission(rows: Sequence[Row], folder: Path) -> None:
    """Draw the rate of each source, with and without the native core; as lines, what single checks
    of signatures and the log alone would allow."""
    alone = {row["source"]: row["events_per_s"] for row in rows if row["source"] in _STAGES}
    apart = (*_STAGES, "api, one by one")
    chosen = [row for row in rows if row["verifiers"] == 0 and row["source"] not in apart]
    sources = in_order(row["source"] for row in chosen)
    with _grid(folder / "admission.png", 1, 1, height=3.4, legend=False) as axes:
        panel = axes[0][0]
        for place, (native, label) in enumerate((("off", "Python"), ("auto", "native core"))):
            own = [row for row in chosen if row["native"] == native]
            at = [sources.index(row["source"]) + 0.38 * place - 0.19 for row in own]
            bars = panel.bar(at, [row["events_per_s"] for row in own], 0.36, label=label)
            panel.bar_label(bars, [show_number(row["events_per_s"]) for row in own], fontsize=8)
        for stage, style in (("verify", "--"), ("log", ":")):
            if stage in alone:
                limit = f"`{stage}` alone, one core: {show_number(alone[stage])}"
                panel.axhline(alone[stage], color="#333333", linestyle=style, label=limit)
        panel.set_xticks(range(len(sources)), sources)
        panel.set_title("Signed events a second into one node, no verifiers")
        panel.legend(loc="center right", fontsize=8, frameon=True)


def plot_spark(rows: Sequence[Row], folder: Path) -> None:
    """Draw a bar for each table: rows per second, and CPU time per row."""
    chosen = [
        {
            "label": f"{row['table']}, {row['events']:,} events",
            "rows_per_s": row["rows_per_s"],
            "cpu_us": 1e6 * row["cpu_s"] / row["events"],
        }
        for row in rows[::-1]
        if row["rows_per_s"] is not None
    ]
    panels = {"rows_per_s": "rows a second", "cpu_us": "CPU time of the pipeline, µs a row"}
    height = 1 + 0.28 * len(chosen)
    with _grid(folder / "spark.png", 1, 2, height=height, legend=False, sharex=False) as axes:
        for panel, (column, title) in zip(axes[0], panels.items(), strict=True):
            _plot_bars(panel, chosen, "label", column)
            panel.set_title(title)
        axes[0][0].figure.suptitle("The Spark pipeline; logarithmic")


_SOAK_PANELS: Final = {
    "a batch, s": {"seconds": "until its last commit"},
    "CPU time of a batch, s": {"cpu_s": "of the pipeline"},
    "disk, MB": {"live_mb": "live", "kept_mb": "older versions", "other_mb": "logs"},
    "memory, MB": {
        "java_mb": "Java",
        "driver_mb": "driver",
        "workers_mb": "other Python",
        "node_mb": "node",
    },
}


def plot_soak(rows: Sequence[Row], file: Path) -> None:
    """Draw what each batch took and left behind; the disk stacked, with three times live."""
    with _grid(file, 2, 2, legend=False, sharey=False) as axes:
        for panel, (title, columns) in zip(chain(*axes), _SOAK_PANELS.items(), strict=True):
            plotted = [row for row in rows if columns.keys() <= row.keys()]
            batches = [row["batch"] for row in plotted]
            values = [[row[column] for row in plotted] for column in columns]
            if "live_mb" in columns:
                panel.stackplot(batches, *values, labels=columns.values())
                panel.plot(batches, [3 * live for live in values[0]], "k--", label="3 x live")
            else:
                style = "." if len(columns) == 1 else "-"
                for line, label in zip(values, columns.values(), strict=True):
                    panel.plot(batches, line, style, markersize=2, label=label)
            panel.set_title(title)
            panel.set_ylim(bottom=0)
            panel.legend(loc="upper left", fontsize=8)
        for panel in axes[-1]:
            panel.set_xlabel("batches")


def _plot_bars(panel: Axes, rows: Sequence[Row], name: str, column: str) -> None:
    """Draw one bar per row, labelled with its value."""
    values = [row[column] for row in rows]
    colours = [_COLOURS.get(row.get("system", ""), _OTHER_COLOUR) for row in rows]
    bars = panel.barh([row[name] for row in rows], values, color=colours)
    panel.bar_label(bars, [show_number(value) for value in values], padding=3, fontsize=9)
    panel.set_xscale("log")
    panel.set_xlim(min(values) / 3, max(values) * 6)
    panel.grid(visible=False)
    panel.tick_params(left=False, bottom=False, labelbottom=False, which="both")
    panel.spines["bottom"].set_visible(False)


def _of(rows: Sequence[Row], size: int, placement: str) -> list[Row]:
    fitting = (placement, "none")
    return [row for row in rows if row["keys"] == size and row["placement"] in fitting]


def _plot_differences(panel: Axes, rows: Sequence[Row], column: str) -> None:
    _plot_lines(panel, rows, "differences", column)


def _plot_lines(panel: Axes, rows: Sequence[Row], across: str, column: str) -> None:
    """Draw one line per system, with x values spaced evenly."""
    places = sorted({row[across] for row in rows})
    for depth, system in enumerate(in_order(row["system"] for row in rows)):
        own = sorted((row for row in rows if row["system"] == system), key=lambda row: row[across])
        panel.plot(
            [places.index(row[across]) for row in own],
            [row[column] for row in own],
            color=_COLOURS.get(system, _OTHER_COLOUR),
            marker=_MARKERS.get(system, "^"),
            zorder=3 - 0.1 * depth,
            label=system,
        )
    panel.set_xticks(range(len(places)), [f"{place:,}" for place in places])
    panel.set_yscale("log")


def _label(
    axes: Sequence[Sequence[Axes]], across: str, show: Callable[[float, object], str]
) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for panel in chain(*axes):
        panel.yaxis.set_major_formatter(FuncFormatter(show))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.tick_params(axis="y", which="minor", left=False)
    for panel in axes[-1]:
        panel.set_xlabel(across)


@contextmanager
def _grid(
    file: Path,
    lines: int,
    columns: int,
    *,
    height: float = 2.9,
    legend: bool = True,
    sharex: bool = True,
    sharey: bool = True,
) -> Iterator[list[list[Axes]]]:
    """Make a figure of panels, with one legend; write it to a file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        size = (max(3.6 * columns, _LEGEND_WIDTH), height * lines + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, sharey=sharey, sharex=sharex, squeeze=False)
        yield [list(line) for line in axes]
        if legend:
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        figure.savefig(file, dpi=110, metadata={"Software": None})
