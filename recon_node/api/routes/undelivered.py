"""GET /ceramic/undelivered...: which events the feed does not have, and why. GET
/ceramic/unprocessed: which streams are set aside, and why.

An event *waits* while something that it builds on is missing or waits; a badly signed one, until a
valid data event covers it. It is *pending* until an anchor is looked up: its own, or that of a time
event below it. It is *refused* for good if it is wrong. Refusals of events without an EventId (from
this node's own clients) and by the write policy are answered at once, and not kept.
"""

from collections.abc import Sequence
from typing import Literal

from recon_node import __version__
from recon_node.api.endpoint import Call, Services, endpoint
from recon_node.api.models import Body, Parameters, Whole, text_of
from recon_node.api.routes.listings import PageBody, PageQuery
from recon_node.ipld import CID
from recon_node.store import RefusedEvent, Undelivered


class PendingChainBody(Body, frozen=True):
    """The lookups that a chain still has to answer."""

    chain_id: str
    """The chain (CAIP-2)."""
    has_provider: bool
    """Whether the node has an endpoint for it (the setting `chain_rpc`); without one, nothing is
    looked up."""
    proofs: Whole
    """Distinct proofs that await their lookup."""
    next_due: float
    """When the next of them is looked up, in Unix seconds; it may be past."""


class UndeliveredBody(Body, frozen=True):
    """How much is not delivered."""

    waiting: Whole
    """Events that build on a missing one, or are badly signed and not covered by a valid one."""
    pending: Whole
    """Events that lack the lookup of an anchor, or build on one that does."""
    refused: Whole
    """Events that were refused and are remembered: the latest 65,536."""
    chains: list[PendingChainBody]
    """What the pending ones lack, by chain."""


@endpoint("GET", "/ceramic/undelivered", own=True)
async def get_undelivered(call: Call[Parameters]) -> UndeliveredBody:
    """Count the events that are not in the feed."""
    hindrances = await call.services.store.reader.hindrances()
    provided = _provided(call.services)
    chains = [
        PendingChainBody(chain_id, chain_id in provided, proofs, next_due=due)
        for chain_id, proofs, due in hindrances.proofs
    ]
    counts = (hindrances.waiting, hindrances.pending, hindrances.refused)
    return UndeliveredBody(*counts, chains)


class BuildsOnBody(Body, frozen=True):
    """Something that an event builds on, and that is not delivered."""

    cid: str
    """The CID of a prev, or of the init event."""
    state: Literal["missing", "waiting", "pending"]
    """missing: it is not here; waiting, pending: it is, and is not delivered itself."""


class LookupBody(Body, frozen=True):
    """The lookup of an anchor that has not succeeded yet."""

    proof: str
    """The CID of the proof."""
    chain_id: str
    """The chain (CAIP-2)."""
    transaction: str
    """The hash of the transaction, in hexadecimal."""
    has_provider: bool
    """Whether the node has an endpoint for the chain."""
    tries: Whole
    """Lookups that did not succeed."""
    not_found: Whole
    """Those of them in which the chain did not have the transaction."""
    due: float | None
    """When it is looked up (again), in Unix seconds; null while the event waits."""


class UndeliveredEventBody(Body, frozen=True):
    """An event that is here, but not in the feed."""

    cid: str
    """The event's CID."""
    kind: Literal["init", "data", "time"]
    height: Whole
    """As in its EventId."""
    stream: str | None
    """The StreamID; null while the stream's init event is missing."""
    init: str
    """The CID of the stream's init event."""
    builds_on: list[BuildsOnBody]
    """What it builds on that is not delivered."""
    lookup: LookupBody | None
    """The lookup of its own anchor, if that is still to be done."""
    fault: str | None
    """What is wrong with its signature; null if nothing is."""


class UndeliveredEventsBody(PageBody, frozen=True):
    """Events that are here, but not in the feed."""

    events: list[UndeliveredEventBody]
    """The latest first."""


@endpoint("GET", "/ceramic/undelivered/waiting", own=True)
async def get_waiting(call: Call[PageQuery]) -> UndeliveredEventsBody:
    """List events that wait for one that they build on."""
    query = call.parameters
    events = await call.services.store.reader.waiting(query.after, query.size + 1)
    return _page(call, events)


