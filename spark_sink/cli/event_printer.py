"""Prints what happens in `run` and `serve`: a line for each event, as JSON or for people."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from recon_node.base.errors import without_passwords
from recon_node.base.terminal import counted, discard_output, echo
from spark_sink.query.show import show, to_json


def json_lines_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--json` of a command that runs until it is stopped.

    Args:
        what: the events that the command prints.
    """
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help=f"Print JSON lines instead of text: {what}.",
        show_default="on, unless standard output is a terminal",
    )


class EventPrinter:
    """Prints events until the output is closed, as `| head` does: JSON, or text on a terminal.

    An error of the output must not end a batch that the pipeline is about to finish.

    Args:
        as_json: print JSON on a terminal, too.
        on_closed: called when the output is closed.
    """

    def __init__(self, *, as_json: bool, on_closed: Callable[[], None] = lambda: None) -> None:
        self._write = _json_line if as_json or not sys.stdout.isatty() else _text_line
        self._on_closed = on_closed
        self.is_closed = False

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        """Print an event, unless the output is closed."""
        if self.is_closed:
            return
        try:
            line = self._write(event, facts)
            echo(line if event == "row" else without_passwords(line))  # a row is somebody's content
        except BrokenPipeError:
            self.is_closed = True
            discard_output()  # else its text, which is in the buffer still, would fail the exit
            self._on_closed()


def _json_line(event: str, facts: dict[str, Any]) -> str:
    """Write an event in the format of the node's log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"timestamp": now, "level": _LEVELS.get(event, "info"), "event": event}
    return to_json({**line, **show(facts)})


_LEVELS = dict.fromkeys(
    ("waiting", "no_workers", "no_tables", "lost", "set_aside", "view_set_aside"), "warning"
)


def _waiting(f: dict[str, Any]) -> str:
    waiting = f"waiting up to {f['patience']:.0f} s" if "patience" in f else "waiting"
    if reason := f.get("reason"):
        return f"{waiting}: {reason}"
    return f"the node at {f['url']} does not answer; {waiting}"


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "starting": lambda f: (
        f"reading {f['url']} (log {f['epoch']}) into {f['tables']} from position {f['position']}; "
        f"the head is {f['head']}. Starting Spark, which can take half a minute"
    ),
    "started": lambda f: (
        "Spark is running" + (f"; metrics at {f['metrics']}" if f["metrics"] else "")
    ),
    "filling": lambda f: f"filling raw_events from {f['snapshot']}, up to position {f['position']}",
    "filled": lambda f: (
        f"filled raw_events with {counted(f['rows'], 'row')} in {f['seconds']:.1f} s"
    ),
    "batch": lambda f: (
        f"batch {f['batch']:<6} {counted(f['rows'], 'row'):>11} "
        f"{counted(f['streams'], 'stream'):>14}   position {f['position']:<10} "
        f"{'lag ' + str(f['lag']) if f['lag'] is not None else '':12} {f['seconds']:.2f} s"
    ),
    "no_workers": lambda f: (
        f"no worker of the Spark cluster {f['master']} has answered yet; waiting up to "
        f"{f['patience']:.0f} s for one"
    ),
    "row": lambda f: f"{f['table']:18} {to_json(show(f['row']))}",
    "set_aside": lambda f: f"the stream {f['stream']} is set aside: {f['reason']}",
    "view_set_aside": lambda f: (
        f"the view {f['view']} is not kept up to date before the next run: {f['reason']}"
    ),
    "waiting": _waiting,
    "lost": lambda f: f"cannot go on with the node at {f['url']}: {f['reason']}",
    "taking_over": lambda f: (
        f"the log {f['from']} cannot be read: going on from the node at {f['url']} (log "
        f"{f['epoch']}, {counted(f['head'], 'event')}), comparing its events with those of the "
        "tables"
    ),
    "took_over": lambda f: (
        f"going on from the node at {f['url']} at position {f['position']} of the tables; "
        f"{counted(f['rows'], 'event')} added, {f['missing']} not on that node yet, in "
        f"{f['seconds']:.1f} s"
    ),
    "resumed": lambda f: f"the node at {f['url']} answers again",
    "serving": lambda f: (
        f"serving the tables in {f['tables']} by Flight SQL at {f['url']}"
        + (f", metrics at {f['metrics']}" if f["metrics"] else "")
    ),
    "copied": lambda f: (
        f"{f['table']:24} {counted(f['rows'], 'row'):>13}   position {f['position']}"
    ),
    "no_tables": lambda f: f["reason"],
    "stopping": lambda f: f"stopping, within {f['patience']:.0f} s; waiting for: {f['doing']}",
    "stopped": lambda f: (
        f"stopped at position {f['position']}, {counted(f['rows'], 'row')} in this run"
        if "position" in f
        else "stopped"
    ),
}


def _text_line(event: str, facts: dict[str, Any]) -> str:
    """Write an event for people."""
    return _LINES[event](facts)
