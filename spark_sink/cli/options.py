"""What the commands of `spark-sink` have in common: options and their types."""

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from recon_node import DEFAULT_URL
from recon_node.node_options import Command
from recon_node.node_options import node_options as shared_node_options
from spark_sink.errors import over_connect

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_UNITS = {
    r"ms|milliseconds?": 1,
    r"s|sec|seconds?": _SECOND,
    r"m|min|minutes?": _MINUTE,
    r"h|hours?": _HOUR,
    r"d|days?": _DAY,
}


def _milliseconds(text: str) -> float | None:
    """What a span such as 90m or "5 seconds" is; None of what is none. A number alone is none but
    0: 5 may be seconds to one and milliseconds to another."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None:
        return None
    number, unit = float(match[1]), match[2]
    if not unit:
        return None if number else 0.0
    return next((number * ms for names, ms in _UNITS.items() if re.fullmatch(names, unit)), None)


class Milliseconds(click.ParamType[int]):
    """A time such as 500ms, 2s or 1m."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in milliseconds."""
        found = _milliseconds(str(value))
        if found is None:
            self.fail(f"{value!r} is not a time such as 500ms, 2s or 1m", param, ctx)
        return round(found)


class Hours(click.ParamType[float]):
    """A time such as 90m, 12h or 7d."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The time in hours."""
        found = _milliseconds(str(value))
        if found is None:
            self.fail(f"{value!r} is not a time such as 90m, 12h or 7d", param, ctx)
        return found / _HOUR


class Heap(click.ParamType[str]):
    """The size of a heap as Java takes it: 512m, 2g."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The size, as it was."""
        text = str(value).strip()
        if re.fullmatch(r"0*[1-9]\d*[kmgt]", text, re.IGNORECASE) is None:
            self.fail(f"{value!r} is not a Java memory size such as 512m or 2g", param, ctx)
        return text


class Address(click.ParamType[str]):
    """Where to listen, HOST:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address, as it was."""
        text = str(value).strip()
        host, _, port = text.rpartition(":")
        if not host or re.fullmatch(r"\d{1,5}", port) is None or int(port) > 65_535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9464", param, ctx)
        return text


class UiAddress(Address):
    """Where Spark's pages are: HOST:PORT, or a port of this machine alone."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address, with its host."""
        text = str(value).strip()
        return super().convert(f"127.0.0.1:{text}" if text.isdecimal() else text, param, ctx)


class Master(click.ParamType[str]):
    """A master of Spark's."""

    name = "master"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The master, as it was."""
        text = str(value).strip()
        if text.startswith("sc:"):
            self.fail(str(over_connect(text)), param, ctx)
        if re.fullmatch(_MASTERS, text) is None:
            self.fail(
                f"{value!r} is not a Spark master: local[4], spark://HOST:7077, yarn, "
                "k8s://https://HOST:6443",
                param,
                ctx,
            )
        return text


# The numbers of local: threads, and how often a task may fail.
_MASTERS = r"local(\[(\d+|\*)(\s*,\s*\d+)?\]|-cluster\[[\d\s,]+\])?|yarn|(spark|k8s)://.+"


class Directory(click.Path):
    """A directory on a disk, as a Path."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
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


class StorageOption(click.ParamType[tuple[str, str]]):
    """An option of delta-rs for an object store, NAME=VALUE."""

    name = "option"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The name and the value, which may be a secret."""
        name, equals, setting = str(value).partition("=")
        if not (name.strip() and equals):
            self.fail("an option is KEY=VALUE, such as aws_region=eu-west-1", param, ctx)
        return name.strip(), setting.strip()


class SparkSetting(click.ParamType[tuple[str, str]]):
    """A setting of Spark, NAME=VALUE."""

    name = "setting"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The name and the value."""
        name, equals, setting = str(value).partition("=")
        if not (name.strip() and equals):
            self.fail(f"{value!r} is not a setting such as spark.executor.memory=2g", param, ctx)
        return name.strip(), setting.strip()


class Moment(click.ParamType[datetime]):
    """A time such as 2026-01-31T12:00:00Z (without a zone it is UTC), or how long ago: 90m, 2h."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The time, with its zone."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if (ago := _milliseconds(text.removesuffix(" ago"))) is not None:
                return datetime.now(UTC) - timedelta(milliseconds=ago)
            moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2026-01-31T12:00:00Z or 90m", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class NodeUrl(click.ParamType[str]):
    """The URL of one node's HTTP API. HOST:PORT alone means http, as for `recon-node`."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The URL, with its scheme."""
        text = str(value).strip()
        if "," in text:
            self.fail(
                "this command asks one node, and these are several: name one with --url "
                "(only spark-sink run and status take several)",
                param,
                ctx,
            )
        if "://" in text and re.match("https?://.", text) is None:
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:5101", param, ctx)
        return text if "://" in text else f"http://{text}"


class NodeUrls(click.ParamType[tuple[str, ...]]):
    """The URL of a node's HTTP API, or several, with commas between them."""

    name = "url"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The URLs, with their schemes."""
        if isinstance(value, tuple):
            return value
        one = NodeUrl()
        return tuple(one.convert(url, param, ctx) for url in str(value).split(",") if url.strip())


def node_options(
    *, url: str | None = DEFAULT_URL, what: str = "URL of the node's HTTP API."
) -> Callable[[Command], Command]:
    """Options that say which node, and its token; the command gets `url` and `token`.

    Args:
        url: the default.
        what: the help of --url.
    """
    return shared_node_options(url=url, url_help=what, url_type=NodeUrl())


def nodes_options(*, url: str | None = DEFAULT_URL, what: str) -> Callable[[Command], Command]:
    """The same for several nodes; the command gets `urls` and `token`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*args: Any, url: tuple[tuple[str, ...], ...], **named: Any) -> Any:
            urls = tuple(dict.fromkeys(each for some in url for each in some))
            return command(*args, urls=urls, **named)

        options = shared_node_options(url=url, url_help=what, url_type=NodeUrls(), several=True)
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
            type=StorageOption(),
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
