"""Dials peers: what an address stands for, which of its meanings answers, and why none does."""

import os
from collections.abc import Sequence
from typing import Final

import structlog
import trio
from libp2p.exceptions import ParseError
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.base.errors import leaves, reason_of
from recon_node.p2p.errors import PeerError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import is_dialable, is_loopback, resolve
from recon_node.p2p.transport.hardening import GuardedSwarm

logger = structlog.get_logger(__name__)

KEY_HINT: Final = " (it may not have this node's swarm key)"
NOISE_HINT: Final = " (it may be in a private network: this node has no swarm key)"
"""For a node on an open network: whatever is encrypted with a key looks like noise."""

LOOKUPS: Final = 32
"""Maximum names that are looked up at once."""
_ADDRESS_TTL: Final = 24 * 3600
"""Seconds for which the library keeps an address that worked."""


class Dialler:
    """Dials for a host.

    Args:
        swarm: makes the connections.
        settings: among them, in which time a peer must have answered.
        is_private: whether this node is in a private network; a peer that is not cannot say so.
    """

    def __init__(self, swarm: GuardedSwarm, settings: P2PSettings, is_private: bool) -> None:
        self._swarm = swarm
        self._timeout = settings.dial_timeout
        self._is_local = all(map(is_loopback, settings.listen))
        self._hint = KEY_HINT if is_private else ""
        self._lookups = trio.CapacityLimiter(LOOKUPS)

    async def dial(self, address: Multiaddr, peer_id: ID) -> None:
        """Connect to a peer, and note at which address it was reached.

        Raises:
            PeerError: it cannot be reached, or does not answer in time.
        """
        try:
            with trio.fail_after(self._timeout):
                reached = await self._dial_first(await self.resolve(address), peer_id)
        except trio.TooSlowError:
            limit = f"{self._timeout:g} s"
            raise PeerError(f"{address} did not answer within {limit}{self._hint}") from None
        except PeerError:
            raise
        except Exception as error:
            hint = self._hint or (NOISE_HINT if isinstance(_root_of(error), ParseError) else "")
            raise PeerError(f"cannot connect to {address}: {innermost(error)}{hint}") from error
        self._swarm.unblock_peer(peer_id)  # a dial of the DHT may have failed a moment ago
        self._swarm.peerstore.add_addrs(peer_id, [reached], _ADDRESS_TTL)

    async def resolve(self, address: Multiaddr) -> list[Multiaddr]:
        """Return what an address stands for: nothing on this machine, unless it says so itself, or
        this node is for this machine only. Whoever gives a name chooses what it resolves to.

        Raises:
            PeerError: it resolves to nothing else.
        """
        resolved = await resolve(address, self._lookups)
        if not self._is_local and not is_loopback(str(address)):
            resolved = [
                candidate
                for candidate in resolved
                if not is_loopback(str(candidate)) and is_dialable(candidate)
            ]
        if not resolved:
            raise PeerError(
                f"{address} cannot be dialled: it resolves to this machine; use its IP address"
            )
        return resolved

    async def _dial_first(self, addresses: Sequence[Multiaddr], peer_id: ID) -> Multiaddr:
        """Dial addresses in turn. Return the one that worked, or raise the error of the last
        one."""
        *others, last = addresses
        for address in others:
            try:
                await self._swarm.dial_addr(address, peer_id)
            except Exception as error:  # of every layer, as in dial
                logger.debug("Cannot dial an address", address=str(address), error=repr(error))
            else:
                return address
        await self._swarm.dial_addr(last, peer_id)
        return last


def innermost(error: BaseException) -> str:
    """Return in words what began a chain of errors of the library."""
    error = _root_of(error)
    if isinstance(error, PeerIDMismatchesPubkey):
        return f"another peer answers at this address, {str(error).rpartition('=')[2]}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return reason_of(error)


def _root_of(error: BaseException) -> BaseException:
    """Return what began a chain of errors."""
    error = next(leaves(error))
    return error if error.__cause__ is None else _root_of(error.__cause__)
