"""`recon-node config show` and `recon-node config check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from recon_node.cli.output import counted
from recon_node.cli.settings_flags import BadSettingsError, SettingsCommand, given_flags
from recon_node.terminal_text import echo, json_option, print_json, print_result

if TYPE_CHECKING:
    from recon_node.settings import Given, Settings

_HIDDEN: Final = "(set; not shown)"
_DEFAULT: Final = "default"


@click.group()
def config() -> None:
    """Show and check the settings of a node, without running it."""


@config.command("show", cls=SettingsCommand, all_flags=True)
@click.option("--all", "everything", is_flag=True, help="Show settings with their defaults, too.")
@json_option
def show(config: Path | None, everything: bool, as_json: bool, **flags: Any) -> None:
    """Show the settings that `recon-node run` would use, and where each comes from.

    The output is a TOML file that --config reads. Secrets (the token, and the chains' URLs) are not
    shown. Without --all, only settings that some source sets are shown.

    \b
    Examples:
      recon-node config show
      recon-node config show --config node.toml --network local-7 --all
    """
    given, settings = _read(config, flags)
    shown = list(_rows(given, settings, everything))
    if as_json:
        print_json({name: {"value": value, "source": place} for name, value, place in shown})
        return
    for name, value, place in shown:
        echo(_toml_line(name, value, place))
    if not shown:
        echo("# nothing is set: every setting has its default (--all shows them)")


@config.command("check", cls=SettingsCommand, all_flags=True)
@json_option
def check(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Check the settings that `recon-node run` would use.

    Exit code 2 if a setting is unknown or cannot be used; the message names it and its source.
    Environment variables that begin with RECON_NODE_ but are not settings are reported as well.

    \b
    Example:
      recon-node config check --config /etc/recon-node.toml
    """
    from recon_node.settings import unknown_variables

    given, settings = _read(config, flags)
    try:
        settings.api.access_with_token()
    except ValueError as error:
        raise BadSettingsError(str(error)) from None
    unknown = list(unknown_variables())
    for name in unknown:
        echo(f"warning: the environment variable {name} is not a setting", err=True)
    print_result(
        {"ok": True, "settings": list(given), "unknown_variables": unknown},
        f"ok: {counted(len(given), 'setting')}, all others have their defaults",
        as_json=as_json,
    )


def _read(config: Path | None, flags: Mapping[str, Any]) -> tuple[dict[str, Given], Settings]:
    from recon_node.settings import SettingsError, checked_settings, given_settings

    try:
        given = given_settings(config, given_flags(flags))
        return given, checked_settings(given)
    except SettingsError as error:
        raise BadSettingsError(str(error)) from None


def _rows(
    given: Mapping[str, Given], settings: Settings, everything: bool
) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the value as TOML and JSON have it, and the source of each setting."""
    from recon_node.settings import DECLARATIONS, value_of

    for name, declaration in DECLARATIONS.items():
        if name in given or everything:
            value = value_of(settings, name)
            if declaration.marker.secret:
                value = _HIDDEN if value else None
            yield name, _plain(value), given[name].place if name in given else _DEFAULT


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _toml_line(name: str, value: Any, place: str) -> str:
    from recon_node.settings import toml_value

    if value == _HIDDEN:
        return f"# {name} is set, and not shown  # {place}"
    return f"{name} = {toml_value(value)}  # {place}"
