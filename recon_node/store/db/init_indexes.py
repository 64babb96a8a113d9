"""Indexes of the init events, for lists of streams.

They have the init events alone, in order of arrival: all of them, and those of a sort value, of a
controller, and of both. The keys are the hashes in the EventIds, 8 bytes each: about 80 bytes for a
stream in all four, a quarter of what the texts would take. A statement must name the expressions as
they are here, or SQLite does not use the index.
"""

from __future__ import annotations

from typing import Final

from recon_node.ceramic.event_id import SHORT_HASH_SIZE

# What an init event's EventId ends with: two hashes, 4 bytes of the stream, the height 0, the CID.
_CONTROLLER_AT: Final = SHORT_HASH_SIZE + 4 + 1
_SORT_VALUE_AT: Final = SHORT_HASH_SIZE + _CONTROLLER_AT
SORT_VALUE: Final = f"substr(event_id, -{_SORT_VALUE_AT} - length(cid), {SHORT_HASH_SIZE})"
CONTROLLER: Final = f"substr(event_id, -{_CONTROLLER_AT} - length(cid), {SHORT_HASH_SIZE})"
BOTH: Final = f"substr(event_id, -{_SORT_VALUE_AT} - length(cid), {2 * SHORT_HASH_SIZE})"

MIGRATION: Final = f"""
    CREATE INDEX inits ON events (id) WHERE kind = 'init';
    CREATE INDEX inits_by_sort_value ON events ({SORT_VALUE}) WHERE kind = 'init';
    CREATE INDEX inits_by_controller ON events ({CONTROLLER}) WHERE kind = 'init';
    CREATE INDEX inits_by_both ON events ({BOTH}) WHERE kind = 'init';
    """
