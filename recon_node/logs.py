"""Log lines: one per event, readable on a terminal, and JSON for machines.

Everything goes through the standard library's root logger to standard error, in one format: this
project's structlog loggers and those of libraries. py-libp2p logs every hiccup of every peer as a
warning or an error. The network side logs itself what matters of that, so lines of py-libp2p are
only shown at level debug.
"""

import logging
import os
import sys
import time
from collections import Counter
from io import StringIO
from math import inf
from typing import Annotated, Any, Literal, TextIO

import structlog
from pydantic.dataclasses import dataclass
from structlog.typing import EventDict, Processor

from recon_node.base.errors import without_passwords
from recon_node.base.setting_types import SETTINGS, Flag
from recon_node.base.terminal import shown

LogFormat = Literal["auto", "pretty", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

LINES_PER_MINUTE = 60
"""Maximum lines in a minute from one place in the code of the network side."""
_NOISY_LIBRARIES = ("libp2p", "async_service", "zeroconf")
_OF_LINES = ("exception", "stack")
"""Fields that have several lines."""
_CHATTY_LIBRARIES = ("multiaddr", "httpx", "httpcore", "hpack", "h2", "asyncio")


@dataclass(frozen=True, slots=True, config=SETTINGS)
class LogSettings:
    """Log lines and traces."""

    format: Annotated[LogFormat, Flag(name="log_format")] = "auto"
    """auto: pretty on a terminal, JSON lines otherwise."""
    level: Annotated[LogLevel, Flag(name="log_level")] = "info"
    """The lowest level of log lines to write."""
    traces: Annotated[bool, Flag()] = False
    """Send OpenTelemetry traces: a span for each request, sync and batch of events.

    Needs `pip install 'recon-node[otel]'`. OTEL_EXPORTER_OTLP_ENDPOINT in the environment says
    where to (http://localhost:4318 by default), OTEL_TRACES_SAMPLER how many.
    """


def configure_logging(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Set up logging for the whole process.

    Call this after importing libp2p, which resets its own logger at that moment.
    """
    stream = stream or sys.stderr
    pretty = log_format == "pretty" or (log_format == "auto" and stream.isatty())
    stamps: list[Processor]
    renderers: list[Processor]
    if pretty:
        stamps = [structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)]
        colors = stream.isatty() and not os.environ.get("NO_COLOR")
        console = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=_show_traceback, pad_event_to=24
        )
        renderers = [_show, console]
    else:  # machines also get the logger, which people can do without
        stamps = [
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ]
        renderers = [
            structlog.processors.format_exc_info,
            _order,
            structlog.processors.JSONRenderer(default=str),
        ]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.StackInfoRenderer(),
        *stamps,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *renderers,
                lambda logger, method, line: without_passwords(str(line)),
            ],
        )
    )
    if level != "debug":
        handler.addFilter(_Bounded())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    _tame_libraries(level)


def _show(logger: object, method: str, line: EventDict) -> EventDict:
    """Escape what a terminal would obey; of other values, it gets the `repr`."""
    return {
        name: shown(value, lines=name in _OF_LINES) if isinstance(value, str) else value
        for name, value in line.items()
    }


def _show_traceback(target: TextIO, exc_info: Any) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    target.write(shown(text.getvalue(), lines=True))


def _order(logger: object, method: str, line: EventDict) -> EventDict:
    """Put the fields that every line has first, so that lines are easy to compare."""
    first = {name: line.pop(name) for name in ("timestamp", "level", "event") if name in line}
    return {**first, **line}


class _Bounded(logging.Filter):
    """Lets through a few lines in a minute from each place in the code of the network side: peers
    cause as many as they like. The first line of the next minute says how many were left out."""

    def __init__(self) -> None:
        super().__init__("recon_node.p2p")
        self._due = -inf
        self._lines = Counter[tuple[str, int]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True
        now, place = time.monotonic(), (record.pathname, record.lineno)
        if now >= self._due:
            excess = sum(max(0, lines - LINES_PER_MINUTE) for lines in self._lines.values())
            if excess and isinstance(record.msg, dict):
                record.msg = {**record.msg, "lines_left_out": excess}
            self._due, self._lines = now + 60, Counter()
        self._lines[place] += 1
        return self._lines[place] <= LINES_PER_MINUTE


class _Seldom(logging.Filter):
    """Lets through one line in a minute, without the traceback. trio logs ten in a second while
    this process may open no more files, and so takes no connection."""

    _due = -inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._due:
            return False
        self._due, record.exc_info = now + 60, None
        return True


def _tame_libraries(level: str) -> None:
    logging.getLogger("trio.serve_listeners").filters = [_Seldom()]
    quiet = logging.DEBUG if level == "debug" else logging.CRITICAL
    for name in _NOISY_LIBRARIES:
        logger = logging.getLogger(name)
        if not (name == "libp2p" and os.environ.get("LIBP2P_DEBUG")):  # its own debugging aid
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(quiet)
    for name in _CHATTY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
