"""Ceramic events, read from the CAR files that carry them.

    unsigned init   {header, data: null}                                     root DAG-CBOR
    signed init     envelope {payload, signatures} -> {header, data}         root DAG-JOSE
    data            envelope {payload, signatures} -> {id, prev, data, ...}  root DAG-JOSE
    time            {id, prev, proof, path} -> proof -> Merkle nodes         root DAG-CBOR

An event's CID is its CAR's root. `parse_event` checks everything that follows from the bytes alone:
each block against its CID, the fields of each, and the path of a time proof. It does not check
signatures (`verify_signature` does), the existence of prevs, or the chain. The header of an init
event is read by `init_header`.

Files made from kubo's output may name an envelope by a DAG-CBOR CID, or hold it with `link: null`.
Such an event is read as what it is on the network: `Event.cid` is the DAG-JOSE CID, and `Event.car`
has the block that matches it. So a signature makes one event, however its file was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from recon_node.ceramic.auth.envelope import (
    Envelope,
    block_cid,
    check_payload,
    fields_of,
    is_envelope,
    of_type,
    parse_envelope,
    read_plain,
    without_link,
)
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ceramic.event_id import EventId
from recon_node.ceramic.init_header import InitHeader, StreamId
from recon_node.ceramic.network import Network
from recon_node.ceramic.time_proof import TimeProof, check_path
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    Car,
    CarError,
    DagCborError,
    car,
    cid_head,
    dag_cbor,
)

MAX_CAR_SIZE: Final = 1_000_000
"""Bytes of an event. It travels in one frame of at most 1 MiB; the rest is for the frame."""
MAX_PREVS: Final = 256
"""Events that a data event may merge. More branches can be merged in steps."""

_INIT: Final = frozenset({"header", "data"})
_DATA: Final = frozenset({"id", "prev", "data"})
_DATA_OPTIONAL: Final = frozenset({"header"})
_DATA_HEADER: Final = frozenset({"shouldIndex", "modelVersion"})
TIME_FIELDS: Final = frozenset({"id", "prev", "proof", "path"})
_NO_MAP: Final = "this is not a Ceramic event: its payload is not a map"
_LIST: Final = 4
"""The major type of a list, in the upper bits of its first byte in CBOR."""
_EVENT_HEADS: Final = (cid_head(DAG_CBOR), cid_head(DAG_JOSE))
_LARGE_BLOCK: Final = 64 * 1024
"""Bytes of a block that is not decoded in vain."""


class EventKind(Enum):
    """What an event does: start a stream, change its data, or anchor it in time."""

    INIT = "init"
    DATA = "data"
    TIME = "time"


INIT, DATA, TIME = EventKind
"""By their names alone: this is faster, see `store.admission.records`."""


@dataclass(slots=True, unsafe_hash=True)  # frozen, it would take six times as long to make
class Event:
    """A well-formed event, which must not be changed.

    `init` is the CID of its stream's init event (of an init event, its own); `prevs` are the events
    that it builds on, in the given order, none for an init event. Only init events have a `header`,
    signed ones an `envelope`, time events a `proof`. `car` has the event's blocks and no others.
    `capability` is the block of the CACAO that the envelope names, if it names one.
    """

    cid: CID
    kind: EventKind
    init: CID
    prevs: tuple[CID, ...]
    header: InitHeader | None
    _payload: dict[str, Any] | None = field(repr=False, compare=False)
    envelope: Envelope | None = field(repr=False)
    proof: TimeProof | None
    car: bytes = field(repr=False)
    capability: bytes | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a CAR: that takes no time, and the other end parses it.

        Its prevs go along: they may name the shown copies of what it names.
        """
        if self.car:
            return _unpickled, (self.car, self.prevs, self._payload is None)
        return bare_time_event, (self.cid, self.init, self.prevs[0], self.proof)

    def lazily(self) -> Event:
        """Return the event without its decoded payload, which may take sixty times its bytes. It
        is decoded when it is asked for, and only the latest one that was is kept."""
        return replace(self, _payload=None) if self.car else self

    @property
    def payload(self) -> dict[str, Any]:
        """The decoded block that holds `data`; of a time event, the event's block."""
        return _Decoded.of(self.car) if self._payload is None else self._payload

    @property
    def data(self) -> Any:
        """The decoded data; None for time events and deterministic init events."""
        return self.payload.get("data")

    def event_id(self, network: Network, header: InitHeader, height: int) -> EventId:
        """Return the event's key on that network; `header` is that of the stream's init event.

        Raises:
            EventIdError: the height is out of range.
        """
        return EventId.build(
            network, header.sort_value, header.controller, self.init, height, self.cid
        )

    def stream_id(self, header: InitHeader | None = None) -> StreamId:
        """Return the event's stream; `header` is that of its init event, not needed for that one.

        Raises:
            ValueError: the header is missing, and the event is not an init event.
        """
        header = header or self.header
        if header is None:
            raise ValueError("the StreamID of a data or time event needs its init event's header")
        return StreamId(header.stream_type, self.init)


