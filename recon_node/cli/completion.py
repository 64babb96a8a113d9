"""`recon-node completion`: shell completion, installed by one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from recon_node.cli.output import CommandError

_SHELLS: Final = ("bash", "zsh", "fish")
_PROGRAM: Final = "recon-node"
_VARIABLE: Final = "_RECON_NODE_COMPLETE"
_BEGIN: Final = "# recon-node: completion of commands"


@click.group()
def completion() -> None:
    """Complete commands and flags with the Tab key."""


@completion.command("show")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def show(shell: str | None) -> None:
    """Print the completion script of a shell; by default, of the one in $SHELL."""
    click.echo(_script(shell or _current_shell()))


@completion.command("install")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def install(shell: str | None) -> None:
    """Install the completion of a shell; by default, of the one in $SHELL.

    The script goes where the shell looks for it: for bash, to the directory of the bash-completion
    package; for fish, to its configuration; for zsh, to a file that ~/.zshrc then reads. Running
    the command again replaces it.

    \b
    Example:
      recon-node completion install
    """
    shell = shell or _current_shell()
    path = _path_of(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_script(shell), encoding="utf-8")
        if shell == "zsh":
            _source_in(Path.home() / ".zshrc", path)
    except OSError as error:
        where = error.filename or path
        raise CommandError(f"{where} cannot be written: {error.strerror or error}") from None
    click.echo(f"installed {path}; open a new {shell} to use it")


def _script(shell: str) -> str:
    from recon_node.cli import main

    found = get_completion_class(shell)
    if found is None:
        raise CommandError(f"click has no completion for {shell}")
    return str(found(main, {}, _PROGRAM, _VARIABLE).source())


def _current_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise click.UsageError(f"which shell? Name it: {', '.join(_SHELLS)}")
    return name


def _path_of(shell: str) -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion/completions" / _PROGRAM,
        "fish": config / "fish/completions" / f"{_PROGRAM}.fish",
        "zsh": data / _PROGRAM / "completion.zsh",
    }[shell]


def _source_in(rc: Path, script: Path) -> None:
    """Have zsh read the script at its start, once."""
    text = rc.read_text(encoding="utf-8") if rc.exists() else ""
    if _BEGIN not in text:
        gap = "" if not text or text.endswith("\n") else "\n"
        with rc.open("a", encoding="utf-8") as file:
            file.write(f'{gap}{_BEGIN}\n[ -r "{script}" ] && source "{script}"\n')
