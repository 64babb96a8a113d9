"""A node's store under its real HTTP API, without a network side: a process for the tests.

    python spark_node.py DATA_DIR PORT

Says "ready URL" when it answers. SIGTERM ends it; the data directory can be served again.
"""

import signal
import sys
from pathlib import Path

import trio

from recon_node.api import Services, create_app
from recon_node.api.server import open_listener, serve
from recon_node.ceramic import Network
from recon_node.store import open_store


async def main(data_dir: Path, port: int) -> None:
    async with open_store(data_dir, Network.local(7)) as store, trio.open_nursery() as nursery:
        services = Services(store=store)
        listener = await open_listener("127.0.0.1", port)
        nursery.start_soon(serve, create_app(services), listener, services.closing)
        print("ready", listener.url, flush=True)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                services.closing.set()
                break


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
