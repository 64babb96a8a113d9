"""Nodes for the tests: each a store under its real HTTP API, without a network side, in a process.

Reads lines "DATA_DIR PORT" from stdin; for each forks a process that serves that node and says
"ready PID URL". Forking, and not starting Python anew, saves three seconds of imports a node.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import structlog
import trio

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import open_listener
from recon_node.api.server import serve
from recon_node.api.settings import Limits
from recon_node.ceramic import Network
from recon_node.store import Store, open_store


async def serve_node(data_dir: Path, port: int) -> None:
    async with open_store(data_dir, Network.local(7)) as store:
        services = Services(store=store, limits=Limits(arrow_rows=64))  # many batches of few events
        listener = await open_listener("127.0.0.1", port)
        print("ready", os.getpid(), listener.url, flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anchor, store)
            await serve(create_app(services), listener, services.closing)
            nursery.cancel_scope.cancel()


async def anchor(store: Store) -> None:
    """A chain whose transactions say in their hashes when their blocks were made; 0: not found."""
    while True:
        arrivals = store.proof_arrivals
        pending = await store.reader.pending_proofs(1000)
        times = [(proof.cid, int.from_bytes(proof.proof.tx_hash[-32:])) for proof in pending]
        await store.settle_proofs([(cid, time) for cid, time in times if time])
        await store.wait_for_proofs(arrivals)


def drop(*_: object) -> NoReturn:
    """The node's own log is of no interest here."""
    raise structlog.DropEvent


if __name__ == "__main__":
    structlog.configure(processors=[drop])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a killed node leaves no zombie
    nodes: list[int] = []
    for line in sys.stdin:
        data_dir, port = line.rsplit(maxsplit=1)
        nodes.append(os.fork())
        if nodes[-1] == 0:
            trio.run(serve_node, Path(data_dir), int(port))
            sys.exit()
    for node in nodes:  # whoever started us is gone, and may not have ended them
        with suppress(ProcessLookupError):
            os.kill(node, signal.SIGKILL)
