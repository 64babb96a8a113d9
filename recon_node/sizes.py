"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_UNITS: Final = "BKMGTPE"


class ByteSize(click.ParamType[int]):
    """A size such as 64MB or 2GiB; plain numbers are bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes."""
        match = re.fullmatch(r"(\d+)\s*([KMGTPE]?)(i?)B?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size such as 64MB or 2GB", param, ctx)
        base = 1024 if match[3] else 1000
        unit: int = base ** _UNITS.index(match[2].upper() or "B")
        return int(match[1]) * unit


def human_size(number: int) -> str:
    """Return a readable number of bytes: "5 B", "1.2 MiB"."""
    size, unit = float(number), "B"
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}iB"
