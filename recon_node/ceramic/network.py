"""The Ceramic networks. Their ids come first in every EventID, so that no two ever mix.

Source: the networkIds table of the CIPs
(https://github.com/ceramicnetwork/CIPs/blob/main/tables/networkIds.csv); names as ceramic-one
writes them.
"""

import re
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
        """The private network of that number, 0 to 2^32 - 1; its name is "local-<number>".

        Raises:
            NetworkError: the number is out of range.
        """
        if not 0 <= local_id < _LOCAL_BASE:
            raise NetworkError(f"a local network's number is from 0 to 2^32 - 1, not {local_id}")
        return cls(_LOCAL_BASE + local_id, f"local-{local_id}")

    @classmethod
    def parse(cls, name: str) -> "Network":
        """The network of that name: "mainnet", "testnet-clay", "local-7"...

        Raises:
            NetworkError: there is none.
        """
        for network in _NAMED:
            if name == network.name:
                return network
        if name == "in-memory":
            return IN_MEMORY
        if match := _LOCAL_NAME.fullmatch(name):
            return cls.local(int(match[1]))
        known = ", ".join(network.name for network in _NAMED)
        raise NetworkError(f"no network is named {name!r}; there are {known} and local-<number>")

    @classmethod
    def from_id(cls, network_id: int) -> "Network":
        """The network of that id in the networkIds table.

        Raises:
            NetworkError: there is none.
        """
        for network in _NAMED:
            if network_id == network.id:
                return network
        if _LOCAL_BASE <= network_id < 2 * _LOCAL_BASE:
            return cls.local(network_id - _LOCAL_BASE)
        raise NetworkError(f"no network has the id {network_id}")

    def __str__(self) -> str:
        return self.name


MAINNET: Final = Network(0, "mainnet")
TESTNET_CLAY: Final = Network(1, "testnet-clay")
DEV_UNSTABLE: Final = Network(2, "dev-unstable")
IN_MEMORY: Final = Network(0xFF, "inmemory")

_NAMED: Final = (MAINNET, TESTNET_CLAY, DEV_UNSTABLE, IN_MEMORY)


def network_name(network_id: int) -> str:
    """The name of the network of that id, for people; the id where the table has none."""
    try:
        return Network.from_id(network_id).name
    except NetworkError:
        return f"network id {network_id}"
