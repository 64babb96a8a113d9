"""Attacks a node as strangers would, and compares what it costs with bounds.

    python -m benchmarks.attack                    all attacks, some minutes
    python -m benchmarks.attack "a dam" merges     some of them
    python -m benchmarks.attack --list             what each attacker hopes for

Each attack gets a node of its own, a hostile peer on a libp2p host, an honest peer, and the stream
of an honest owner. Under all of them, on a machine that does nothing else:

    memory         the node's processes take at most 300 MiB more than before
    liveness       `/ceramic/liveness` is answered within a second
    honest event   an event written at the honest peer is at the node within three
    honest stream  it can be read, and is what its owner wrote

The exit code is 1 if a bound of any attack does not hold. Everything stays on the loopback.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.attack import (  # noqa: F401 - they enter their attacks in the catalogue
    addresses,
    clients,
    derived_work,
    drips,
    floods,
    large,
    liars,
    lists,
    outsiders,
    pipeline,
    rings,
    singles,
    statements,
    unsigned,
)
from benchmarks.attack.catalogue import ATTACKS, Attack
from benchmarks.attack.field import prepared
from benchmarks.attack.measuring import Bounds, Row
from benchmarks.report import progress


def run(attack: Attack, directory: Path, bounds: Bounds) -> list[Row]:
    """Run one attack; what it cost, beside its bounds."""
    with prepared(directory, attack.flags(), bounds) as here:
        try:
            attack.run(here)
        except Exception as error:
            traceback.print_exc()
            here.rows.append(Row("the attack ends", "", f"{error!r}"[:100], holds=False))
            print(here.node.log_tail(5), file=sys.stderr)
        here.expect("the node runs", True, here.node.running)
        verdicts = ", ".join(f"{count} {status}" for status, count in here.verdicts.items())
        here.rows.append(Row("sent by the peer", "", verdicts, holds=True))
        now = here.status()
        counts = (f"{now[kind]:,} {kind}" for kind in ("events", "pending", "waiting") if now[kind])
        here.rows.append(Row("at the node", "", ", ".join(counts), holds=True))
        return here.rows


def main() -> None:
    """Run the attacks from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks; by default all")
    parser.add_argument("--list", action="store_true", help="print what each attacker hopes for")
    parser.add_argument("--short", action="store_true", help="only those of the test suite")
    parser.add_argument("--slack", type=float, default=1.0, help="times the bounds of time")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ATTACKS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    if options.list:
        for attack in ATTACKS.values():
            print(f"{attack.name}: {attack.theory}")
        return
    names = options.names or [
        n for n, attack in ATTACKS.items() if attack.short or not options.short
    ]
    sys.exit(not _run_all(names, options.slack))


def _run_all(names: list[str], slack: float) -> bool:
    bounds = Bounds(slack=slack)
    table = Table("attack", "what", "bound", "measured", "", box=None, pad_edge=False)
    held = True
    with tempfile.TemporaryDirectory(prefix="recon-attack-") as directory:
        for name in names:
            progress(name)
            started = time.monotonic()
            rows = run(ATTACKS[name], Path(directory), bounds)
            for row in rows:
                table.add_row(
                    name, row.what, row.bound, row.measured, "holds" if row.holds else "BROKEN"
                )
                name = ""
            held = held and all(row.holds for row in rows)
            progress(f"  {time.monotonic() - started:.0f} s")
    Console(width=140).print(table)
    return held


if __name__ == "__main__":
    main()
