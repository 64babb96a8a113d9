"""GET /ceramic/recon/samples and /ceramic/recon/syncs: what the node did lately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.models import Body, Parameters, Whole, WholeParameter
from recon_node.api.samples import INTERVAL
from recon_node.p2p import SyncReport


class SamplesBody(Body, frozen=True):
    """The node's numbers in the last hour, by columns; the oldest come first."""

    interval: float
    """Seconds between two samples."""
    time: list[float]
    """When each was taken, in Unix seconds."""
    events: list[Whole]
    """Events held."""
    delivered: list[Whole]
    """The feed's head."""
    waiting: list[Whole]
    """Events that build on a missing one."""
    pending: list[Whole]
    """Events that lack the lookup of an anchor."""
    peers: list[Whole]
    """Connected ones."""
    syncs: list[Whole]
    """Since the start, in either role."""
    failed_syncs: list[Whole]
    """Those of them that failed."""
    bytes_sent: list[Whole]
    """In syncs since the start: keys and events, without libp2p's overhead."""
    bytes_received: list[Whole]
    """The same."""
    lag: list[float]
    """For how many seconds the node's event loop was held at most since the sample before."""


@endpoint("GET", "/ceramic/recon/samples", own=True)
async def get_samples(call: Call[Parameters]) -> SamplesBody:
    """Read the node's numbers of the last hour, for charts."""
    columns = call.services.samples.columns()
    return msgspec.convert({"interval": INTERVAL, **columns}, SamplesBody)


class SyncsQuery(Parameters, frozen=True):
    """Which syncs."""

    of: Literal["all", "transfers"] = "all"
    """transfers: only those that moved events, which are kept for longer."""
    limit: WholeParameter = 100
    """Maximum number of syncs: 100 by default."""


class SyncsBody(Body, frozen=True):
    """Syncs."""

    syncs: Sequence[SyncReport]
    """The latest first."""


@endpoint("GET", "/ceramic/recon/syncs", own=True)
async def get_syncs(call: Call[SyncsQuery]) -> SyncsBody:
    """List the latest syncs, or the latest that moved events."""
    peers, given = call.services.peers, call.parameters
    kept: Sequence[SyncReport] = ()
    if peers is not None:
        kept = peers.transfers if given.of == "transfers" else peers.sync_reports
    return SyncsBody(list(kept)[::-1][: given.limit])
