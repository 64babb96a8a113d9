"""`recon-node config` and `id`; and the settings of a node as flags of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args, get_origin

import click
from click.core import ParameterSource

from recon_node.base.connection import Connection
from recon_node.base.errors import without_passwords
from recon_node.base.setting_types import (
    DataDirSettings,
    Declaration,
    Flag,
    declarations,
    short_path,
)
from recon_node.base.terminal import (
    FILE,
    CommandError,
    command_errors,
    counted,
    echo,
    json_option,
    one_line,
    print_json,
    print_result,
    url_options,
)
from recon_node.cli.command import understood

if TYPE_CHECKING:
    from recon_node.settings import Given, Settings


class BadSettingsError(CommandError):
    """Settings that cannot be used: exit code 2, as for bad usage."""

    exit_code = 2


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
        """Run the command, with the settings as its parameter `settings`, and its log lines on
        standard error."""
        from recon_node.logs import configure_logging

        flags = {name: ctx.params.pop(name, None) for name in ("data_dir", "network")}
        settings = read_settings(ctx.params.pop("config"), dict(flags))
        configure_logging(settings.log.format, settings.log.level)
        ctx.params["settings"] = settings
        return super().invoke(ctx)


def _flag_of(setting: Declaration) -> click.Option:
    """Make the flag of a setting. Its value is checked with the other settings, not by click."""
    default, metavar = setting.default, setting.marker.metavar
    kind: click.ParamType[Any] | None = None
    if metavar == "FILE":
        kind = click.Path(path_type=Path, dir_okay=False)
    elif metavar == "DIR":
        kind = click.Path(file_okay=False)  # a Path of an empty text would be the working directory
    elif get_origin(setting.field.annotation) is Literal and metavar is None:
        kind = click.Choice(get_args(setting.field.annotation))
    text = " ".join(setting.description.partition("\n\n")[0].split())
    repeated = isinstance(default, tuple | Mapping)
    if repeated:
        text += " May be repeated."
    if isinstance(default, bool):
        text += f"  [default: {'' if default else 'no-'}{setting.flag[2:]}]"
    elif default:
        unit = "s" if metavar == "TIME" else ""
        text += f"  [default: {_shown(default)}{unit}]"
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
    return _read(config, flags)[1]


def _read(config: Path | None, flags: Mapping[str, Any]) -> tuple[dict[str, Given], Settings]:
    """Read the settings as `read_settings`, and what was given of them by which source."""
    from recon_node.settings import SettingsError, checked_settings, given_settings

    try:
        given = given_settings(config, given_flags(flags))
        return given, checked_settings(given)
    except SettingsError as error:
        raise BadSettingsError(str(error)) from None


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

    The output is a TOML file that --config reads. Secrets (the token, the chains' URLs, and others
    with a password) are not shown. Without --all, only settings that some source sets are shown.

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
    _check_what_is_named(settings)
    chain = settings.chain
    if need := settings.anchor.unmet_need(chain.providers, chain.development_time):
        raise BadSettingsError(need)
    unknown = list(unknown_variables())
    for name in unknown:
        echo(f"warning: the environment variable {name} is not a setting", err=True)
    print_result(
        {"ok": True, "settings": list(given), "unknown_variables": unknown},
        f"ok: {counted(len(given), 'setting')}, all others have their defaults",
        as_json=as_json,
    )


def _check_what_is_named(settings: Settings) -> None:
    """Read the files, and open the object stores, that settings name. These are not asked yet."""
    from recon_node.p2p import P2PError
    from recon_node.p2p.transport.private_network import read_swarm_key
    from recon_node.snapshot.objects import Objects, UrlError, scheme_of

    try:
        settings.api.access_with_token()
        if settings.p2p.swarm_key_file is not None:
            read_swarm_key(settings.p2p.swarm_key_file)
        for url in filter(None, (settings.snapshot.url, *settings.snapshot.sources)):
            if scheme_of(url) not in ("", "file"):  # a directory may be made, or mounted, later
                Objects.open(url)
    except (ValueError, P2PError, UrlError) as error:
        raise BadSettingsError(str(error)) from None


def _rows(
    given: Mapping[str, Given], settings: Settings, everything: bool
) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the value as TOML and JSON have it, and the source of each setting."""
    from recon_node.settings import DECLARATIONS, value_of

    for name, declaration in DECLARATIONS.items():
        if name in given or everything:
            value = value_of(settings, name)
            if declaration.marker.secret or without_passwords(str(value)) != str(value):
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
@url_options(url=None, url_help="URL of a running node to ask, instead of the data directory.")
@json_option
@click.pass_context
def identity(
    context: click.Context,
    config: Path | None,
    data_dir: str | None,
    create: bool,
    url: str | None,
    token: str | None,
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
    if url is not None and data_dir is None and not create:
        with command_errors(url), Connection(url, token=token) as node:
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


def _local_peer_id(config: Path | None, data_dir: str | None, create: bool) -> str:
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
