"""Shell completion of this project's programs, installed by one command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from recon_node.terminal_text import echo

_SHELLS: Final = ("bash", "zsh", "fish")


def completion_command(program: str, main: Callable[[], click.Command]) -> click.Group:
    """Return the command `completion` of a program.

    Args:
        program: its name.
        main: returns its command.
    """
    completion = _Completion(program, main)

    @click.group("completion", short_help="Install the completion of commands in a shell.")
    def group() -> None:
        """Complete commands and flags with the Tab key."""

    @group.command("show")
    @click.argument("shell", type=click.Choice(_SHELLS), required=False)
    def show(shell: str | None) -> None:
        """Print the completion script of a shell; by default, of the one in $SHELL."""
        echo(completion.script(shell or _current_shell()), lines=True)

    @group.command(
        "install",
        help="Install the completion of a shell; by default, of the one in $SHELL.\n\n"
        "The script goes where the shell looks for it: for bash, to the directory of the "
        "bash-completion package; for fish, to its configuration; for zsh, to a file that "
        "~/.zshrc then reads. Running the command again replaces it.\n\n"
        f"\b\nExample:\n  {program} completion install",
    )
    @click.argument("shell", type=click.Choice(_SHELLS), required=False)
    def install(shell: str | None) -> None:
        shell = shell or _current_shell()
        echo(f"installed {completion.install(shell)}; open a new {shell} to use it")

    return group


class _Completion:
    """The completion of a program in any shell."""

    def __init__(self, program: str, main: Callable[[], click.Command]) -> None:
        self._program = program
        self._main = main
        self._variable = f"_{program.replace('-', '_').upper()}_COMPLETE"

    def script(self, shell: str) -> str:
        found = get_completion_class(shell)
        if found is None:
            raise click.ClickException(f"click has no completion for {shell}")
        return str(found(self._main(), {}, self._program, self._variable).source())

    def install(self, shell: str) -> Path:
        """Write the script to where the shell looks for it; return its path."""
        path = self._path(shell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.script(shell), encoding="utf-8")
            if shell == "zsh":
                self._source_in(Path.home() / ".zshrc", path)
        except OSError as error:
            where = error.filename or path
            raise click.ClickException(
                f"{where} cannot be written: {error.strerror or error}"
            ) from None
        return path

    def _path(self, shell: str) -> Path:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return {
            "bash": data / "bash-completion/completions" / self._program,
            "fish": config / "fish/completions" / f"{self._program}.fish",
            "zsh": data / self._program / "completion.zsh",
        }[shell]

    def _source_in(self, rc: Path, script: Path) -> None:
        """Have zsh read the script at its start, once."""
        begin = f"# {self._program}: completion of commands"
        text = rc.read_text(encoding="utf-8") if rc.exists() else ""
        if begin not in text:
            gap = "" if not text or text.endswith("\n") else "\n"
            with rc.open("a", encoding="utf-8") as file:
                file.write(f'{gap}{begin}\n[ -r "{script}" ] && source "{script}"\n')


def _current_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise click.UsageError(f"which shell? Name it: {', '.join(_SHELLS)}")
    return name
