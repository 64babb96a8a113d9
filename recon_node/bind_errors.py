"""What to do when a port cannot be listened on, for people."""

from __future__ import annotations

import errno

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def bind_advice(error: OSError, port: int, flag: str) -> str:
    """What to do about an error of `bind`, as a sentence.

    Args:
        error: what the system said.
        port: the port that was asked for.
        flag: of the command line, by which another address is chosen.
    """
    if error.errno == errno.EADDRINUSE:
        return f"Another node or program uses the port: stop it, or choose another port ({flag})"
    if error.errno in (errno.EACCES, errno.EPERM):
        if 0 < port < 1024:
            return (
                f"Ports below 1024 need a permission: choose a port above 1023 ({flag}), or give "
                "the node the capability CAP_NET_BIND_SERVICE"
            )
        return f"The system does not permit it: choose another address ({flag})"
    if error.errno in _NO_SUCH_ADDRESS:
        return f"It is not an address of this machine: choose one that is ({flag})"
    return f"Choose another address ({flag})"
