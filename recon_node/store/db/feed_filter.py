"""A part of the feed by what its streams are, and the SQL that finds it.

The EventId of a row says which sort value and controller its stream has (CIP-124: the last 8 bytes
of the hash of each), and `init_cid` which stream it is. So a row is passed over without a look at
its CAR; only the sort key, which no EventId tells, is looked up with the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from recon_node.ceramic import Network, StreamId, controller_range, sort_value_range


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Which rows of the feed are wanted: those that fit all that is given.

    `sort_value` is the text in an init event's header; a StreamID is its base36 form.
    """

    sort_key: str | None = None
    sort_value: str | None = None
    controller: str | None = None
    stream_id: StreamId | None = None

    def __bool__(self) -> bool:
        """Is anything filtered out?"""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def where(self, network: Network) -> tuple[str, list[object]]:
        """Further terms of a WHERE over `events`, and their parameters."""
        terms, values = "", list[object]()
        if self.sort_value is not None:
            # The plus keeps SQLite from walking the index by EventId: the order is the feed's.
            terms += "AND +event_id > ? AND +event_id < ? "
            values += sort_value_range(network, self.sort_value)
        if self.controller is not None:
            bound = controller_range(network, self.sort_value or "", self.controller)[0]
            terms += "AND substr(event_id, ?, 8) = ? "  # 4 bytes of the stream come after it
            values += (len(bound.prefix) - 11, bound.controller)
        if self.stream_id is not None:
            terms += "AND init_cid = ? "
            values.append(self.stream_id.cid)
        if self.sort_key is not None:
            terms += "AND (SELECT sep_key FROM streams WHERE init_cid = events.init_cid) = ? "
            values.append(self.sort_key)
        return terms, values
