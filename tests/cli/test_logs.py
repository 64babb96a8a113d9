"""Log lines: JSON for machines, one line each; libraries go the same way, and libp2p is quiet."""

import io
import json
import logging
from collections import Counter
from typing import Any

import libp2p  # noqa: F401 - it resets its logger when it is imported: before we set up ours
import pytest
import structlog

from recon_node.logs import LINES_PER_MINUTE, configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_for_machines() -> None:
    stream = io.StringIO()
    configure_logging("auto", "info", stream)
    structlog.get_logger("a.b").info("ready", port=5101, peers=["x"], odd=object)
    logging.getLogger("library").warning("disk at %d %%", 97)
    ours, theirs = lines(stream)
    assert ours["event"] == "ready"
    assert (ours["port"], ours["peers"]) == (5101, ["x"])
    assert (ours["level"], ours["logger"]) == ("info", "a.b")
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["level"]) == ("disk at 97 %", "warning")


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_a_password_in_a_url_is_not_logged(log_format: Any) -> None:
    stream, url = io.StringIO(), "https://user:s3cret@host/path"
    configure_logging(log_format, "info", stream)
    structlog.get_logger("a").info("Syncing", urls=[url], reason=f"{url}: it is gone")
    try:
        raise ValueError(url)
    except ValueError:
        logging.getLogger("library").exception("At %s", url)
    assert stream.getvalue().count("https://***@host/path") >= 4
    assert "s3cret" not in stream.getvalue()


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream: io.StringIO = Terminal()
    configure_logging("auto", "info", stream)
    structlog.get_logger("a").info("ready")
    assert "\x1b[" in stream.getvalue()
    stream = io.StringIO()
    configure_logging("pretty", "info", stream)
    structlog.get_logger("a").info("ready")
    assert "ready" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_levels() -> None:
    stream = io.StringIO()
    configure_logging("json", "warning", stream)
    log = structlog.get_logger("a")
    log.debug("no")
    log.info("no")
    log.warning("yes")
    log.error("yes")
    assert [line["level"] for line in lines(stream)] == ["warning", "error"]


def test_an_exception_is_one_json_line() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        structlog.get_logger("a").exception("failed")
    [line] = lines(stream)
    assert "ValueError: broken\nin two" in line["exception"]


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_libp2p_speaks_only_at_debug(level: str, shown: bool) -> None:
    stream = io.StringIO()
    configure_logging("json", level, stream)
    logging.getLogger("libp2p.network.swarm").error("a peer hiccup")
    assert ("a peer hiccup" in stream.getvalue()) is shown


def test_a_crowd_at_the_door_does_not_fill_the_log() -> None:
    """trio says ten times in a second that no more files can be opened, with the traceback."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    for _ in range(100):
        logging.getLogger("trio.serve_listeners").error("EMFILE", exc_info=OSError())
    [line] = lines(stream)
    assert "exception" not in line


@pytest.mark.parametrize(("level", "bounded"), [("info", True), ("debug", False)])
def test_a_peer_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, level: Any, bounded: bool
) -> None:
    stream, now = io.StringIO(), 0.0
    configure_logging("json", level, stream)
    monkeypatch.setattr("time.monotonic", lambda: now)
    ours, store = structlog.get_logger("recon_node.p2p.a"), structlog.get_logger("recon_node.store")
    for _ in range(LINES_PER_MINUTE + 7):
        ours.info("Event stream ended early", peer="12D")
        store.error("A damaged event")
    ours.info("Connected")
    now = 60.0
    ours.info("Connected")
    ours.info("Connected")
    written = lines(stream)
    counts = Counter(line["event"] for line in written)
    assert counts["Event stream ended early"] == LINES_PER_MINUTE + (0 if bounded else 7)
    assert (counts["A damaged event"], counts["Connected"]) == (LINES_PER_MINUTE + 7, 3)
    assert [line.get("lines_left_out") for line in written[-3:]] == [
        None,
        7 if bounded else None,
        None,
    ]


def test_a_terminal_obeys_nothing_in_a_log_line() -> None:
    """Neither a value without blanks, which is written as it is, nor what an exception says."""
    evil = "x\x1b]0;owned\x07\u202ey"
    stream = io.StringIO()
    configure_logging("pretty", "info", stream)
    log = structlog.get_logger("test")
    log.info("Refused", agent=evil, names=[evil])
    logging.getLogger("library").warning(evil)
    try:
        raise ValueError(evil)
    except ValueError:
        log.exception("Failed")
    written = stream.getvalue()
    assert written.count("owned") == 4
    assert "Traceback" in written
    assert not any(unprintable in written for unprintable in "\x1b\x07\u202e")
