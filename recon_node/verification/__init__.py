"""Floor 3, verification: what can be said of one event alone, and a process that says it.

Reading an event and checking its signature is most of what admission costs in CPU time, and needs
no log, no order and no clock. So it is done beside the node: `check` turns a CAR into `Facts`, and
`python -m recon_node.verification.worker` does so for whole lists of CARs, over pipes. The pool of
such processes is `store.admission.verifiers`; this package imports nothing but the floors that the
check needs, for each process pays for its imports.
"""

from recon_node.verification.facts import Facts, Names, Refusal, Unreadable, check

__all__ = ["Facts", "Names", "Refusal", "Unreadable", "check"]
