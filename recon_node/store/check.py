"""The part of admission that looks at one event alone: pure, and all of the CPU time.

`check` needs no log and no order, so that it can run anywhere, for many events at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recon_node.ceramic import (
    Event,
    EventKind,
    InvalidSignatureError,
    StreamId,
    UnsupportedSignatureError,
    check_authority,
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
    """The DID that signed it in its own name; None: unsigned, or under a capability."""
    fault: Refusal | None
    """What is wrong with the signature."""


def check(car: bytes) -> Checked:
    """Parse a CAR and check the signature by what the event says of itself.

    Whether that is enough for the stream's controller is for `unauthorised` to say.

    Raises:
        InvalidEventError: the CAR holds no well-formed event.
    """
    event = parse_event(car)
    alone = None if event.capability is not None else signer(event)
    return Checked(event, alone, _fault(event, verify_signature, None))


def unauthorised(event: Event, controller: str, model: StreamId) -> Refusal | None:
    """What is wrong with whom the event is by, in a stream of that controller and model."""
    return _fault(event, check_authority, controller, model)


def _fault(event: Event, judge: Callable[..., object], *stream: object) -> Refusal | None:
    if event.kind is EventKind.TIME:
        return None
    try:
        judge(event, *stream)
    except UnsupportedSignatureError as error:
        return Refusal(str(error))
    except InvalidSignatureError as error:
        return Refusal(str(error), inherent=True)
    return None
