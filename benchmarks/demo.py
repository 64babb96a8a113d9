"""The whole system on one machine: three nodes reconcile sample events, and Spark keeps tables.

    python -m benchmarks.demo [--events FILE]

Three daemons start as processes on the loopback interface, with empty data directories. Only the
first is a bootstrap address, so the other two have to find each other through the DHT. Half of the
sample's streams go to node 1, the other half to node 3, through the HTTP API. When all three hold
the same set, a stream diverges whose branch with the higher CID is anchored, by the development
clock: time decides. Then the Spark pipeline reads the feed of node 2, which was given nothing.

Every step is checked. The exit code is 0 only if every check passed, and no process is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from recon_node.base.connection import ClientError, Connection
from recon_node.base.terminal import CommandError
from recon_node.ceramic import Event, parse_event
from recon_node.cli.command import color_system, make_table
from recon_node.cli.streams.event_file import read_items
from recon_node.client import Ceramic, Key, ModelDefinition, NotFoundError
from recon_node.ipld import CID, multibase
from recon_node.testnet import Testnet, TestnetError, TestnetNode

SAMPLE = Path(__file__).parents[1] / "tests" / "data" / "sdk_sample.jsonl"
FLAGS = (
    *("--sync-interval", "2", "--development-time", "--anchor", "development"),
    *("--anchor-streams", "none", "--anchor-interval", "1s"),
)
"""Nodes that anchor what they are asked to, by a clock that proves nothing."""
STEP_LIMIT = 300.0
"""Seconds that a step may take."""
COMMAND_LIMIT = 900.0
"""Seconds for a command. The pipeline, with Spark's start, takes 250 where 15 processes share two
cores."""
TABLES = ("raw_events", "conclusion_events", "event_states", "stream_tips", "stream_states")
TIPS = """
    SELECT tip.stream_id[-8:] AS stream, cid(tip.event_cid)[-8:] AS tip, tip.events,
        len(tip.tips) AS tips, tip.diverged, decode(state.data)->'$.content' AS content
    FROM stream_tips AS tip JOIN stream_states AS state USING (stream_cid)
    ORDER BY tip.events DESC, stream LIMIT 5
"""

console = Console(highlight=False, color_system=color_system())


class DemoError(Exception):
    """A check failed. The message is one line."""


@click.command(help=__doc__.split("\n\n", 1)[0] if __doc__ else None)
@click.option(
    "--events",
    "sample",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=SAMPLE,
    help="Events to load, as JSON lines with a `car` each.  [default: the project's sample]",
)
def main(sample: Path) -> None:
    """Run the demo; exit 0 only if every check passed."""
    started, code = time.monotonic(), 0
    try:
        run(sample)
    except KeyboardInterrupt:
        console.print("\nStopped.")
        code = 130
    except (DemoError, TestnetError, ClientError, CommandError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}")
        code = 1
    if code:
        sys.exit(code)
    console.print(f"\n[bold green]Every check passed.[/] {time.monotonic() - started:.0f} s")


def run(sample: Path) -> None:
    """Run all steps, from an empty testnet to tables."""
    with sample.open("rb") as file:
        cars = [item.data for item in read_items(file)]
    events = [parse_event(multibase.decode(car)) for car in cars]
    with tempfile.TemporaryDirectory(prefix="recon-demo-") as directory:
        testnet = Testnet(3, directory=Path(directory) / "testnet", flags=FLAGS)
        with step("Start three nodes; node 1 is the only bootstrap address"):
            testnet.start()
        try:
            nodes = testnet.nodes
            with step("Wait until nodes 2 and 3 have found each other through the DHT"):
                wait_until("nodes 2 and 3 know each other", partial(are_connected, *nodes[1:]))
            for half, node in enumerate((nodes[0], nodes[2])):  # a stream is written at one node
                chosen = [event.init[-1] % 2 == half for event in events]
                load(node, list(compress(cars, chosen)), Path(directory))
            wait_for_equal_sets(nodes, len(events))
            show_nodes(nodes)
            events += decide_by_time(nodes)
            wait_for_equal_sets(nodes, len(events))
            tables = Path(directory) / "tables"
            run_pipeline(nodes[1], tables)
            check_tables(tables, events)
            pids = [node.pid for node in nodes]
        finally:
            testnet.stop()
        check_gone(pids)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Show what is being done, and then that it is done."""
    started = time.monotonic()
    with console.status(text):
        yield
    console.print(f"[green]✓[/] {text} [dim]({time.monotonic() - started:.1f} s)[/]")


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Poll until a condition holds; raise DemoError if it does not in time."""
    deadline = time.monotonic() + STEP_LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise DemoError(f"not true after {STEP_LIMIT:.0f} s: {what}")
        time.sleep(0.1)


def node_state(node: TestnetNode) -> dict[str, Any]:
    """Return a node's answer to GET /ceramic/recon."""
    with Connection(node.api_url, timeout=10) as connection:
        return dict(connection.request("GET", "/ceramic/recon"))


def are_connected(one: TestnetNode, other: TestnetNode) -> bool:
    """Return whether two nodes that did not know each other's addresses are connected."""
    peers = {peer["id"]: peer for peer in node_state(one)["peers"]}
    return bool(peers.get(other.peer_id, {}).get("connected"))


def load(node: TestnetNode, cars: list[str], directory: Path) -> None:
    """Send events to a node through its API."""
    with step(f"Load {len(cars)} events into {node.name} through the HTTP API"):
        file = directory / f"{node.name}.txt"
        file.write_text("\n".join(cars))
        run_command("recon_node", "events", "add", str(file), "--url", node.api_url)