@endpoint("GET", "/ceramic/undelivered/pending", own=True)
async def get_pending(call: Call[PageQuery]) -> UndeliveredEventsBody:
    """List events that are pending: they lack the lookup of an anchor, or build on one."""
    query = call.parameters
    events = await call.services.store.reader.pending(query.after, query.size + 1)
    return _page(call, events)


class RefusedEventBody(Body, frozen=True):
    """An event that was refused."""

    cid: str
    """The event's CID."""
    event_id: str
    """The EventId that it came under, in hexadecimal."""
    height: Whole
    """As in that EventId."""
    inherent: bool
    """Whether the event is wrong under any EventId."""
    reason: str
    """Why, in plain English."""


class RefusedEventsBody(PageBody, frozen=True):
    """Events that were refused."""

    events: list[RefusedEventBody]
    """The latest first."""


@endpoint("GET", "/ceramic/undelivered/refused", own=True)
async def get_refused(call: Call[PageQuery]) -> RefusedEventsBody:
    """List events of peers that were refused for good."""
    query = call.parameters
    refused = await call.services.store.reader.refused(query.after, query.size + 1)
    events = [
        RefusedEventBody(
            cid=str(event.cid),
            event_id=str(event.event_id),
            height=event.event_id.height,
            inherent=event.inherent,
            reason=event.reason,
        )
        for event in refused[: query.size]
    ]
    return RefusedEventsBody(events=events, next=_next(query, refused))


class UnprocessedStreamBody(Body, frozen=True):
    """A stream, or a tangle, that is set aside."""

    init: CID
    """The CID of its init event; of a tangle, that of its root."""
    tangle: str | None
    """The name of the tangle; null: it is a stream."""
    events: Whole
    """How many events it had; with more, it is tried again."""
    reason: str
    """Why, in plain English."""
    since: float
    """Unix seconds."""
    version: str = __version__
    """Of this node."""


class UnprocessedBody(Body, frozen=True):
    """Streams that are set aside."""

    streams: list[UnprocessedStreamBody]
    """The latest last; at most 1,000 since the start."""


@endpoint("GET", "/ceramic/unprocessed", own=True)
async def get_unprocessed(call: Call[Parameters]) -> UnprocessedBody:
    """List the streams that are set aside, so that nothing is computed of them."""
    aside = call.services.evaluation.aside
    streams = [
        UnprocessedStreamBody(*stream.subject, stream.events, stream.reason, stream.since)
        for stream in aside
    ]
    return UnprocessedBody(streams)


def _provided(services: Services) -> set[str]:
    """The chains that the node has an endpoint for."""
    return set() if services.anchors is None else {r.chain_id for r in services.anchors}


def _page(call: Call[PageQuery], undelivered: Sequence[Undelivered]) -> UndeliveredEventsBody:
    provided, query = _provided(call.services), call.parameters
    events = [_describe(event, provided) for event in undelivered[: query.size]]
    return UndeliveredEventsBody(events=events, next=_next(query, undelivered))


def _next(query: PageQuery, read: Sequence[Undelivered | RefusedEvent]) -> int | None:
    last = query.last(read)
    return None if last is None else last.row


def _describe(event: Undelivered, provided: set[str]) -> UndeliveredEventBody:
    lookup, described = event.lookup, None
    if lookup is not None:
        described = LookupBody(
            proof=str(lookup.proof),
            chain_id=lookup.chain_id,
            transaction=f"0x{lookup.tx_hash.digest.hex()}",
            has_provider=lookup.chain_id in provided,
            tries=lookup.tries,
            not_found=lookup.not_found,
            due=lookup.due,
        )
    return UndeliveredEventBody(
        cid=str(event.cid),
        kind=event.kind.value,
        height=event.event_id.height,
        stream=text_of(event.stream),
        init=str(event.init),
        builds_on=[BuildsOnBody(str(cid), state) for cid, state in event.builds_on],
        lookup=described,
        fault=event.fault,
    )
