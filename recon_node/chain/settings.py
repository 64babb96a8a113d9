"""The settings of the chain side, and how they are read from text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import httpx

from recon_node.chain.endpoint import host_of

Confirmations = int | Literal["finalized"]

_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
_CHAIN_ID = re.compile(r"eip155:[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """Which chains are asked, where, and how much at once. Times are seconds, sizes bytes."""

    providers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """For each chain (CAIP-2, such as `eip155:1`) the URLs of its JSON-RPC endpoints, best first.
    URLs hold API keys: they are shown to nobody."""
    confirmations: Confirmations = "finalized"
    """When a block's time counts: once the chain's own rules call the block final, or once the
    chain is so many blocks long from it on. The feed cannot take back what it has told, so this
    must not be a block that a reorganisation can still replace."""
    requests_per_second: float = 10.0
    """To one chain at most. One lookup is two requests."""
    requests_at_once: int = 4
    """Under way to one chain at most."""
    timeout: float = 15.0
    """Longest time for one request."""
    max_answer_bytes: int = 4 * 1024 * 1024
    """A longer answer is not read."""
    start_patience: float = 5.0
    """The start waits no longer than this to hear which chain an endpoint is of."""


def parse_providers(value: object) -> dict[str, tuple[str, ...]]:
    """A table of chain to URL or URLs, or lines `CHAIN=URL`, as chain to URLs in their order.

    Raises:
        ValueError: for people; it shows no URL beyond the host.
    """
    found: dict[str, list[str]] = {}
    for chain, url in _pairs(value):
        if not _CHAIN_ID.fullmatch(chain):
            raise ValueError(
                f"{chain[:40]!r} is not a chain that can be asked: it should be like eip155:1 "
                "(Ethereum) or eip155:100 (Gnosis)"
            )
        urls = found.setdefault(chain, [])
        if _checked_url(chain, url) not in urls:
            urls.append(url)
    return {chain: tuple(urls) for chain, urls in found.items()}


def parse_confirmations(value: object) -> Confirmations:
    """`finalized`, or a number of blocks from 1 on.

    Raises:
        ValueError: neither.
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
            for url in [urls] if isinstance(urls, str) else urls:
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
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL()
    if not _HOST.fullmatch(parsed.raw_host):
        raise ValueError(f"the URL for {chain} is none (it is not shown, since it may hold a key)")
    if parsed.scheme not in ("http", "https"):
        raise ValueError(
            f"the URL for {chain} ({host_of(url)}) should start with http:// or https://"
        )
    return url
