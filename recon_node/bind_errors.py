"""Advice for errors when listening on a port."""

from __future__ import annotations

import errno

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def bind_advice(error: OSError, port: int, flag: str) -> str:
    """Return a sentence that says what to do about an error of `bind`.

    Args:
        error: the error.
        port: the port to listen on.
        flag: the flag that chooses another address.
    """
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
