"""Tables of simulations as CSV files, and plots of them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.simulate.scenarios import Outcome

_DIGITS: Final = 4
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#555555")
"""Of Okabe and Ito, which colour-blind readers can tell apart."""
_WIDTH: Final = 7.5
_HEIGHT: Final = 4.0
_DPI: Final = 100


def write_csv(name: str, outcomes: Mapping[str, Outcome], folder: Path) -> None:
    """Write the table of a suite, and its curves, to ``NAME.csv`` and ``NAME-curves.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["label", *next(iter(outcomes.values())).row]
    _write(
        folder / f"{name}.csv",
        columns,
        ([label, *outcome.row.values()] for label, outcome in outcomes.items()),
    )
    _write(
        folder / f"{name}-curves.csv",
        ["label", "reached", "seconds"],
        ([label, *point] for label, outcome in outcomes.items() for point in outcome.curve),
    )


def draw(name: str, folder: Path) -> None:
    """Draw the curves of a suite from its CSV file to ``NAME.png``."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in read_csv(folder / f"{name}-curves.csv"):
        curves.setdefault(row["label"], []).append((float(row["seconds"]), float(row["reached"])))
    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        for number, (label, points) in enumerate(curves.items()):
            seconds, shares = zip(*points, strict=True)
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(seconds, [100 * each for each in shares], label=label, color=colour)
        axes.set_xlabel("seconds")
        axes.set_ylabel("nodes that have the event, %")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 101)
        axes.grid(axis="y", color="#E4E4E4")
        axes.legend(frameon=False)
        figure.savefig(folder / f"{name}.png", dpi=_DPI)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_rounded(value) for value in row] for row in rows)


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value
