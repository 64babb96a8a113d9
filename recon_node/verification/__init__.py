"""Layer 3, verification: checks that need only the event itself, and processes that make them.

Reading an event and checking its signature takes most of admission's CPU time, and needs no log, no
order and no clock. So it is done in processes beside the node's. In reading order:

facts      `check_event`, which turns a CAR into `Facts`
worker     a process that does so for lists of CARs, over pipes
verifiers  the pool of these processes

Apart from `verifiers`, this package imports only the layers that the check needs, since each
process pays for its imports.
"""

from recon_node.verification.facts import Broken, Facts, Finding, Refusal, Unreadable, check_event

__all__ = ["Broken", "Facts", "Finding", "Refusal", "Unreadable", "check_event"]
