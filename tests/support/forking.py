"""Python programs as processes that are forked from one that has imported the node already.

The imports of a node take more than a second of CPU, those of the pipeline one more, a fork of them
a few milliseconds. The process that forks is one of its own, in which nothing runs; tests that are
about starting use `subprocess`.

    python forking.py SOCKET    forks what `Popen` sends over the socket, until it closes
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from recon_node import testnet
from recon_node.processes import process

NODE: Final = ("recon_node.cli.run", "recon_node.node")
PIPELINE: Final = ("spark_sink.cli.commands", "spark_sink.derive.portion", "spark_sink.run.runner")
"""Not DuckDB, whose import starts a thread, which a fork does not have."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_MAX_REQUEST: Final = 1 << 20
_ASKING: Final = threading.Lock()
_VARIABLES: Final[dict[str, str]] = {}
"""Variables that imports have set, as they would in each process."""


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of Python, with a module (`-m`), code (`-c`) or a file."""

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        _, _, _, passed, cwd, env, _, _, _, *pipes = rest[:15]
        new_session = rest[-2]
        standard = enumerate((pipes[0], pipes[3], pipes[5]))
        files = {number: number if file == -1 else file for number, file in standard}
        files |= {file: file for file in passed}
        request = {
            "argv": [str(argument) for argument in args[1:] if argument != "-P"],
            "files": list(files),
            "environment": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": new_session,
        }
        with _ASKING:
            server = _server()
            socket.send_fds(server, [json.dumps(request).encode()], [*files.values()])
            self.pid = int(server.recv(100))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with this `Popen`."""
    with Popen(command, **options) as process:
        stdout, stderr = process.communicate(timeout=100)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@cache
def _server() -> socket.socket:
    """Start the process that forks; it ends with this one. What it forks becomes a child of this
    process, since whatever forked it for that ends at once."""
    _become_subreaper()
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        server = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            pass_fds=[its.fileno()],
            start_new_session=True,  # Ctrl-C is for the tests
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    for end in server.wait, server.kill, ours.close:  # in the reverse order, at the exit
        atexit.register(end)
    return ours


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def _fork_for(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return only in the processes that were forked, with their request."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 16)
        if not message:
            os._exit(0)
        request: dict[str, Any] = json.loads(message)
        if any("spark" in argument for argument in request["argv"]):
            _import(*PIPELINE)
        watched, tell = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            if pid := os.fork():
                os.write(tell, str(pid).encode())
                os._exit(0)
            while os.getppid() == parent:  # programs remember whose they are
                time.sleep(0.001)
            above = max(request["files"]) + 1
            moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
            for file in (*files, watched, tell, requests.detach()):
                os.close(file)
            for file, number in zip(moved, request["files"], strict=True):
                os.dup2(file, number)
                os.close(file)
            return request
        os.waitpid(between, 0)  # only now is its child one of the tests
        requests.send(os.read(watched, 100))
        for file in (*files, watched, tell):
            os.close(file)


def _run(request: dict[str, Any]) -> None:
    """Be the program, as if Python had just started."""
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(_VARIABLES | request["environment"])
    os.chdir(request["cwd"])
    _open_standard_streams()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [path for path in paths if path and path not in sys.path]
    first, *more = request["argv"]
    if first == "-m":
        name, *more = more
        if name == "recon_node":
            _fork_its_processes()
        sys.argv = [name, *more]
        sys.path[0] = request["cwd"]
        sys.modules.pop(name, None)  # where it was imported, runpy would warn
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *more = more
        sys.argv = [first, *more]
        sys.path[0] = request["cwd"]
        exec(code, {"__name__": "__main__"})
    else:
        sys.argv = [first, *more]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def _open_standard_streams() -> None:
    """Open them as Python does: their buffering depends on what they are, and errors of output
    that is buffered come late. This process may have been started with others, or unbuffered."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        mode = "w" if number else "r"
        how = {"encoding": before.encoding, "errors": before.errors, "closefd": False}
        stream = os.fdopen(number, mode, **how)
        if name == "stderr":
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _fork_its_processes() -> None:
    """Have the processes of a node, or of a testnet, forked as well, by one that has none of its
    threads."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _run(_fork_for(its))
        sys.exit()
    its.close()
    _become_subreaper()
    globals()["_server"] = lambda: ours
    process.Popen = testnet.Popen = Popen  # type: ignore[misc]


@cache
def _import(*modules: str) -> None:
    before = dict(os.environ)
    for module in modules:
        importlib.import_module(module)
    _VARIABLES.update(dict(os.environ.items() - before.items()))
    gc.freeze()  # a collection would copy all pages


if __name__ == "__main__":
    _import(*NODE)
    _run(_fork_for(socket.socket(fileno=int(sys.argv[1]))))
