"""Nodes that got the same events hold the same keys: whatever was wrong with them, in any order."""

import tempfile
from pathlib import Path
from random import Random
from typing import Literal

from bad_worlds import KEYS, BadWorld, Offer, shuffled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import NETWORK, check_tables, feed_of

from recon_node.ceramic.auth.did import controller_of
from recon_node.ipld import CID
from recon_node.store import Policy, Store, StoreSettings, open_store


async def settle_some(store: Store, random: Random, share: float, *, guarded: bool) -> None:
    """Look up a share of the pending proofs: what comes of one is the same wherever it is done.

    In a guarded log, all are right: an unsigned event counts by what covers it, and a wrong anchor
    below that may be found before or after.
    """
    pending = [proof.cid for proof in await store.reader.pending_proofs(1_000)]
    due = [cid for cid in pending if random.random() < share]
    right = 1_700_000_000
    await store.settle_proofs([(cid, right if guarded or cid[-1] % 2 else "wrong") for cid in due])


async def keys_after(
    batches: list[list[Offer]],
    random: Random,
    *,
    guarded: bool,
    native: Literal["auto", "off"] = "auto",
) -> tuple[list[bytes], set[CID]]:
    """The keys, and what is delivered."""
    everybody = frozenset(["did:web:x", *map(controller_of, KEYS)])
    policy = Policy(allow_controllers=everybody if guarded else frozenset())
    with tempfile.TemporaryDirectory() as directory:
        options = StoreSettings(verifiers=0, synchronous="normal", native=native)
        async with open_store(Path(directory), NETWORK, settings=options, policy=policy) as store:
            for batch in batches:
                await store.admit_remote(batch)
                await settle_some(store, random, 0.3, guarded=guarded)
            while await store.reader.pending_proofs(1):
                await settle_some(store, random, 1, guarded=guarded)
            check_tables(store)
            return list(store.keys), {row.event_cid for row in await feed_of(store)}


@settings(max_examples=settings().max_examples // 8, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), guarded=st.booleans())
async def test_the_same_events_make_the_same_keys(seed: int, guarded: bool) -> None:
    """Those that a valid event covers, or that need none; the others are kept, and in no key. One
    node checks signatures by the native core, if there is one."""
    world = BadWorld(seed)
    claims = [claim for event in world.events.values() for claim in world.claims(event)]
    # That some were never offered, or only under a wrong EventId, is the hard case.
    offers = world.random.sample(claims, int(len(claims) * world.random.choice([0.3, 0.6, 1])))
    first, second = [
        await keys_after(
            shuffled(offers, world.random), world.random, guarded=guarded, native=native
        )
        for native in ("off", "auto")
    ]
    assert first[0] == second[0]
    if guarded:  # else the one exception of docs/admission.md, "Badly signed events"
        assert first[1] == second[1]
