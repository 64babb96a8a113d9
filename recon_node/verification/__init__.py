"""Layer 3, verification: checks that need only the event itself, and a process that makes them.

Reading an event and checking its signature takes most of admission's CPU time, and needs no log, no
order and no clock. So it is done outside the node: `check_event` turns a CAR into `Facts`, and
`python -m recon_node.verification.worker` does so for lists of CARs, over pipes. The pool of these
processes is `verification.verifiers`. Apart from it, this package imports only the layers that the
check needs, since each process pays for its imports.
"""

from recon_node.verification.facts import (
    Broken,
    Facts,
    Finding,
    Refusal,
    Unreadable,
    check_event,
)

__all__ = ["Broken", "Facts", "Finding", "Refusal", "Unreadable", "check_event"]
