"""Opens the anchoring of a node, by its settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from recon_node.anchoring.authority import AuthorityError, DevelopmentClock, TimeAuthority
from recon_node.anchoring.evm import Chain, EvmAuthority
from recon_node.anchoring.following import in_thread
from recon_node.anchoring.journal import Journal
from recon_node.anchoring.keys import Signer, load_signer
from recon_node.anchoring.machine import FeeLimits
from recon_node.anchoring.service import Anchoring
from recon_node.anchoring.settings import AnchorSettings
from recon_node.chain import ChainReport, ChainSettings
from recon_node.chain.rpc import open_provider
from recon_node.store import Store


@asynccontextmanager
async def open_anchoring(
    settings: AnchorSettings,
    chain: ChainSettings,
    store: Store,
    data_dir: Path,
    *,
    now: Callable[[], float] = time.time,
) -> AsyncIterator[Anchoring | None]:
    """Anchor while the context is open; None if the settings say off.

    Args:
        settings: what is anchored, where and how often.
        chain: has the endpoints.
        store: has the events, and takes the time events.
        data_dir: for the journal; locked by the caller.
        now: returns Unix time in seconds.

    Raises:
        AuthorityError: the settings cannot be used.
        JournalError: the journal cannot be used.
    """
    if settings.authority == "off":
        yield None
        return
    journal = await in_thread(partial(Journal, data_dir))
    try:
        async with _open_authority(settings, chain, journal, now) as authority:
            await in_thread(partial(_check_unfinished, journal, authority))
            anchoring = Anchoring(settings, store, journal, authority, now)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anchoring.follower.run)
                nursery.start_soon(anchoring.make_trees)
                yield anchoring
                nursery.cancel_scope.cancel()
    finally:
        journal.close()


@asynccontextmanager
async def _open_authority(
    settings: AnchorSettings, chain: ChainSettings, journal: Journal, now: Callable[[], float]
) -> AsyncIterator[TimeAuthority]:
    if settings.authority == "development":
        if not chain.development_time:
            raise AuthorityError("anchor = development needs development_time in a local network")
        yield DevelopmentClock(now)
        return
    async with open_payer(settings, chain) as (provider, signer):
        limits = FeeLimits(settings.max_fee_wei, settings.replace_after, settings.replacements)
        yield EvmAuthority(
            provider, signer, journal, settings.contract, limits, settings.pause, now
        )


@asynccontextmanager
async def open_payer(
    settings: AnchorSettings, chain: ChainSettings
) -> AsyncIterator[tuple[Chain, Signer]]:
    """Open what is asked about the chain of the settings, and the key of the account that pays.

    Raises:
        AuthorityError: the settings cannot be used.
    """
    if settings.chain not in chain.providers:
        raise AuthorityError(
            "anchor = evm needs the setting anchor_chain, and an endpoint of that chain in "
            f"chain_rpc; there is none of {settings.chain or 'any chain'}"
        )
    if settings.key_file is None:
        raise AuthorityError(
            "anchor = evm needs anchor_key_file: `recon-node anchor key FILE` makes one"
        )
    signer = await in_thread(partial(load_signer, settings.key_file, settings.password_file))
    async with open_provider(chain, ChainReport(settings.chain)) as provider:
        yield provider, signer


def _check_unfinished(journal: Journal, authority: TimeAuthority) -> None:
    """Make sure that the tree under way is of this authority: else it could be anchored twice."""
    tree = journal.unfinished_tree()
    if tree is None or tree.tx_hash is not None:
        return
    signers = journal.accounts(tree.root)
    account = None if authority.account is None else authority.account.address
    if not signers:
        journal.move_tree(tree.id, authority.chain_id)
    elif tree.chain_id != authority.chain_id or signers != {account}:
        raise AuthorityError(
            f"a tree is under way on {tree.chain_id}, with a transaction by {', '.join(signers)}: "
            "let it finish with that chain and key before you change them"
        )
