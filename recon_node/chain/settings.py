"""The settings of the chain side, and how to read them from text."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import httpx
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from recon_node.base.setting_types import SETTINGS, Bytes, Count, Flag, Seconds, Setting

Confirmations = int | Literal["finalized"]

_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
CHAIN_ID = re.compile(r"eip155:[1-9][0-9]{0,18}", re.ASCII)


def parse_providers(value: object) -> dict[str, tuple[str, ...]]:
    """Return the URLs of each chain, in their order.

    `value` is a table of chains with their URL or URLs, or lines `CHAIN=URL`, or one text of such
    lines separated by commas.

    Raises:
        ValueError: it is something else, or a URL is unusable; the message shows only its host.
    """
    endpoints: dict[str, list[str]] = {}
    for chain, url in _pairs(value):
        if not CHAIN_ID.fullmatch(chain):
            examples = "eip155:1 (Ethereum) or eip155:100 (Gnosis)"
            text = f"{chain[:40]!r} is not a supported chain: it should look like {examples}"
            raise ValueError(text)
        urls = endpoints.setdefault(chain, [])
        if _checked_url(chain, url) not in urls:
            urls.append(url)
    return {chain: tuple(urls) for chain, urls in endpoints.items()}


def parse_confirmations(value: object) -> Confirmations:
    """Return `finalized`, or a number of blocks.

    Raises:
        ValueError: it is neither `finalized` nor a number of at least 1.
    """
    if value == "finalized":
        return "finalized"
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,5}", text, re.ASCII):
        raise ValueError(f"{text[:40]!r} should be 'finalized' or a number of blocks, 1 or more")
    return int(text)


def _pairs(value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for chain, urls in value.items():
            listed = [urls] if isinstance(urls, str) else urls
            if not isinstance(listed, list | tuple):
                raise ValueError(f"{str(chain)[:40]} should have a URL, or an array of URLs")
            for url in listed:
                yield str(chain), str(url)
        return
    if isinstance(value, str):
        value = [line for line in value.split(",") if line.strip()]
    if not isinstance(value, Iterable):
        raise ValueError("it should be a table of chains and their URLs, or CHAIN=URL")
    for line in value:
        chain, equals, url = str(line).strip().partition("=")
        if not equals:
            raise ValueError("an entry should be CHAIN=URL, like eip155:1=https://rpc.example.org")
        yield chain.strip(), url.strip()


def _checked_url(chain: str, url: str) -> str:
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as resolvers do
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL()
    if not _HOST.fullmatch(parsed.raw_host):
        secret = "it is not shown, since it may be secret"
        raise ValueError(f"the URL for {chain} is not valid ({secret})")
    if parsed.scheme not in ("http", "https"):
        host = url_host(url)
        raise ValueError(f"the URL for {chain} ({host}) should start with http:// or https://")
    return url


@dataclass(frozen=True, slots=True, config=SETTINGS)
class ChainSettings:
    """Chains: which are asked about anchors, where, and how much at once."""

    providers: Annotated[
        Mapping[str, tuple[str, ...]],
        BeforeValidator(parse_providers),
        Flag(name="chain_rpc", metavar="CHAIN=URL", secret=True),
    ] = Field(default_factory=dict, repr=False)
    """JSON-RPC endpoints for checking time events, such as eip155:1=https://... Keep URLs that
    contain keys in the file or in the environment.

    A time event says that an anchor service wrote a hash to a blockchain. With endpoints of that
    chain, time events are checked and delivered; without, they are held, and so is everything that
    depends on them. Give one or more URLs for each chain (CAIP-2), the best first: the next one is
    asked when one fails. Mainnet is anchored on eip155:1, testnet-clay on eip155:100 (Gnosis). What
    all that answer agree about is believed: while two differ about an anchor, it is not delivered.
    In the environment: RECON_NODE_CHAIN_RPC="eip155:1=https://...,eip155:100=https://..."
      chain_rpc = { "eip155:1" = ["https://one.example/KEY", "https://two.example"] }
    """
    confirmations: Annotated[
        Confirmations,
        BeforeValidator(parse_confirmations),
        Flag(name="chain_confirmations", metavar="BLOCKS"),
    ] = "finalized"
    """Blocks after which the time of an anchor's block counts, or "finalized".

    finalized: the chain itself says so, after about 15 minutes on Ethereum and 3 on Gnosis. Use a
    number for chains that do not. The feed cannot take back what it has delivered, so the block
    must not be one that a reorganisation can still replace.
    """
    development_time: Annotated[bool, Flag()] = False
    """Believe time events of the development clock (docs/how-to/anchors.md). They prove nothing:
    only in a local network."""
    requests_per_second: Annotated[
        float, Setting(name="chain_requests_per_second"), Field(gt=0)
    ] = 10.0
    """Maximum requests per second to one chain; a lookup takes up to two of each endpoint."""
    requests_at_once: Count = 4
    """Maximum requests to one chain at the same time."""
    timeout: Seconds = 15.0
    """The longest time for one request."""
    max_answer_bytes: Bytes = 4 * 1024 * 1024
    """The size of the longest answer that is read."""
    start_patience: Seconds = 5.0
    """How long the node waits at its start for the endpoints to name their chains."""


def url_host(url: str) -> str:
    """Return the part of a URL that is not secret: scheme, host and port."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "(not a URL)"
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.scheme}://{host}{port}"
