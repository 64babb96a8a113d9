"""How the packages declare their settings: markers and types for the fields of frozen dataclasses.

The settings of a package are one frozen pydantic dataclass. A field is the only declaration of its
value: name, type, bounds and default, and in the docstring below it meaning and unit. Fields
marked with `Setting` or `Flag` can be set by an operator; `recon_node.settings` finds them and
makes the file, the environment variables and the flags of `recon-node run` out of them. The others
are for tests and benchmarks.
"""

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic.fields import FieldInfo

SETTINGS = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    hide_input_in_errors=True,  # it may be a token, or a URL with a key in it
)
"""The configuration of every dataclass of settings."""


@plain_dataclass(frozen=True, slots=True)
class Setting:
    """Marks a field that an operator can set in the file and in the environment."""

    name: str | None = None
    """What it is called there, if not as the field."""
    metavar: str | None = None
    """What the help of its flag calls the value, if it has a flag."""
    flag: str | None = None
    """The flag, if it is not called as the setting."""
    secret: bool = False
    """Whether the value may be a secret, or have one in it, and is never shown."""


class Flag(Setting):
    """Marks a field that an operator can set by a flag of `recon-node run` as well."""


def _split(value: object) -> object:
    """Text with commas as a list; anything else as it is."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that keeps a value if `check` does not raise; None is always kept."""

    def keep(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return AfterValidator(keep)


_LONGEST: Final = 1_000 * 366 * 86_400.0
"""Seconds of a thousand years: that long from now is still a date."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_seconds(value: object) -> float:
    """Return a time such as `6h`, `90m` or `1d`, or a number of seconds, in seconds.

    Raises:
        ValueError: it is not one, or more than a thousand years.
    """
    match = re.fullmatch(r"([1-9]\d{0,5}) ?([smhdw])", str(value), re.ASCII)
    seconds: Any = int(match[1]) * _UNITS[match[2]] if match else value
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST:
        raise ValueError(f"{str(value)[:40]!r} is not a time such as '6h', '90m' or '1d'")
    return float(seconds)


Count = Annotated[int, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
TextList = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A TOML array, or text with commas."""
OptionalPath = Annotated[Path | None, BeforeValidator(_empty_is_none)]
"""A path; an empty text means None."""


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/recon-node`, or `~/.recon-node` without that variable (see `at_home`)."""
    xdg = os.environ.get("XDG_DATA_HOME")
    return Path(xdg) / "recon-node" if xdg else Path("~/.recon-node")


def at_home(path: Path) -> Path:
    """Return a path with the home directory in place of ~.

    Raises:
        ValueError: it begins with ~, and this user has no home directory.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(
            f"{path} cannot be found: this user has no home directory (no HOME, no entry in the "
            "password database); give a path without ~"
        ) from None


def _not_empty(value: object) -> object:
    """Refuse an empty text, which a shell makes of a variable that is not set: as a path, it would
    be the working directory."""
    if value == "":
        raise ValueError("it is empty: name a directory")
    return value


def short_path(path: Path) -> str:
    """A path as text, with ~ for the home directory."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry in the password database
        return str(path)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True, slots=True, config=SETTINGS)
class DataDirSettings:
    """The one setting that commands beside `run` use; apart from the others, which take a second
    to import."""

    data_dir: Annotated[
        Path, BeforeValidator(_not_empty), AfterValidator(at_home), Flag(metavar="DIR")
    ] = Field(
        default_factory=default_data_dir,
        validate_default=True,
        description="Directory for the identity and the event log; only one node can use it.",
    )


class Declaration(NamedTuple):
    """Where and how a setting is declared."""

    name: str
    path: tuple[str, ...]
    """The attributes that lead to it."""
    marker: Setting
    field: FieldInfo
    dataclass: type
    """The dataclass that declares it."""

    @property
    def flag(self) -> str:
        """What the flag is called, with its dashes."""
        return "--" + (self.marker.flag or self.name).replace("_", "-")

    @property
    def description(self) -> str:
        """What the docstring below the field says."""
        return self.field.description or attribute_docs(self.dataclass).get(self.path[-1], "")

    @property
    def default(self) -> Any:
        """The value where no source has one."""
        return self.field.get_default(call_default_factory=True)


def declarations(kind: Any, path: tuple[str, ...] = ()) -> Iterator[Declaration]:
    """Find the settings in a dataclass and in those that it is composed of."""
    for attribute, field in kind.__pydantic_fields__.items():
        here = (*path, attribute)
        for marker in field.metadata:
            if isinstance(marker, Setting):
                yield Declaration(marker.name or attribute, here, marker, field, kind)
        if is_pydantic_dataclass(field.annotation):
            yield from declarations(field.annotation, here)


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's attributes, by name, inherited ones included.

    They are read from the source when somebody wants to see them. pydantic can read them while it
    makes a class, but that takes a node a third of a second of CPU whenever it starts.

    Classes are found at the top of their modules. Those of other packages count as having none, and
    as do all attributes if the source is missing.
    """
    package = kind.__module__.partition(".")[0]
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] == package:
            docs |= _docs_in(base.__module__).get(base.__name__, {})
    return docs


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # it has none, or is built in
        return {}
    classes = (
        statement for statement in ast.parse(source).body if isinstance(statement, ast.ClassDef)
    )
    return {class_.name: _docs_below(class_.body) for class_ in classes}


def _docs_below(body: list[ast.stmt]) -> dict[str, str]:
    docs = {}
    for attribute, below in pairwise(body):
        match attribute, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs
