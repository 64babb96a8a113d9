"""Shared by the p2p tests: hosts on loopback, and raw connections that misbehave on purpose."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from recon_node.ceramic import EventId, Network
from recon_node.p2p.host import Host, open_host
from recon_node.p2p.settings import P2PSettings

NETWORK = Network.local(7)
LOOPBACK = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",))

Held = tuple[EventId, bytes]
"""An event that someone holds: its EventId and CAR."""


@asynccontextmanager
async def loopback_host(**changes: Any) -> AsyncIterator[Host]:
    """A host with a fresh identity on a free port of loopback."""
    async with open_host(replace(LOOPBACK, **changes), create_new_key_pair()) as host:
        yield host


async def eventually(condition: Any, seconds: float = 5.0) -> None:
    """Wait until a condition holds; fail the test when it does not in time."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (not all that is waited for has an event)
            await trio.sleep(0.01)


async def read_to_end(stream: Any) -> None:
    """Read until the stream ends. A reset of a libp2p stream may look like an end, too."""
    with trio.fail_after(5):
        while await stream.receive_some(100):
            pass


def only_connection(host: Host, peer: Host) -> Any:
    """The muxed connection that `host` has with `peer`; there must be one."""
    (connection,) = host._live(peer.libp2p.get_id())
    return connection.muxed_conn
