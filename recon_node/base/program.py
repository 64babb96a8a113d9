"""What the programs of this package share: standard streams, the signals that stop them, the limit
of open files, how often garbage is collected, and advice where they cannot listen."""

import errno
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import Final, NoReturn

_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
INTERRUPTED: Final = 130
"""The exit code of a program that was stopped by Ctrl-C."""
_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_standard_streams() -> None:
    """Open what the shell has closed (`<&-`, `>&-`, `2>&-`) on nothing, and have standard output
    take any text, as standard error does: what its encoding lacks is escaped.

    Otherwise the next file that is opened gets the number of standard output, for one, and whatever
    prints writes into it.
    """
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def quietly_interrupted() -> Iterator[None]:
    """End the process at Ctrl-C with one word and the exit code 130, which shells expect.

    For imports: an exception may come at any point of theirs, where some wrap or lose it. What runs
    then cleans up after itself, and has Python's own handler.
    """
    is_usual = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_usual:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    except KeyboardInterrupt:
        _leave()
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, b"Aborted!\n")
    os._exit(INTERRUPTED)


def stop_signals() -> list[signal.Signals]:
    """Return the signals to stop at: Ctrl-C, a service manager's, and that of a closed terminal.

    A signal that is ignored at the start, such as SIGHUP under `nohup`, stays ignored.
    """
    return [stop_signal for stop_signal in _STOP if signal.getsignal(stop_signal) != signal.SIG_IGN]


@contextmanager
def cleaned_up_when_stopped() -> Iterator[None]:
    """Make the stop signals raise an exception in the block, so that it cleans up after itself.

    Signals that follow the first are ignored until the block has ended.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = {stop_signal: signal.getsignal(stop_signal) for stop_signal in stop_signals()}

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for stop_signal in before:
            signal.signal(stop_signal, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for stop_signal in before:
        signal.signal(stop_signal, stop)
    try:
        yield
    finally:
        for stop_signal, handler in before.items():
            signal.signal(stop_signal, handler)


def allow_files(wanted: int) -> int:
    """Raise the soft limit of open files to a number, as far as the hard one allows.

    Returns:
        How many may be open now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else wanted


def limit(kind: int, most: int) -> None:
    """Limit what this process may use (`resource.RLIMIT_...`), if it is not limited further."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def bind_advice(error: OSError, port: int, flag: str) -> str:
    """Return a sentence that says what to do about an error of `bind`."""
    if error.errno == errno.EADDRINUSE:
        return f"Another node or program uses the port: stop it, or choose another port ({flag})"
    if error.errno in (errno.EACCES, errno.EPERM):
        if 0 < port < 1024:
            return (
                f"Ports below 1024 require a permission: choose a higher port ({flag}), or give "
                "the program the capability CAP_NET_BIND_SERVICE"
            )
        return f"Permission denied: choose another address ({flag})"
    if error.errno in _NO_SUCH_ADDRESS:
        return f"This machine does not have that address: choose another one ({flag})"
    return f"Choose another address ({flag})"


@contextmanager
def no_garbage_collection(*, for_good: bool = False) -> Iterator[None]:
    """Switch off the search for cycles, which looks at all objects again and again.

    For work that makes very many objects and no cycles. Objects that are in no cycle are freed as
    always. If what was made is to stay, later searches leave it out, too (`for_good`): to look at
    ten million keys once takes half a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if was_on:
            gc.enable()


_YOUNG_OBJECTS: Final = 50_000
"""New containers after which the garbage collector looks at them; Python's default is 700.

A batch of 1,000 events makes more than 10,000, and nearly all are freed without its help, but not
before several batches are under way. A cycle, with what it keeps in memory, may stay for as long as
this many containers take to be made.
"""


def collect_seldom() -> None:
    """Have garbage collections leave out what is here by now: code, settings, the key store.

    Otherwise each full collection looks at all of it, and holds the event loop for a tenth of a
    second or more. Later objects are looked at less often than by default, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
