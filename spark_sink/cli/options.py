"""What the commands of `spark-sink` have in common: options and their types."""

import functools
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from recon_node import DEFAULT_URL
from recon_node.base.terminal import Command, url_options
from spark_sink.errors import over_connect

T = TypeVar("T")

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_LONGEST = 365_000 * _DAY
"""A thousand years: dates that long ago can still be computed."""
_UNITS = {
    r"ms|milliseconds?": 1,
    r"s|sec|seconds?": _SECOND,
    r"m|min|minutes?": _MINUTE,
    r"h|hours?": _HOUR,
    r"d|days?": _DAY,
}


class Read(click.ParamType[T]):
    """The type of an option whose text a function reads.

    Args:
        name: what the help calls a value.
        read: returns the value; raises `ValueError` with what is wrong.
    """

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return what the text says; anything else is a value already."""
        try:
            return self._read(value.strip()) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _span(text: str) -> float | None:
    """Return a span such as 90m or "5 seconds" in milliseconds; None if it is not one.

    Longer than a thousand years is not one. A number without a unit is not one, unless it is 0: 5
    may be seconds to one and milliseconds to another.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None:
        return None
    number, unit = float(match[1]), match[2]
    if not unit:
        return None if number else 0.0
    unit_ms = next((ms for names, ms in _UNITS.items() if re.fullmatch(names, unit)), math.inf)
    return number * unit_ms if number * unit_ms <= _LONGEST else None


def _read_milliseconds(text: str) -> int:
    if (seconds := _span(text)) is None:
        raise ValueError(f"{text!r} is not a time such as 500ms, 2s or 1m")
    return round(seconds)


def _read_hours(text: str) -> float:
    if (seconds := _span(text)) is None:
        raise ValueError(f"{text!r} is not a time such as 90m, 12h or 7d")
    return seconds / _HOUR


def _read_heap(text: str) -> str:
    if re.fullmatch(r"0*[1-9]\d*[kmgt]", text, re.IGNORECASE) is None:
        raise ValueError(f"{text!r} is not a Java memory size such as 512m or 2g")
    return text


def _read_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch(r"\d{1,5}", port) is None or int(port) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9102")
    return text


# The numbers of local: threads, and how often a task may fail.
_MASTERS = r"local(\[(\d+|\*)(\s*,\s*\d+)?\]|-cluster\[[\d\s,]+\])?|yarn|(spark|k8s)://.+"


def _read_master(text: str) -> str:
    if text.startswith("sc:"):
        raise ValueError(str(over_connect(text)))
    if re.fullmatch(_MASTERS, text) is None:
        raise ValueError(
            f"{text!r} is not a Spark master: local[4], spark://HOST:7077, yarn, k8s://https://HOST:6443"
        )
    return text


def _read_setting(text: str) -> tuple[str, str] | None:
    name, equals, setting = text.partition("=")
    return (name.strip(), setting.strip()) if name.strip() and equals else None


def _read_storage_option(text: str) -> tuple[str, str]:
    if (setting := _read_setting(text)) is None:  # the text may be a secret
        raise ValueError("an option has the form KEY=VALUE")
    return setting


def _read_spark_setting(text: str) -> tuple[str, str]:
    if (setting := _read_setting(text)) is None:
        raise ValueError(f"{text!r} is not a setting such as spark.executor.memory=2g")
    return setting


def _read_moment(text: str) -> datetime:
    try:
        if (ago := _span(text.removesuffix(" ago"))) is not None:
            return datetime.now(UTC) - timedelta(milliseconds=ago)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z or 90m") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _read_url(text: str) -> str:
    if "," in text:
        raise ValueError(
            "this command asks one node, and these are several: name one with --url "
            "(only spark-sink run and status take several)"
        )
    if "://" in text and re.match("https?://.", text) is None:
        raise ValueError(f"{text!r} is not a URL such as http://127.0.0.1:5101")
    return text if "://" in text else f"http://{text}"


def _read_urls(text: str) -> tuple[str, ...]:
    return tuple(_read_url(url.strip()) for url in text.split(",") if url.strip())


MILLISECONDS = Read("time", _read_milliseconds)
"""A time such as 500ms, 2s or 1m."""
HOURS = Read("time", _read_hours)
"""A time such as 90m, 12h or 7d."""
HEAP = Read("size", _read_heap)
"""The size of a heap as Java takes it: 512m, 2g."""
ADDRESS = Read("address", _read_address)
"""Where to listen, HOST:PORT."""
MASTER = Read("master", _read_master)
STORAGE_OPTION = Read("option", _read_storage_option)
"""An option of delta-rs for an object store, KEY=VALUE."""
SPARK_SETTING = Read("setting", _read_spark_setting)
MOMENT = Read("time", _read_moment)
"""A time such as 2026-01-31T12:00:00Z (without a zone it is UTC), or how long ago: 90m, 2h."""
NODE_URL = Read("url", _read_url)
"""The URL of one node's HTTP API. HOST:PORT alone means http, as for `recon-node`."""
NODE_URLS = Read("url", _read_urls)
"""The URL of a node's HTTP API, or several, with commas between them."""


class Directory(click.Path):
    """A directory on a disk, as a Path."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if not str(value):  # as of "$NOT_SET"; it would be the working directory
            self.fail("the name of a directory is empty", param, ctx)
        if "://" in str(value):
            self.fail(
                f"{value!r} is not a directory: name one on a disk of this machine, or on one that "
                "all machines share",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class TablesLocation(Directory):
    """Where tables are: a directory, as a Path, or the URL of one in an object store, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path or the URL."""
        return str(value) if "://" in str(value) else super().convert(value, param, ctx)


node_options = functools.partial(url_options, url_type=NODE_URL)
"""Options that say which node, and its token; the command gets `url` and `token`."""


def nodes_options(*, url: str | None = DEFAULT_URL, url_help: str) -> Callable[[Command], Command]:
    """The same for several nodes; the command gets `urls` and `token`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*args: Any, url: tuple[tuple[str, ...], ...], **named: Any) -> Any:
            urls = tuple(dict.fromkeys(single for flag in url for single in flag))
            return command(*args, urls=urls, **named)

        options = url_options(url=url, url_help=url_help, url_type=NODE_URLS, several=True)
        return options(wrapped)

    return decorate


def tables_option(
    *, required: bool = True, help: str = "Where the tables are: a directory, or s3://BUCKET/PATH."
) -> Callable[[Command], Command]:
    """Options that say where the tables are; the command gets the location `tables`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *args: Any, tables: Any, storage_option: tuple[tuple[str, str], ...], **named: Any
        ) -> Any:
            return command(*args, tables=_location(tables, storage_option), **named)

        options = click.option(
            "--storage-option",
            type=STORAGE_OPTION,
            multiple=True,
            metavar="KEY=VALUE",
            help="An option of the tables' object store, besides AWS_... in the environment; can "
            "be repeated.",
        )(wrapped)
        return click.option(
            "--tables", type=TablesLocation(), required=required, metavar="DIR", help=help
        )(options)

    return decorate


def _location(tables: Any, options: tuple[tuple[str, str], ...]) -> Any:
    """Return the location that the options name; None if there is no --tables."""
    if isinstance(tables, str):
        from spark_sink.tables.location import location_of

        try:
            return location_of(tables, dict(options))
        except ValueError as error:
            raise click.BadParameter(f"{tables!r}: {error}", param_hint="'--tables'") from None
    if options:
        raise click.UsageError("--storage-option is for tables in an object store")
    return tables
