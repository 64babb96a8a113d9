"""The settings of anchoring, and what is known of chains."""

import re
from collections.abc import Container
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from recon_node.base.setting_types import (
    SETTINGS,
    Count,
    Flag,
    OptionalPath,
    Setting,
    TextList,
    checked_by,
    parse_seconds,
)
from recon_node.ceramic import StreamId
from recon_node.ceramic.auth.did import check_keys, eip55
from recon_node.ceramic.auth.wallets import ADDRESS
from recon_node.ceramic.time_proof import DEVELOPMENT_CHAIN
from recon_node.chain.settings import CHAIN_ID

_GWEI: Final = 10**9
CONTRACT: Final = "0x231055A0852D67C7107Ad0d0DFeab60278fE6AdC"
"""Where the anchor contract is on Ethereum, Gnosis and Sepolia."""


@plain_dataclass(frozen=True, slots=True)
class ChainDefaults:
    """What is sensible for a chain."""

    max_fee_gwei: float
    """The ceiling of the fee, in gwei per gas."""
    coin: str
    """In which fees are paid."""
    explorer: str = ""
    """The page of a transaction; `{tx}` is its hash."""


CHAINS: Final = {
    "eip155:1": ChainDefaults(20.0, "ETH", "https://etherscan.io/tx/{tx}"),
    "eip155:100": ChainDefaults(10.0, "xDAI", "https://gnosisscan.io/tx/{tx}"),
    "eip155:137": ChainDefaults(200.0, "POL", "https://polygonscan.com/tx/{tx}"),
    "eip155:8453": ChainDefaults(1.0, "ETH", "https://basescan.org/tx/{tx}"),
    "eip155:42161": ChainDefaults(1.0, "ETH", "https://arbiscan.io/tx/{tx}"),
    "eip155:11155111": ChainDefaults(50.0, "ETH", "https://sepolia.etherscan.io/tx/{tx}"),
    DEVELOPMENT_CHAIN: ChainDefaults(0.0, ""),
}
_OTHER: Final = ChainDefaults(50.0, "ETH")


def chain_defaults(chain_id: str) -> ChainDefaults:
    """Return what is sensible for a chain."""
    return CHAINS.get(chain_id, _OTHER)


def _check_chain(value: str) -> None:
    if value and not CHAIN_ID.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is not an EVM chain such as eip155:100")


def _check_address(value: str) -> None:
    if not ADDRESS.fullmatch(value):
        raise ValueError(f"{value[:50]!r} is not an address of 0x and 40 hexadecimal digits")
    if value[2:] not in (value[2:].lower(), value[2:].upper()) and value != eip55(value.lower()):
        raise ValueError(f"{value} is misspelled: the case of its letters is a checksum (EIP-55)")


def _check_key_file(value: Path) -> None:
    if re.fullmatch(r"(0x)?[0-9a-fA-F]{64}", value.name, re.ASCII):
        raise ValueError("this is a key, not a file: it belongs in a file with the mode 0600")


def _check_streams(values: tuple[str, ...]) -> None:
    for value in values:
        if value not in ("own", "all", "none") and not value.startswith("did:"):
            StreamId.parse(value)


