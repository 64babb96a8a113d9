"""Whether whom an event is by may write to its stream: the part of a check that needs the stream.

The rest, and all of the CPU time, is `recon_node.verification.check`.
"""

from __future__ import annotations

from recon_node.ceramic import (
    Event,
    InvalidSignatureError,
    StreamId,
    UnsupportedSignatureError,
    check_authority,
)
from recon_node.store.admission.records import Refusal


def unauthorised(event: Event, controller: str, model: StreamId | None) -> Refusal | None:
    """What is wrong with whom the event is by, in a stream of that controller and model.

    The event's signature, and that of its capability, were found right before.
    """
    try:
        check_authority(event, controller, model)
    except UnsupportedSignatureError as error:
        return Refusal(str(error))
    except InvalidSignatureError as error:
        return Refusal(str(error), inherent=True)
    return None
