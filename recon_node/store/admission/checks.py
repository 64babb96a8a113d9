"""What is checked of an event on its steps towards the feed (`ladder`).

A step that fails refuses the EventId permanently. Most faults lie in the EventId (a wrong height,
say), so the event can still arrive under the right one, and what builds on it keeps waiting. Some
lie in the event itself (*inherent*): then everything that builds on it is refused, too.

Nodes that got the same events must end with the same keys, in whatever order they came. An event
may have several faults, and whether an inherent one is among those that are found must not depend
on what came first. So each fault is looked for on one step, in one order there: what the event and
its EventId alone can show, then its init event, then the rest of what it builds on. Of the rest,
only what is fully checked, or permanently refused, counts.
"""

from recon_node.ceramic import (
    Event,
    EventIdError,
    InvalidSignatureError,
    Network,
    StreamId,
    UnsupportedSignatureError,
    check_authority,
    parse_event,
)
from recon_node.ceramic.event import DATA, INIT
from recon_node.ipld import CID
from recon_node.store.admission.records import Inquiry, Known, Record, StreamRecord, Want
from recon_node.verification import Refusal


class FaultError(Exception):
    """A step that failed."""

    def __init__(self, reason: str, *, inherent: bool = False) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, inherent)


def stream_of(known: Known, record: Record) -> StreamRecord | None:
    """Return the stream by which a record is checked; None if its init event is missing."""
    if (record.height == 0) is not (record.kind is INIT):
        raise FaultError(
            f"its EventId has the height {record.height}; an init event has 0, others do not"
        )
    if record.event_id.stream != record.init[-4:]:
        raise FaultError(f"its EventId is of another stream than its init event {record.init}")
    if record.kind is INIT:
        assert record.event is not None, "an init event waits for nothing"
        return StreamRecord.of(record.event)
    stream = known.streams.get(record.init)
    if stream is None:
        _check_base(known, record, record.init)
    return stream


def check_signer(known: Known, record: Record, stream: StreamRecord) -> Inquiry[None]:
    """Check that a data event is of the stream's controller; else it is badly signed.

    Its signature was checked against its signer's key before it came here, and that of an init
    event against its controller.
    """
    if record.kind is not DATA or record.fault is not None or record.signer == stream.controller:
        return
    model = stream.model or (yield from _model(known, stream))
    event = yield from _event(known, record)
    try:
        check_authority(event, stream.controller, model)
    except UnsupportedSignatureError as error:
        raise FaultError(str(error)) from None
    except InvalidSignatureError as error:
        record.fault = str(error)


def _model(known: Known, stream: StreamRecord) -> Inquiry[StreamId | None]:
    init = known.checked(stream.init)
    assert init is not None, "a stream is known by its init event"
    header = (yield from _event(known, init)).header
    assert header is not None, "an init event has a header"
    return header.model


def _event(known: Known, record: Record) -> Inquiry[Event]:
    if record.event is None:
        yield Want(cars=[record])
    return parse_event(known.car(record))


def check_event_id(record: Record, stream: StreamRecord, network: Network) -> None:
    """Check what an EventId has before the height."""
    try:
        is_right = record.event_id.startswith(stream.prefix(network))
    except EventIdError as error:
        raise FaultError(str(error)) from None
    if not is_right:
        right = stream.event_id(network, record.height, record.cid)
        raise FaultError(
            f"its EventId is {record.event_id}; by the stream's sort value and controller it "
            f"would be {right}"
        )


def has_whole_history(known: Known, record: Record) -> bool:
    """Return whether all that an event builds on is fully checked; then check its height."""
    check_history(known, record)
    height = 0
    whole = True
    for cid in record.builds_on:
        base = known.checked(cid)
        if base is None:
            whole = False
        else:
            height = max(height, base.height + 1)
    if whole and record.height != height:
        raise FaultError(f"its EventId has the height {record.height}, not {height}")
    return whole


def check_history(known: Known, record: Record) -> None:
    """Refuse an event for what it builds on, and a time event for what its transaction says."""
    for cid in record.builds_on:
        _check_base(known, record, cid)
    if record.proof is not None:
        verdict = known.verdicts[record.proof]
        if isinstance(verdict, Refusal):
            raise FaultError(verdict.reason, inherent=True)


def _check_base(known: Known, record: Record, cid: CID) -> None:
    """Refuse an event for what one of those that it builds on is."""
    reason = known.refused.get(cid)
    if reason is not None:
        if not reason.startswith("it builds on "):  # else it would grow along a chain
            reason = f"it builds on {cid}, which was refused: {reason}"
        raise FaultError(reason, inherent=True)
    base = known.checked(cid)
    if base is not None and base.init != record.init:
        raise FaultError(f"it builds on {cid}, which is of another stream", inherent=True)
