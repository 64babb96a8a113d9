"""What admission has to know about an event, without the event's content.

`check_event` returns the facts of a CAR, or says why it does not hold an event. Facts are small and
travel between processes as tuples of plain values (`to_wire`, `from_wire`); a CAR comes back only
if it differs from the one that was sent. Pickled, an event would cost the worker 20 microseconds
more and the node 9, of about 70 each.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from recon_node.ceramic import (
    ALWAYS,
    Event,
    EventKind,
    InitHeader,
    InvalidEventError,
    InvalidSignatureError,
    StreamId,
    TimeProof,
    UnsupportedSignatureError,
    Validity,
    has_plain_path,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.ipld import CID

Wire = tuple[Any, ...]
"""Facts as `marshal` writes them: tuples of bytes, text, integers and None."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is refused."""

    reason: str
    inherent: bool = False
    """The event itself is wrong under any EventId, and so is everything that builds on it."""
    temporary: bool = False
    """Nothing is wrong with the event: it may be accepted when it is offered again."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A CAR without a well-formed event. It proves nothing about the event that it claims to be."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """An event over which this node failed: a bug, or worse."""

    reason: str


class Names(NamedTuple):
    """The blocks that an event's envelope names."""

    payload: CID
    capability: CID | None


class Facts(NamedTuple):
    """A well-formed event, and whether its signature is right.

    `cid`, `kind`, `init`, `prevs`, `car` and `proof` are as in `recon_node.ceramic.Event`.
    """

    cid: CID
    kind: EventKind
    init: CID
    prevs: tuple[CID, ...]
    header: InitHeader | None
    """Of an init event; between processes, only the fields that keys and authority depend on."""
    envelope: Names | None
    proof: TimeProof | None
    proof_cid: CID | None
    signer: str | None
    """The DID that signed in its own name. None: unsigned, or signed under a capability."""
    validity: Validity
    """When the signature holds."""
    refusal: Refusal | None
    """What is wrong with the signature."""
    car: bytes

    @property
    def is_badly_signed(self) -> bool:
        """Whether it is a data event with a wrong signature, which a valid one may still cover."""
        return self.refusal is not None and self.refusal.inherent and self.kind is EventKind.DATA


Finding = Facts | Unreadable | Broken
"""What is found out about one CAR."""


def check_event(car: bytes) -> Facts | Unreadable:
    """Read a CAR and check the signature of its event.

    An init event must be signed by its controller. Only the init event says who that is for a
    data event, so a data event is checked against the key that it names, and its capability against
    the issuer that this names.
    """
    try:
        event = parse_event(car)
    except InvalidEventError as error:
        return Unreadable(str(error))
    validity, refusal = _verify(event)
    envelope = event.envelope
    return Facts(
        cid=event.cid,
        kind=event.kind,
        init=event.init,
        prevs=event.prevs,
        header=event.header,
        envelope=None if envelope is None else Names(envelope.payload, envelope.capability),
        proof=event.proof,
        proof_cid=event.payload["proof"] if event.kind is EventKind.TIME else None,
        signer=None if envelope is None or envelope.capability is not None else signer(event),
        validity=validity,
        refusal=refusal,
        car=event.car,
    )


def _verify(event: Event) -> tuple[Validity, Refusal | None]:
    if event.kind is EventKind.TIME:
        path = event.payload["path"]
        if has_plain_path(path):
            return ALWAYS, None
        return ALWAYS, Refusal(f"its path is {path[:50]!r}: write numbers as 0, 1", inherent=True)
    header = event.header
    controller, model = (None, None) if header is None else (header.controller, header.model)
    try:
        return verify_signature(event, controller, model), None
    except UnsupportedSignatureError as error:
        return ALWAYS, Refusal(str(error))
    except InvalidSignatureError as error:
        return ALWAYS, Refusal(str(error), inherent=True)


def to_wire(facts: Facts | Unreadable, car: bytes) -> Wire:
    """Return the facts of `car` as plain values."""
    if isinstance(facts, Unreadable):
        return (facts.reason,)
    header, envelope, proof, refusal = facts.header, facts.envelope, facts.proof, facts.refusal
    return (
        bytes(facts.cid),
        facts.kind.value,
        bytes(facts.init),
        tuple(map(bytes, facts.prevs)),
        header
        and (
            header.controller,
            header.sort_key,
            header.sort_value,
            header.model and header.model.to_bytes(),
        ),
        envelope and (bytes(envelope.payload), _raw(envelope.capability)),
        proof and (proof.chain_id, bytes(proof.root), bytes(proof.tx_hash), proof.tx_type),
        _raw(facts.proof_cid),
        facts.signer,
        (facts.validity.not_before, facts.validity.expires),
        refusal and (refusal.reason, refusal.inherent),
        None if facts.car == car else facts.car,
    )


def from_wire(wire: Wire, car: bytes) -> Facts | Unreadable:
    """Read the facts of `car` that `to_wire` wrote; CIDs are checked again."""
    if len(wire) == 1:
        return Unreadable(wire[0])
    cid, kind, init, prevs, header, envelope, proof, proof_cid = wire[:8]
    signed_by, validity, refusal, own_car = wire[8:]
    event_cid = CID(cid)
    return Facts(
        event_cid,
        EventKind(kind),
        event_cid if kind == "init" else CID(init),
        tuple(map(CID, prevs)),
        None if header is None else _header(*header),
        envelope and Names(CID(envelope[0]), _cid(envelope[1])),
        proof and TimeProof(proof[0], CID(proof[1]), CID(proof[2]), proof[3]),
        _cid(proof_cid),
        signed_by,
        ALWAYS if validity == (None, None) else Validity(*validity),
        refusal and Refusal(*refusal),
        car if own_car is None else own_car,
    )


def _header(controller: str, sort_key: str, sort_value: str, model: bytes | None) -> InitHeader:
    stream_id = None if model is None else StreamId.from_bytes(model)
    return InitHeader(controller, sort_key, sort_value, stream_id)


def _raw(cid: CID | None) -> bytes | None:
    return None if cid is None else bytes(cid)


def _cid(raw: bytes | None) -> CID | None:
    return None if raw is None else CID(raw)
