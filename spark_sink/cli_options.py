"""What the commands of `spark-sink` have in common: options and their types."""

import re
from pathlib import Path
from typing import Any

import click

_SECOND = 1_000
_UNITS = {"ms": 1, "s": _SECOND, "m": 60 * _SECOND, "h": 3_600 * _SECOND, "d": 86_400 * _SECOND}


class Milliseconds(click.ParamType[int]):
    """A time such as 500ms, 2s or 1m; plain numbers are milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in milliseconds."""
        match = re.fullmatch(r"(\d+)\s*(ms|s|m)?", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a time such as 500ms, 2s or 1m", param, ctx)
        return int(match[1]) * _UNITS[match[2] or "ms"]


class Hours(click.ParamType[float]):
    """A time such as 90m, 12h or 7d; plain numbers are hours."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The time in hours."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a time such as 90m, 12h or 7d", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "h"] / _UNITS["h"]


tables_option = click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the tables.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON.")
token_option = click.option(
    "--token",
    envvar="RECON_NODE_TOKEN",
    help="What the node's API asks for; better in RECON_NODE_TOKEN.",
)
