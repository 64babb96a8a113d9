"""Programs of commands that are interrupted while they import what they need."""

_PROGRAM = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
from {package}.cli import main
main()
"""


def interrupted_at(module: str, package: str) -> str:
    """Return the program of a package's command, for `python -c`, that gets Ctrl-C once it is about
    to import that module."""
    return _PROGRAM.format(module=module, package=package)