class _Decoded:
    """The payload that was decoded last, of the events that do not keep theirs."""

    latest: tuple[bytes, dict[str, Any]] = (b"", {})

    @classmethod
    def of(cls, car: bytes) -> dict[str, Any]:
        known, payload = cls.latest
        if known is not car:
            payload = parse_event(car).payload
            cls.latest = car, payload
        return payload


def _unpickled(car: bytes, prevs: tuple[CID, ...], is_lazy: bool) -> Event:
    event = parse_event(car)
    event = event.lazily() if is_lazy else event
    return event if event.prevs == prevs else replace(event, prevs=prevs)


def bare_time_event(cid: CID, init: CID, prev: CID, proof: TimeProof) -> Event:
    """Return a time event that was checked before, without its blocks: neither `car` nor `payload`
    has anything."""
    return Event(cid, TIME, init, (prev,), None, {}, None, proof, b"")


def parse_event(data: bytes) -> Event:
    """Read the event that a CARv1 holds, the first if it has several roots.

    Raises:
        InvalidEventError: too large, not a CAR, a block that is missing or does not match its CID,
            wrong or unknown fields, a time proof whose path does not end at the prev.
    """
    if len(data) > MAX_CAR_SIZE:
        raise InvalidEventError(f"the event has {len(data)} bytes; the limit is {MAX_CAR_SIZE}")
    if (plain := read_plain(data)) is not None:
        return event_of_payload(*plain, data, None)
    try:
        decoded = car.decode(data, without_link)
    except CarError as error:
        raise InvalidEventError(str(error)) from None
    if not decoded.roots:
        raise InvalidEventError("an event's CAR names it as its root; this one has no root")
    return _EventReader(data, decoded).read_event()


def assemble_event(root: CID, read: Callable[[CID], bytes | None]) -> Event:
    """Put an event together from blocks that lie somewhere, such as in a kubo repository.

    `read` returns the block of a CID, which it has checked; None if there is none.

    Raises:
        InvalidEventError: a block is missing, or it is not an event, or larger than one may be.
    """
    event = _EventReader(b"", Car((root,), _Found(read), is_exact=False)).read_event()
    if len(event.car) > MAX_CAR_SIZE:
        raise InvalidEventError(f"its blocks have {len(event.car)} bytes, more than an event may")
    return event


class _Found(dict[CID, bytes]):
    """The blocks that were asked for."""

    def __init__(self, read: Callable[[CID], bytes | None]) -> None:
        super().__init__()
        self._read = read

    def get(self, cid: CID, default: Any = None) -> Any:
        block = super().get(cid)
        if block is None:
            block = self._read(cid)
            if block is None:
                return default
            self[cid] = block
        return block


