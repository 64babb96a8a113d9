"""Tables of simulations as CSV files, and plots of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
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
    """Write the table of a suite, and its curves, to `NAME.csv` and `NAME-curves.csv`.

    Rows of other simulations that the files already have are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table, curves = folder / f"{name}.csv", folder / f"{name}-curves.csv"
    rows = [
        {"label": label, **{column: _rounded(value) for column, value in outcome.row.items()}}
        for label, outcome in outcomes.items()
    ]
    points = [
        {"label": label, "reached": share, "seconds": _rounded(seconds)}
        for label, outcome in outcomes.items()
        for share, seconds in outcome.curve
    ]
    for path, fresh in ((table, rows), (curves, points)):
        kept = [row for row in read_csv(path) if row["label"] not in outcomes]
        _write(path, [*kept, *fresh])


def draw(name: str, folder: Path) -> None:
    """Draw the curves of a suite from its CSV file to `NAME.png`."""
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
            axes.plot(seconds, [100 * share for share in shares], label=label, color=colour)
        axes.set_xlabel("seconds")
        axes.set_ylabel("nodes that have the event, %")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 101)
        axes.grid(axis="y", color="#E4E4E4")
        axes.legend(frameon=False)
        figure.savefig(folder / f"{name}.png", dpi=_DPI)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a table; one that does not exist is empty."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[-1]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value
