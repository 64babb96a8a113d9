"""The Ceramic networks. Their ids come first in every EventId, so that networks never mix.

Source: the networkIds table of the CIPs
(https://github.com/ceramicnetwork/CIPs/blob/main/tables/networkIds.csv); names as ceramic-one
writes them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from recon_node.ceramic.errors import NetworkError

_LOCAL_BASE: Final = 1 << 32
_LOCAL_NAME: Final = re.compile(r"local-(0|[1-9][0-9]{0,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Network:
    """A Ceramic network: its number in the networkIds table, and its name."""

    id: int
    name: str

    @classmethod
    def local(cls, local_id: int) -> Self:
        """Return the private network "local-<number>"; numbers go from 0 to 2^32 - 1.

        Raises:
            NetworkError: the number is out of range.
        """
        if not 0 <= local_id < _LOCAL_BASE:
            raise NetworkError(f"a local network's number is from 0 to 2^32 - 1, not {local_id}")
        return cls(_LOCAL_BASE + local_id, f"local-{local_id}")

    @classmethod
    def parse(cls, name: str) -> "Network":
        """Return the network of that name: "mainnet", "testnet-clay", "local-7"...

        Raises:
            NetworkError: there is no such network.
        """
        for network in _NAMED:
            if name == network.name:
                return network
        if name == "in-memory":
            return IN_MEMORY
        if match := _LOCAL_NAME.fullmatch(name):
            return cls.local(int(match[1]))
        known = ", ".join(network.name for network in _NAMED)
        raise NetworkError(f"no network is named {name!r}: use {known} or local-<number>")

    @classmethod
    def from_id(cls, network_id: int) -> "Network":
        """Return the network of that id in the networkIds table.

        Raises:
            NetworkError: there is no such network.
        """
        for network in _NAMED:
            if network_id == network.id:
                return network
        if _LOCAL_BASE <= network_id < 2 * _LOCAL_BASE:
            return cls.local(network_id - _LOCAL_BASE)
        raise NetworkError(f"no network has the id {network_id}")

    @property
    def is_local(self) -> bool:
        """Whether it is a private network, `local-NUMBER`."""
        return self.id >= _LOCAL_BASE

    def __str__(self) -> str:
        return self.name


MAINNET: Final = Network(0, "mainnet")
TESTNET_CLAY: Final = Network(1, "testnet-clay")
DEV_UNSTABLE: Final = Network(2, "dev-unstable")
IN_MEMORY: Final = Network(0xFF, "inmemory")

BOOTSTRAP: Final[Mapping[Network, tuple[str, ...]]] = {
    MAINNET: (
        "/dns4/bootstrap-mainnet-rust-ceramic-1.3box.io/tcp/4101"
        "/p2p/12D3KooWJC1yR4KiCnocV9kuAEwtsMNh7Xmu2vzqpBvk2o3MrYd6",
        "/dns4/bootstrap-mainnet-rust-ceramic-2.3box.io/tcp/4101"
        "/p2p/12D3KooWCuS388c1im7KkmdrpsLMziihF8mbcv2w6HPCp4Qmww6m",
    ),
    TESTNET_CLAY: (
        "/dns4/bootstrap-tnet-rust-ceramic-1.3box.io/tcp/4101"
        "/p2p/12D3KooWMqCFj5bnwuNi6D6KLhYiK4C8Eh9xSUKv2E6Jozs4nWEE",
        "/dns4/bootstrap-tnet-rust-ceramic-2.3box.io/tcp/4101"
        "/p2p/12D3KooWPFGbRHWfDaWt5MFFeqAHBBq3v5BqeJ4X7pmn2V1t6uNs",
    ),
}
"""The public bootstrap nodes of a network, as multiaddrs; the same as ceramic-one's."""

_NAMED: Final = (MAINNET, TESTNET_CLAY, DEV_UNSTABLE, IN_MEMORY)


def network_name(network_id: int) -> str:
    """Return the display name of a network; its id if the table has no name for it."""
    try:
        return Network.from_id(network_id).name
    except NetworkError:
        return f"network id {network_id}"
