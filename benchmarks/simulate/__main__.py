"""Simulates networks of nodes in virtual time.

    python -m benchmarks.simulate sizes --nodes 1000 --events 20 --out docs/simulation

Suites (all of them by default):

    sizes       networks of 3 %, 10 %, 30 % and all of the nodes; all want everything
    versions    one version of recon each
    interests   nodes that want few of 100 models
    shards      nodes that want a shard of one of 3 models, and where they meet
    trouble     1 % bad nodes, 1 % loss, 10 % of the nodes restarting in each minute
    partition   a tenth of the nodes is cut off for two minutes

Columns; times are in virtual seconds, and over the events that were written:

    t50, t99              until half of the nodes that want an event have it, 99 % (median)
    all_median, all_p99   until all have it
    hops_p99              pushes or syncs from node to node
    round_s               a push round: the median time of a hop
    rounds_p99, limit     all_p99 in push rounds, and 1.5 * log2(nodes that want an event)
    sharing               peers with a part of its shard that a node is connected with after a
                          minute (median); least_sharing: the node with the fewest
    connections_made      by a node or to it in this minute
    bytes_per_receiver    that an event takes in syncs, for each node that gets it; of these,
                          recon_per_receiver in sessions, events_per_receiver to fetch it
    sessions_per_receiver sessions that were started for it; one is enough
    bytes_per_node        the same for each node of the network, whether it wants the event or not
    idle_...              bytes/s that a node sends when nothing is written, by what they are for
    healed_s              from the end of a partition until all nodes have all events

Bytes include estimates of what libp2p adds, but not TCP/IP. The same seed gives the same rows.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import count, progress
from benchmarks.simulate.output import draw, write_csv
from benchmarks.simulate.scenarios import Outcome
from benchmarks.simulate.suites import SUITES
from benchmarks.simulate.world import Plan, simulated_settings


def main() -> None:
    """Run the simulations from the command line."""
    options = _parser().parse_args()
    settings = replace(simulated_settings(), sync_interval=options.interval)
    plan = Plan(nodes=options.nodes, seed=options.seed, settings=settings)
    for name in options.suites or SUITES:
        outcomes: dict[str, Outcome] = {}
        for simulation in SUITES[name](plan, options.events):
            if options.only not in simulation.label:
                continue
            progress(f"{name}: {simulation.label}")
            outcomes[simulation.label] = simulation.run()
            if options.out is not None:
                write_csv(name, outcomes, options.out)
        if not outcomes:
            continue
        _show(name, outcomes)
        if options.out is not None:
            draw(name, options.out)


def _show(name: str, outcomes: dict[str, Outcome]) -> None:
    """Print a table with a line for each figure: there are more figures than simulations."""
    table = Table("", *outcomes, title=name)
    for column in next(iter(outcomes.values())).row:
        table.add_row(column, *(_format(outcome.row[column]) for outcome in outcomes.values()))
    Console(file=sys.stdout, width=max(160, Console().width)).print(table)


def _format(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help="what to simulate (default: everything)"
    )
    parser.add_argument(
        "--nodes", type=count, default=100, metavar="N", help="largest network (default: 100)"
    )
    parser.add_argument(
        "--events",
        type=count,
        default=10,
        metavar="N",
        help="events to write in each simulation (default: 10)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--interval",
        type=float,
        default=simulated_settings().sync_interval,
        metavar="SECONDS",
        help="sync_interval of all nodes (default: that of the node)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="simulations with this text in their name"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write CSV files and plots to this folder"
    )
    return parser


if __name__ == "__main__":
    main()