def wait_for_equal_sets(nodes: Sequence[TestnetNode], expected: int) -> None:
    """Wait until all nodes hold all events, and the same whole-range Sha256a."""
    started = time.monotonic()
    with console.status("") as status:

        def equal() -> bool:
            states = [node_state(node) for node in nodes]
            counts = " / ".join(str(state["events"]) for state in states)
            status.update(f"Reconcile: {counts} of {expected} events")
            whole = {(state["events"], state["head"], state["sha256a"]) for state in states}
            return len(whole) == 1 and states[0]["events"] == states[0]["head"] == expected

        wait_until(f"all nodes hold the same {expected} events", equal)
    console.print(
        f"[green]✓[/] All three nodes hold the same {expected} events "
        f"[dim]({time.monotonic() - started:.1f} s)[/]\n"
    )


def show_nodes(nodes: Sequence[TestnetNode]) -> None:
    """Print what each node holds, and the cost of its syncs."""
    digest = "Sha256a of the whole range"
    holdings = make_table("node", "events", digest, numbers=("events",), title="Nodes")
    numbers = ("rounds", "bytes out", "bytes in", "events in", "seconds")
    syncs = make_table("at", "with", *numbers, numbers=numbers, title="Syncs that moved events")
    names = {node.peer_id: node.name for node in nodes}
    for node in nodes:
        state = node_state(node)
        holdings.add_row(node.name, str(state["events"]), state["sha256a"])
        for report in state["syncs"]:
            if report["events_received"]:
                syncs.add_row(
                    node.name,
                    names.get(report["peer"], report["peer"]),
                    str(report["rounds"]),
                    f"{report['bytes_sent']:,}",
                    f"{report['bytes_received']:,}",
                    str(report["events_received"]),
                    f"{report['seconds']:.2f}",
                )
    console.print(holdings, syncs, sep="\n")


def decide_by_time(nodes: Sequence[TestnetNode]) -> list[Event]:
    """Have the fork of a stream decided by time; return the events of it and of its model.

    Without times, the branch with the lowest CID wins (CIP-145). So another one is anchored.
    """
    writing, reading = nodes[0].api_url, nodes[2].api_url
    with Ceramic(writing, key=Key.generate()) as writer, Ceramic(reading) as reader:
        with step("Write one more stream at node 1, and have its tip anchored"):
            schema = {"properties": {"n": {"type": "number"}}}
            model = writer.create_model(ModelDefinition(name="Race", schema=schema))
            race = writer.create(model.id, {"n": 0})
            first = branch = writer.update(race.id, {"n": 1})
            writer.request_anchor(race.id)
            writer.wait_until_anchored(first.event, timeout=STEP_LIMIT)
        with step("Write branches until one would win without times (a lower CID)"):
            while branch.event >= first.event:
                branch = writer.update(race.id, {"n": branch.content["n"] + 1}, at=race.event)
        with step("Wait until node 3 has all of them, and the time of the first"):
            wait_until("node 3 has the branch", partial(has_event, reader, branch.event))
            reader.wait_until_anchored(first.event, timeout=STEP_LIMIT)
        read = reader.read(race.id)
        if read.content != {"n": 1} or not read.open_tips:
            raise DemoError("the stream has not diverged, or its tip is not decided by time")
        drawn = run_command("recon_node", "stream", "show", str(race.id), "--url", reading)
        console.print(f"\n{drawn}", markup=False)
        return [*reader.events(model.id), *reader.events(race.id)]


def has_event(client: Ceramic, cid: CID) -> bool:
    """Return whether a node has an event."""
    try:
        client.event(cid)
    except NotFoundError:
        return False
    return True


def run_pipeline(node: TestnetNode, tables: Path) -> None:
    """Run the Spark pipeline on a node's feed, up to the feed's head, in another process."""
    with step(f"Run the Spark pipeline on the feed of {node.name}"):
        run_command("spark_sink", "run", "--once", "--url", node.api_url, "--tables", str(tables))


def run_command(module: str, *arguments: str) -> str:
    """Run a command of the project; return what it prints. Raises DemoError if it fails."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise DemoError(f"{module} took more than {COMMAND_LIMIT:.0f} s") from None
    if done.returncode:
        output = f"{done.stdout}{done.stderr}"
        raise DemoError(f"{module} exited with code {done.returncode}:\n{output}")
    return done.stdout


def check_tables(tables: Path, events: Sequence[Event]) -> None:
    """Compare the tables with the sample, and print their sizes and a few tips."""

    def query(sql: str) -> list[dict[str, Any]]:
        answer = run_command("spark_sink", "query", "--json", "--tables", str(tables), sql)
        return [json.loads(line) for line in answer.splitlines()]

    streams = [event.stream_id() for event in events if event.header is not None]
    for table, column, expected in (
        ("raw_events", "event_cid", [event.cid for event in events]),
        ("stream_tips", "stream_id", streams),
    ):
        rows = query(f"SELECT {column} FROM {table}")
        if sorted(row[column] for row in rows) != sorted(map(str, expected)):
            raise DemoError(f"the rows of {table} do not match the events")
    counts = " UNION ALL ".join(f"SELECT '{t}' AS name, count(*) AS rows FROM {t}" for t in TABLES)
    for title, sql in (("Spark's tables", counts), ("Some stream tips (CIP-145)", TIPS)):
        rows = query(sql)
        shown = make_table(*rows[0], numbers=("rows", "events", "tips"), title=title)
        for row in rows:
            shown.add_row(*(v if isinstance(v, str) else json.dumps(v) for v in row.values()))
        console.print(shown)


def check_gone(pids: Sequence[int | None]) -> None:
    """Make sure that no node is left running."""
    for pid in pids:
        if pid is not None and os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
            raise DemoError(f"the node with process id {pid} is still running")


if __name__ == "__main__":
    main()
