"""The settings of a node as flags of commands, made from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from recon_node.base.setting_types import (
    DataDirSettings,
    Declaration,
    Flag,
    declarations,
    short_path,
)
from recon_node.base.terminal import shown
from recon_node.cli.output import FILE

if TYPE_CHECKING:
    from recon_node.settings import Settings


class BadSettingsError(click.ClickException):
    """Settings that cannot be used: exit code 2, as for bad usage."""

    exit_code = 2

    def format_message(self) -> str:
        """Return the message, which quotes what cannot be used."""
        return shown(super().format_message(), lines=True)


class SettingsCommand(click.Command):
    """A command that reads settings: it has --config, and flags made from their declarations.

    The flags are made when they are needed, because all declarations take a second to import. It
    has the flags of all settings, or --data-dir alone.
    """

    def __init__(self, *args: Any, all_flags: bool = False, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._all_flags = all_flags

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's parameters, the flags of the settings first."""
        return [*self._setting_flags, *super().get_params(ctx)]

    @cached_property
    def _setting_flags(self) -> list[click.Option]:
        known = list(declarations(DataDirSettings))
        if self._all_flags:
            from recon_node.settings import DECLARATIONS

            known = list(DECLARATIONS.values())
        config = click.Option(
            ["--config"],
            envvar="RECON_NODE_CONFIG",
            type=FILE,
            metavar="FILE",
            help="TOML file with settings; config/recon-node.toml in the source shows them all.",
        )
        flags = [_flag_of(setting) for setting in known if isinstance(setting.marker, Flag)]
        return [config, *flags]


class DataDirCommand(SettingsCommand):
    """A command for a data directory: it has --config and --data-dir, and gets the settings."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with the settings as its parameter `settings`."""
        flags = {name: ctx.params.pop(name, None) for name in ("data_dir", "network")}
        ctx.params["settings"] = read_settings(ctx.params.pop("config"), dict(flags))
        return super().invoke(ctx)


def _flag_of(setting: Declaration) -> click.Option:
    """Make the flag of a setting. Its value is checked with the other settings, not by click."""
    default, metavar = setting.default, setting.marker.metavar
    kind: click.ParamType[Any] | None = None
    if metavar in ("FILE", "DIR"):
        kind = click.Path(path_type=Path, file_okay=metavar == "FILE", dir_okay=metavar == "DIR")
    elif get_origin(setting.field.annotation) is Literal and metavar is None:
        kind = click.Choice(get_args(setting.field.annotation))
    text = " ".join(setting.description.partition("\n\n")[0].split())
    repeated = isinstance(default, tuple | Mapping)
    if repeated:
        text += " May be repeated."
    if isinstance(default, bool):
        text += f"  [default: {'' if default else 'no-'}{setting.flag[2:]}]"
    elif default:
        text += f"  [default: {_shown(default)}]"
    negation = f"/--no-{setting.flag[2:]}" if isinstance(default, bool) else ""
    return click.Option(
        [setting.name, setting.flag + negation],
        default=None,
        type=kind,
        multiple=repeated,
        metavar=metavar,
        help=text,
    )


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ", ".join(default)
    if isinstance(default, Path):
        return short_path(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def given_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given: the others are None or empty."""
    return {name: value for name, value in flags.items() if value is not None and value != ()}


def read_settings(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Read the settings from all sources.

    Raises:
        BadSettingsError: one of them is unknown or cannot be used.
    """
    from recon_node.settings import SettingsError, load_settings

    try:
        return load_settings(config, given_flags(flags))
    except SettingsError as error:
        raise BadSettingsError(str(error)) from None
