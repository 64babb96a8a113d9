"""The signals that stop a program of this package in good order."""

from __future__ import annotations

import signal
from typing import Final

_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_signals() -> list[signal.Signals]:
    """Return the signals to stop at: Ctrl-C, a service manager's, and that of a closed terminal.

    A signal that is ignored at the start, such as SIGHUP under `nohup`, stays ignored.
    """
    return [each for each in _STOP if signal.getsignal(each) != signal.SIG_IGN]