@dataclass(frozen=True, slots=True, config=SETTINGS)
class AnchorSettings:
    """Anchoring: making time events, on a chain that this node pays."""

    authority: Annotated[
        Literal["off", "evm", "development"], Flag(name="anchor", metavar="AUTHORITY")
    ] = "off"
    """off, evm or development: who proves times. See docs/how-to/anchors.md.

    evm: transactions on `anchor_chain`, which needs an endpoint in `chain_rpc` and a key with some
    money. development: this machine's clock, which proves nothing; only in a local network, with
    `development_time`.
    """
    chain: Annotated[str, checked_by(_check_chain), Flag(name="anchor_chain", metavar="CHAIN")] = ""
    """The chain (CAIP-2), such as eip155:100 for Gnosis. Its transactions count as final after
    `chain_confirmations`."""
    contract: Annotated[
        str, checked_by(_check_address), Flag(name="anchor_contract", metavar="ADDRESS")
    ] = CONTRACT
    """The contract whose anchorDagCbor(bytes32) is called. It must allow the key's account to."""
    key_file: Annotated[
        OptionalPath, checked_by(_check_key_file), Flag(name="anchor_key_file", metavar="FILE")
    ] = None
    """File with the private key of the account that pays: 64 hexadecimal digits, or a keystore.

    Only its owner may be able to read it (0600). The account must not be used for anything else.
    """
    password_file: Annotated[OptionalPath, Flag(name="anchor_password_file", metavar="FILE")] = None
    """File with the password, if the key file is an encrypted keystore."""
    streams: Annotated[
        TextList, checked_by(_check_streams), Flag(name="anchor_streams", metavar="WHICH")
    ] = ("own",)
    """Which streams to anchor: own (those that clients of this node write to), all, or none; or
    controllers (did:...) and models (StreamIDs).

    Their latest events are anchored, and these cover the ones before. none: only what is requested.
    """
    unsigned: Annotated[bool, Setting("anchor_unsigned")] = False
    """Whether to anchor deterministic init events, which nobody signed and anybody can make."""
    dags: Annotated[bool, Setting("anchor_dags")] = False
    """Whether to anchor the events of DAGs."""
    interval: Annotated[
        float, BeforeValidator(parse_seconds), Flag(name="anchor_interval", metavar="TIME")
    ] = 3600.0
    """How often to anchor, if anything is new: "1h", "10m", "30s". Each costs one transaction."""
    batch: Annotated[Count, Setting("anchor_batch")] = 1_000_000
    """Maximum events in one tree. Once this many wait, they are anchored without waiting longer."""
    max_fee: Annotated[float, Setting("anchor_max_fee"), Field(ge=0)] = 0.0
    """The most to pay, in gwei per gas (EIP-1559). 0: 20 on Ethereum, 10 on Gnosis, 200 on Polygon,
    1 on Base and Arbitrum, 50 elsewhere. While the chain asks for more, events wait."""
    replace_after: Annotated[
        float, BeforeValidator(parse_seconds), Setting("anchor_replace_after")
    ] = 180.0
    """Replace a transaction that is not in a block after this time by one with a higher fee."""
    replacements: Annotated[int, Setting("anchor_replacements"), Field(ge=0)] = 8
    """Maximum replacements of one transaction."""
    min_balance: Annotated[float, Setting("anchor_min_balance"), Field(ge=0)] = 0.01
    """Warn when the account has less, in whole coins of the chain (ETH, xDAI)."""
    explorer: Annotated[str, Setting("anchor_explorer")] = ""
    """The address of a transaction's page, with {tx} for its hash, such as
    "https://gnosisscan.io/tx/{tx}"; empty: the chain's usual one."""
    serve: Annotated[bool, Flag(name="anchor_serve")] = False
    """Anchor for other nodes, too: answer POST /api/v0/requests, as Ceramic's anchor service."""
    clients: Annotated[TextList, checked_by(check_keys), Setting("anchor_clients")] = ()
    """Nodes that may request anchors: the did:keys that they sign requests with. Empty: everyone
    who may write by this API."""
    max_requests: Annotated[Count, Setting("anchor_max_requests")] = 1_000_000
    """Requests of other nodes that may wait at once."""
    pause: float = 5.0
    """Seconds between two looks at the chain while a transaction is under way."""

    def unmet_need(self, chains: Container[str], has_development_time: bool) -> str | None:
        """Return what the authority needs and the settings lack, as an error; None if nothing.

        Args:
            chains: those with an endpoint.
            has_development_time: whether the development clock is believed.
        """
        if self.authority == "development" and not has_development_time:
            return "anchor = development needs development_time in a local network"
        if self.authority == "evm" and self.chain not in chains:
            return (
                "anchor = evm needs the setting anchor_chain, and an endpoint of that chain in "
                f"chain_rpc; there is none of {self.chain or 'any chain'}"
            )
        if self.authority == "evm" and self.key_file is None:
            return "anchor = evm needs anchor_key_file: `recon-node anchor key FILE` makes one"
        return None

    @property
    def chain_id(self) -> str:
        """The chain of the authority."""
        return DEVELOPMENT_CHAIN if self.authority == "development" else self.chain

    @property
    def max_fee_wei(self) -> int:
        """`max_fee`, or the chain's default, in wei."""
        return int((self.max_fee or chain_defaults(self.chain_id).max_fee_gwei) * _GWEI)

    def explorer_url(self, chain_id: str, tx_hash: bytes) -> str | None:
        """Return the page of a transaction; None if none is known."""
        template = self.explorer or chain_defaults(chain_id).explorer
        return template.replace("{tx}", "0x" + tx_hash.hex()) if template else None