class _EventReader:
    """Reads one event's blocks, and remembers which blocks of the CAR it needed."""

    def __init__(self, data: bytes, decoded: Car) -> None:
        self._data = data
        self._car = decoded
        self._needed: dict[CID, bytes] = {}

    def read_event(self) -> Event:
        cid = _event_cid(self._car.roots[0], "the CAR's root")
        self._check_map(cid)
        root = self._read(cid, "the root")
        envelope = None
        if is_envelope(root):
            envelope = parse_envelope(root)
            cid = self._as_dag_jose(cid)
            payload = self._read_payload(envelope.payload, "the payload")
            if envelope.capability is not None:
                self._read(envelope.capability, "the capability")
        elif cid.codec != DAG_CBOR:
            raise InvalidEventError("the root's CID says DAG-JOSE, but it is not a signed envelope")
        else:
            payload = self._read_payload(cid, "the root")
        return self._build(cid, envelope, payload)

    def _as_dag_jose(self, cid: CID) -> CID:
        """The CID of the root, an envelope; a DAG-CBOR CID is replaced by that of DAG-JOSE."""
        if cid.codec == DAG_JOSE:
            return cid
        dag_jose = CID.of(DAG_JOSE, self._needed.pop(cid))
        blocks = {dag_jose if key == cid else key: block for key, block in self._car.blocks.items()}
        self._needed[dag_jose] = blocks[dag_jose]
        self._car = Car((dag_jose,), blocks, is_exact=False)
        return dag_jose

    def _build(self, cid: CID, envelope: Envelope | None, payload: Any) -> Event:
        if envelope is not None or type(payload) is not dict or "proof" not in payload:
            capability = self._capability_block(envelope)
            return event_of_payload(cid, envelope, payload, self._own_car(cid), capability)
        prevs, proof = self._check_time(payload)
        init = _event_cid(payload["id"], "the event's 'id'")
        return Event(cid, TIME, init, prevs, None, payload, None, proof, self._own_car(cid))

    def _check_time(self, payload: Any) -> tuple[tuple[CID, ...], TimeProof]:
        event = fields_of(payload, "the time event", TIME_FIELDS)
        prev = _event_cid(event["prev"], "the time event's 'prev'")
        path = of_type(event["path"], str, "the time event's 'path'")
        proof_cid = of_type(event["proof"], CID, "the time event's 'proof'")
        proof = TimeProof.from_fields(self._read_node(proof_cid, "the proof"))
        check_path(proof.root, path, prev, self._read_node)
        return (prev,), proof

    def _read_node(self, cid: CID, what: str) -> Any:
        return self._read(block_cid(cid, what), what)

    def _read(self, cid: CID, what: str) -> Any:
        """The decoded block of that CID, which the CAR must have."""
        block = self._car.blocks.get(cid)
        if block is None:
            raise InvalidEventError(f"the CAR lacks the block of {what}: {cid}")
        self._needed[cid] = block
        try:
            return dag_cbor.decode(block)
        except DagCborError as error:
            raise InvalidEventError(f"the block of {what} ({cid}) is {error}") from None

    def _check_map(self, cid: CID) -> None:
        """Refuse a large block that is a list before it is decoded: that takes half a second."""
        block = self._car.blocks.get(cid, b"")
        if len(block) > _LARGE_BLOCK and block[0] >> 5 == _LIST:
            raise InvalidEventError(_NO_MAP)

    def _read_payload(self, cid: CID, what: str) -> Any:
        self._check_map(cid)
        payload = self._read(cid, what)
        check_payload(self._needed[cid], payload)
        return payload

    def _capability_block(self, envelope: Envelope | None) -> bytes | None:
        if envelope is None or envelope.capability is None:
            return None
        return self._needed[envelope.capability]

    def _own_car(self, cid: CID) -> bytes:
        """The event's blocks, each once, in the order in which they came, without other blocks and
        roots: nobody may make an event larger by adding to it.

        If the CAR that was read has exactly these, it is returned as it is.
        """
        has_no_more = len(self._needed) == len(self._car.blocks) and len(self._car.roots) == 1
        if has_no_more and self._car.is_exact:
            return self._data
        own = {key: block for key, block in self._car.blocks.items() if key in self._needed}
        return car.encode([cid], own)


def event_of_payload(
    cid: CID, envelope: Envelope | None, payload: Any, own_car: bytes, capability: bytes | None
) -> Event:
    """Return the data or init event with that payload; only an init event may lack an envelope.

    Raises:
        InvalidEventError: the payload is that of neither.
    """
    if type(payload) is not dict:
        raise InvalidEventError(_NO_MAP)
    if "id" not in payload and "prev" not in payload:
        header = InitHeader.from_fields(fields_of(payload, "the init event", _INIT)["header"])
        return Event(cid, INIT, cid, (), header, payload, envelope, None, own_car, capability)
    if envelope is None:
        raise InvalidEventError("a data event must be signed; this one is not")
    prevs = _check_data(payload)
    init = _event_cid(payload["id"], "the event's 'id'")
    return Event(cid, DATA, init, prevs, None, payload, envelope, None, own_car, capability)


def _check_data(payload: Any) -> tuple[CID, ...]:
    fields = fields_of(payload, "the data event", _DATA, _DATA_OPTIONAL)
    if "header" in fields:
        header = fields_of(fields["header"], "the header", optional=_DATA_HEADER)
        if "shouldIndex" in header:
            of_type(header["shouldIndex"], bool, "the header's 'shouldIndex'")
        if "modelVersion" in header:
            of_type(header["modelVersion"], CID, "the header's 'modelVersion'")
    return _check_prevs(fields["prev"])


def _check_prevs(value: Any) -> tuple[CID, ...]:
    """CIP-145: `prev` is a CID or a list of CIDs; a list of one means the same as that one."""
    if type(value) is not list:
        return (_event_cid(value, "the data event's 'prev'"),)
    if not 0 < len(value) <= MAX_PREVS:
        raise InvalidEventError(
            f"the data event's 'prev' lists {len(value)} events; it must be 1 to {MAX_PREVS}"
        )
    prevs = tuple(_event_cid(link, "the data event's 'prev'") for link in value)
    if len(set(prevs)) != len(prevs):
        raise InvalidEventError("the data event's 'prev' lists an event twice")
    return prevs


def _event_cid(value: Any, what: str) -> CID:
    """Return `value`, which must be the CID of an event: sha2-256 of DAG-CBOR or DAG-JOSE.

    Raises:
        InvalidEventError: it is anything else.
    """
    cid = of_type(value, CID, what)
    if not cid.startswith(_EVENT_HEADS):
        raise InvalidEventError(
            f"{what} is {cid}, which cannot be an event: those are DAG-CBOR (0x71) or DAG-JOSE "
            f"(0x85) with sha2-256, not codec {cid.codec:#x} with hash {cid.hash_code:#x}"
        )
    return cid
