"""A testnet: several nodes as processes on the loopback interface, for experiments and tests.

Every node gets a data directory, a log file and free ports. The others only get the address of the
first one to bootstrap from, and find each other through it. When a node is ready, it logs one JSON
line with its addresses. A node that is started again takes the same ports.

No node outlives the process that started it, even if that is killed: its standard input is a pipe,
and it stops when the pipe closes (`--watch-stdin`).
"""

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, Self

from recon_node.base.errors import reason_of

READY_LIMIT = 120.0
"""Seconds that a node may take to start."""
STOP_LIMIT = 30.0
"""Seconds that a node may take to stop."""
_NETWORK_FILE = "network"
"""Where a testnet's directory keeps the network's name."""
_POLL = 0.02
"""Seconds between two looks at a log."""


class TestnetError(Exception):
    """A node of the testnet did not start or stop as it should."""

    __test__ = False


class TestnetNode:
    """One node of a testnet: a process, a data directory and a log file.

    Args:
        name: of the data directory and the log.
        directory: where these are.
        flags: more flags of `recon-node run`.
        host: the IPv4 address at which it listens for peers.
        prefix: what its command begins with, such as `ip netns exec NAME`.
    """

    __test__ = False

    def __init__(
        self,
        name: str,
        directory: Path,
        flags: Sequence[str],
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.data_dir = directory / name
        self.log_path = directory / f"{name}.log"
        self._flags = list(flags)
        self._host = host
        self._prefix = list(prefix)
        self._process: Popen[bytes] | None = None
        self.api_url = ""
        """Base URL of its HTTP API; this and what follows once it is ready."""
        self.peer_id = ""
        self.addresses: tuple[str, ...] = ()
        """The multiaddrs that it listens on, with /p2p/<peer id>."""
        self._log_offset = 0
        self._kept_ports: list[socket.socket] = []

    @property
    def pid(self) -> int | None:
        """Its process id, or None while it is not running."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.poll() is None

    def launch(self, flags: Sequence[str] = ()) -> None:
        """Start the process; `wait_until_ready` waits for it. Restarted, a node keeps its ports.

        Raises:
            TestnetError: the node is running.
        """
        if self.running:
            raise TestnetError(f"{self.name} is already running")
        self._flags += flags
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [*self._prefix, sys.executable, "-m", "recon_node", "run", "--watch-stdin"]
        command += ["--data-dir", str(self.data_dir), "--log-format", "json", *self._flags]
        with self.log_path.open("ab") as log:
            self._process = Popen(
                [*command, *self._port_flags()],
                stdin=PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the testnet, which then stops its nodes
            )

    def wait_until_ready(self, limit: float = READY_LIMIT) -> None:
        """Wait until the node logs that it is ready, at most `limit` seconds.

        Raises:
            TestnetError: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            running = self.running
            line = self._ready_line()
            if line is not None:
                self.api_url, self.peer_id = line["api"], line["peer_id"]
                self.addresses = tuple(line["addresses"])
                self.release_ports()
                return
            if not running:
                raise TestnetError(f"{self.name} stopped while it was starting:\n{self.log_tail()}")
            time.sleep(_POLL)
        raise TestnetError(f"{self.name} was not ready after {limit:g} s:\n{self.log_tail()}")

    def terminate(self) -> None:
        """Ask the node to stop (SIGTERM), without waiting for it."""
        if self._process is not None and self.running:
            self._process.terminate()

    def wait(self, limit: float = STOP_LIMIT) -> int:
        """Wait until the process has stopped, at most `limit` seconds.

        Returns:
            Its exit code, negative for a signal.

        Raises:
            TestnetError: it was never started, or does not end in time.
        """
        if self._process is None:
            raise TestnetError(f"{self.name} was never started")
        try:
            code = self._process.wait(limit)
        except TimeoutExpired:
            raise TestnetError(f"{self.name} did not stop in {limit:g} s") from None
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._keep_ports()
        return code

    def stop(self) -> int:
        """Stop the node (SIGTERM) and wait for it; return its exit code."""
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill the node (SIGKILL): it cannot clean up."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGKILL)
            self.wait()

    def discard(self) -> None:
        """Kill the node, if it is running, and let others have its ports: it does not come back."""
        self.kill()
        self.release_ports()

    def restart(self) -> None:
        """Start the node again, after `kill` or `stop`, and wait until it is ready."""
        self.launch()
        self.wait_until_ready()

    def release_ports(self) -> None:
        """Let others have the ports of a node that has stopped and does not come back."""
        for kept in self._kept_ports:
            kept.close()
        self._kept_ports.clear()

    def log_tail(self, lines: int = 10) -> str:
        """Return the last lines of its log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _ready_line(self) -> dict[str, Any] | None:
        with self.log_path.open("rb") as log:
            log.seek(self._log_offset)
            for line in log:
                if b'"Ready"' in line and line.endswith(b"\n"):
                    value = json.loads(line)
                    if value.get("event") == "Ready":
                        return dict(value)
        return None

    def _keep_ports(self) -> None:
        """Keep the ports from being given to others who ask for any, until the node is back.

        A socket that is bound, but does not listen, does that. The node can listen all the same,
        since both allow to share the address (SO_REUSEADDR).
        """
        self.release_ports()
        if not self.api_url:
            return
        ports = [int(self.api_url.rpartition(":")[2])]
        ports += [int(address.split("/")[4]) for address in self.addresses]
        for port in ports:
            kept = socket.socket()
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._kept_ports.append(kept)
            with suppress(OSError):  # someone was quicker: the node will say so
                kept.bind(("127.0.0.1", port))

    def _port_flags(self) -> list[str]:
        if not self.api_url:
            return ["--listen", f"/ip4/{self._host}/tcp/0", "--api", "127.0.0.1:0"]
        flags = ["--api", self.api_url.removeprefix("http://")]
        for address in self.addresses:
            flags += ["--listen", address.partition("/p2p/")[0]]
        return flags


class Testnet:
    """Several nodes on the loopback interface; use it as a context manager.

    Args:
        nodes: how many.
        directory: for data and logs; by default a temporary directory, removed at the end.
        network: its name; by default a local network with a random number, so that no two mix.
        flags: more flags of `recon-node run` for each node.
    """

    __test__ = False

    def __init__(
        self,
        nodes: int = 3,
        directory: Path | None = None,
        network: str | None = None,
        flags: Sequence[str] = ("--sync-interval", "2"),
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="recon-testnet-")
            directory = Path(self._temporary.name)
        self.directory = directory
        self.network = _network_of(directory, network)
        shared = ["--network", self.network, *flags]
        self.nodes = [
            TestnetNode(f"node-{number}", directory, shared) for number in range(1, nodes + 1)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all nodes and wait until they are ready. On failure, all are stopped."""
        try:
            first, *others = self.nodes
            first.launch()
            first.wait_until_ready()
            for node in others:
                node.launch(["--bootstrap", first.addresses[0]])
            for node in others:
                node.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all nodes, by force if they do not stop in time, and remove temporary data."""
        for node in self.nodes:
            node.terminate()
        deadline = time.monotonic() + STOP_LIMIT
        for node in self.nodes:
            if node.running:
                try:
                    node.wait(max(0.1, deadline - time.monotonic()))
                except TestnetError:
                    node.kill()
            node.release_ports()
        if self._temporary is not None:
            self._temporary.cleanup()


def _environment() -> dict[str, str]:
    """Return this process's environment without settings of a node, which all would get."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RECON_NODE_")}


def _network_of(directory: Path, wanted: str | None) -> str:
    """Return the network of the nodes in a directory: the one wanted, that of the directory's
    last use, or a new one."""
    path = directory / _NETWORK_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if wanted is None and path.exists():
            return path.read_text(encoding="ascii").strip()
        network = wanted or f"local-{secrets.randbelow(2**32)}"
        path.write_text(f"{network}\n", encoding="ascii")
    except OSError as error:
        raise TestnetError(f"{directory} cannot be used: {reason_of(error)}") from None
    return network
