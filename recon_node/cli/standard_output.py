"""Standard output that does not take what a command prints: one line, no trace."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

_IS_GONE = (errno.EPIPE, errno.EINVAL)
"""Whoever read the output has seen enough, `head` say (EINVAL: on Windows)."""
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class CarefulGroup(click.Group):
    """The command line as a whole: exit code 1 where standard output is full or was closed."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, and see to it that all that it printed has gone out."""
        try:
            try:
                return super().main(*args, **extra)
            finally:
                if sys.stdout is not None:  # closed by the shell (>&-)
                    sys.stdout.flush()
        except OSError as error:
            if error.errno not in (*_IS_GONE, *_IS_FULL) or error.filename is not None:
                raise
            _give_up_output()
            if error.errno in _IS_FULL:
                click.echo(f"Error: standard output cannot be written: {error.strerror}", err=True)
            sys.exit(1)


def _give_up_output() -> None:
    """Send what the interpreter would still write at its end to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
