"""Count the files that journeys cross.

    python -m benchmarks.journeys [--files] [--check]

Starts two daemons, a client and Spark, all traced, and prints a row for each journey: the files
that it crosses, how many docs/journeys.md states, the functions that are called, and the lines
of those files. Imports don't count. `--check` needs the native core (`make native`), with which a
CAR crosses four files less.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.journeys.routes import travel
from benchmarks.report import Row, show


def main() -> None:
    """Print the table; with `--check`, exit with 1 if a journey is not as stated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", action="store_true", help="print the files, too")
    parser.add_argument("--check", action="store_true", help="fail if one is not as stated")
    options = parser.parse_args()
    journeys = travel()
    rows: list[Row] = [
        {
            "journey": journey.name,
            "files": len(journey.files),
            "stated": len(journey.stated),
            "functions": journey.functions,
            "lines": journey.lines,
        }
        for journey in journeys
    ]
    show("Journeys", rows, None)
    if options.files:
        for journey in journeys:
            print("", journey.name, *(f"  {path}" for path in journey.files), sep="\n")
    if options.check and not all(journey.is_as_stated for journey in journeys):
        sys.exit(1)


if __name__ == "__main__":
    main()
