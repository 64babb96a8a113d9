"""The signals that stop a program of this package in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_signals() -> list[signal.Signals]:
    """Return the signals to stop at: Ctrl-C, a service manager's, and that of a closed terminal.

    A signal that is ignored at the start, such as SIGHUP under `nohup`, stays ignored.
    """
    return [each for each in _STOP if signal.getsignal(each) != signal.SIG_IGN]


@contextmanager
def cleaned_up_when_stopped() -> Iterator[None]:
    """Make the stop signals raise an exception in the block, so that it cleans up after itself.

    Signals that follow the first are ignored until the block has ended.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = {each: signal.getsignal(each) for each in stop_signals()}

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
