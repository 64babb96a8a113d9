"""`recon-node config show` and `config check`, and `recon-node id`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click
from click.core import ParameterSource

from recon_node.base.connection import Connection
from recon_node.base.terminal import echo, json_option, print_json, print_result
from recon_node.cli.client import node_options, understood
from recon_node.cli.output import CommandError, counted, one_line
from recon_node.cli.settings_flags import (
    BadSettingsError,
    SettingsCommand,
    given_flags,
    read_settings,
)

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
        print_json({name: {"value": value, "source": source} for name, value, source in shown})
        return
    for name, value, source in shown:
        echo(_toml_line(name, value, source))
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
            yield name, _plain(value), given[name].source if name in given else _DEFAULT


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _toml_line(name: str, value: Any, source: str) -> str:
    from recon_node.settings import toml_value

    if value == _HIDDEN:
        return f"# {name} is set, and not shown  # {source}"
    return f"{name} = {toml_value(value)}  # {source}"


class _Identity(TypedDict):
    """Who a running node is, of GET /ceramic/recon."""

    peer_id: str
    addresses: list[str]


@click.command("id", cls=SettingsCommand)
@click.option("--create", is_flag=True, help="Create the identity if the directory has none.")
@node_options
@json_option
@click.pass_context
def identity(
    context: click.Context,
    config: Path | None,
    data_dir: Path | None,
    create: bool,
    node: Connection,
    as_json: bool,
) -> None:
    """Print a node's peer id.

    By default it is read from the identity in the data directory; the node need not run. With --url
    (or RECON_NODE_URL), the running node there is asked, and --json shows its addresses as well.

    A node creates its identity when it first runs. To know its id before that, use --create.

    \b
    Examples: the address that other nodes can use as --bootstrap
      echo /ip4/192.0.2.7/tcp/4101/p2p/$(recon-node id)
      echo /ip4/192.0.2.7/tcp/4101/p2p/$(recon-node id --create --data-dir /var/lib/new-node)
      recon-node id --url http://127.0.0.1:5201 --json
    """
    is_remote = context.get_parameter_source("url") is not ParameterSource.DEFAULT
    if is_remote and data_dir is None and not create:
        answer = understood(node, node.request("GET", "/ceramic/recon"), _Identity)
        facts = {"peer_id": answer["peer_id"], "addresses": answer["addresses"]}
    else:
        if context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--url asks a running node: leave out --data-dir and --create")
        facts = {"peer_id": _local_peer_id(config, data_dir, create)}
    if as_json:
        print_json(facts)
    else:
        echo(facts["peer_id"])


def _local_peer_id(config: Path | None, data_dir: Path | None, create: bool) -> str:
    from recon_node.p2p import P2PError
    from recon_node.p2p.transport.identity import IDENTITY_FILE, open_identity, peer_id_of

    directory = read_settings(config, {"data_dir": data_dir}).data_dir
    path = directory / IDENTITY_FILE
    is_new = not path.exists()
    if is_new and not create:
        raise CommandError(
            f"{directory} has no identity yet: `recon-node run` creates it, or `recon-node id "
            "--create`. If the node's directory is another one, name it with --data-dir"
        )
    with one_line(P2PError):
        peer_id = peer_id_of(open_identity(directory))
    if is_new:
        echo(f"created a new identity: {path}", err=True)
    return peer_id
