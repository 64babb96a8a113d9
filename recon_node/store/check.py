"""The part of admission that looks at one event alone: pure, and all of the CPU time.

`check` needs no log and no order, so that it can run anywhere, for many events at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from recon_node.ceramic import (
    Event,
    EventKind,
    InvalidSignatureError,
    UnsupportedSignatureError,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.store.records import Refusal


@dataclass(frozen=True, slots=True)
class Checked:
    """A well-formed event, and whether its signature is its signer's."""

    event: Event
    signer: str | None
    """The DID that signed it; None: unsigned, as time events and some init events are."""
    fault: Refusal | None
    """What is wrong with the signature."""


def check(car: bytes) -> Checked:
    """Parse a CAR and check the signature against the key that it names itself.

    Whether that is the key of the stream's controller is for `unauthorised` to say.

    Raises:
        InvalidEventError: the CAR holds no well-formed event.
    """
    event = parse_event(car)
    return Checked(event, signer(event), _signature_fault(event, None))


def unauthorised(event: Event, controller: str) -> Refusal | None:
    """What is wrong with the signature, if it must be the controller's."""
    return _signature_fault(event, controller)


def _signature_fault(event: Event, controller: str | None) -> Refusal | None:
    if event.kind is EventKind.TIME:
        return None
    try:
        verify_signature(event, controller)
    except UnsupportedSignatureError as error:
        return Refusal(str(error))
    except InvalidSignatureError as error:
        return Refusal(str(error), inherent=True)
    return None
