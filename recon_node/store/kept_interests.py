"""A node's interests, and which ranges of keys they are (CIP-124, "Stream Set Ranges").

The notation of settings and commands is a StreamID, or fields with blanks between them::

    kjzl6hvfrbw6c...                                  a model's StreamID: its documents
    kjzl6kcym7w8y...                                  a document's StreamID: this stream alone
    model=kjzl6hvfrbw6c... controller=did:key:z6Mk... the documents of a model and a controller
    model=kjzl6hvfrbw6c... shard=1/4                  the first of four shards of a model
    model=kjzl6hvfrbw6c... controllers=00..3f         the same, by the controllers' hashes
    stream=k...                                       one stream, of a model or a document
    dag=k...                                          another sort key whose values are bytes
    family=blog                                       and one whose values are text

A stream is a range of keys only together with its sort value and controller. They may be left out
if the init event of the stream is here, which names them: see `Interests.complete`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog
import trio

from recon_node.ceramic import (
    METAMODEL,
    EventId,
    EventIdError,
    Network,
    Shard,
    StreamId,
    StreamIdError,
    StreamType,
    controller_range,
    heightless_event_id,
    network_range,
    sort_value_range,
    stream_range,
)
from recon_node.ceramic.auth.did import did_spellings, is_did
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY, sort_value_of
from recon_node.ipld import IpldError
from recon_node.recon import KeyRange, merge_ranges
from recon_node.recon.keys.ordered_keys import covers
from recon_node.store.db.log import EventLog
from recon_node.store.db.sql import explained_errors
from recon_node.store.errors import InvalidInterestError
from recon_node.store.intake import Writer
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.values import Interest

logger = structlog.get_logger(__name__)

_MAX_NAMED: Final = 1024
"""Sort values outside of the interests whose names are remembered."""
_MAX_NAME: Final = 200
"""Characters of such a name."""


def parse_interest(text: str) -> Interest | StreamId:
    """Read an interest; see the module's text for the notation.

    Returns:
        The interest; a StreamId if only a stream is given, without its model and controller.

    Raises:
        InvalidInterestError: it cannot be read, or does not name a range of keys.
    """
    fields = text.split()
    if len(fields) == 1 and "=" not in text:
        return _parse_stream_id(text)
    named: dict[str, str] = {}
    for field in fields:
        name, separator, value = field.partition("=")
        if not separator or not name or not value:
            raise InvalidInterestError(f"{field[:100]!r} in an interest is not NAME=VALUE")
        if name in named:
            raise InvalidInterestError(f"an interest cannot have two fields {name!r}")
        named[name] = value
    return _from_fields(named)


def format_interest(interest: Interest) -> str:
    """Return the interest as text that `parse_interest` reads."""
    text = f"{interest.sort_key}={interest.sort_value}"
    if interest.controller is not None:
        text += f" controller={interest.controller}"
    if interest.controllers is not None:
        text += f" controllers={interest.controllers}"
    if interest.stream_id is not None:
        text += f" stream={interest.stream_id}"
    return text


def is_of_a_document(interest: Interest) -> bool:
    """Return whether its model is really a document, so that no event can ever match."""
    if interest.sort_key != DEFAULT_SORT_KEY:
        return False
    try:
        return StreamId.parse(interest.sort_value).type == StreamType.MODEL_INSTANCE
    except StreamIdError:
        return False


def check_interest(interest: Interest) -> None:
    """Refuse an interest that no event can match.

    Raises:
        InvalidInterestError: its model is a document or no StreamID at all, or its controller is
            not a DID.
    """
    if interest.controller is not None and not is_did(interest.controller):
        raise InvalidInterestError(
            f"the controller {interest.controller[:100]!r} is not a DID such as did:key:z6Mk..."
        )
    if is_of_a_document(interest):
        raise InvalidInterestError(
            f"{interest.sort_value} is the StreamID of a document, not of a model: give the "
            "document's model instead, or the StreamID as the stream that is wanted "
            f"(`recon-node interests add {interest.sort_value}`, or `streamId` alone in the API)"
        )
    if interest.sort_key == DEFAULT_SORT_KEY:
        _check_model(interest.sort_value)


def _check_model(text: str) -> None:
    try:
        StreamId.parse(text)
    except StreamIdError as error:
        raise InvalidInterestError(
            f"the model of an interest is given by its StreamID, but {error}"
        ) from None


def _parse_stream_id(text: str) -> Interest | StreamId:
    """Return what a StreamID alone means: the documents of a model, or one document."""
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError as error:
        raise InvalidInterestError(
            f"{str(error).rstrip('.')}. An interest is a StreamID, or NAME=VALUE fields such as "
            "`model=STREAM_ID controller=DID`"
        ) from None
    if stream_id.type == StreamType.MODEL or stream_id == METAMODEL:
        return Interest(DEFAULT_SORT_KEY, str(stream_id))
    if stream_id.type in (StreamType.MODEL_INSTANCE, StreamType.TILE):
        return stream_id
    raise InvalidInterestError(
        f"{text} is the StreamID of neither a model (stream type {StreamType.MODEL:d}) nor a "
        f"document (stream type {StreamType.MODEL_INSTANCE:d}), but of stream type {stream_id.type}"
    )


def _from_fields(named: dict[str, str]) -> Interest | StreamId:
    controller, stream = named.pop("controller", None), named.pop("stream", None)
    try:
        shard = _shard(named)
        stream_id = None if stream is None else StreamId.parse(stream)
        if stream_id is not None and not named and controller is None and shard is None:
            return stream_id
        if len(named) != 1:
            raise InvalidInterestError(
                "an interest needs exactly one sort key with its value, usually "
                "model=STREAM_ID: keys are ordered by it first, so that a controller alone is not "
                "a range of keys"
            )
        [(sort_key, value)] = named.items()
        return Interest(sort_key, _sort_value(sort_key, value), controller, stream_id, shard)
    except (StreamIdError, EventIdError, IpldError) as error:
        raise InvalidInterestError(str(error)) from None


def _shard(named: dict[str, str]) -> Shard | None:
    """Take `shard=1/4` or `controllers=00..3f` out of the fields.

    The latter is also a sort key, whose values are DIDs.
    """
    ranged = named.get("controllers", "did:").startswith("did:") is False
    text, other = named.pop("shard", None), named.pop("controllers") if ranged else None
    if text is not None and other is not None:
        raise InvalidInterestError("`shard` and `controllers` say the same: give one of them")
    text = text or other
    return None if text is None else Shard.parse(text)


def _sort_value(sort_key: str, text: str) -> str:
    """Return the sort value as EventIds hash it, however it was written."""
    if sort_key == DEFAULT_SORT_KEY:
        return str(StreamId.parse(text))
    return sort_value_of(sort_key, text)


_THIS_INTEREST: Final = (
    "(sort_key, sort_value) = (?1, ?2) AND (controller, stream_id, controllers) IS (?3, ?4, ?5)"
)


class Interests:
    """What a node wants: the interests of its settings, and those that were added to its log.

    What asks or changes the log raises `StoreError` if the disk fails, or the store is closed.

    Attributes:
        all: the interests; none means everything of the network.
        sort_values: theirs, each once.
        ranges: the keys that they cover, ascending and apart.
        ring_ranges: the same on the model ring, as EventIds without height.
    """

    def __init__(self, added: Iterable[Interest], writer: Writer, reader: LogReader) -> None:
        self._added = tuple(added)
        self._writer = writer
        self._reader = reader
        self.all: tuple[Interest, ...] = ()
        self.ranges: list[KeyRange] = []
        self.ring_ranges: list[KeyRange] = []
        self.configured: tuple[Interest, ...] = ()
        """Those of the settings. They are not in the log."""
        self._changed = trio.lowlevel.ParkingLot()
        self._outside: dict[bytes, str] = {}
        self._update()

    async def configure(self, wanted: Iterable[Interest | StreamId]) -> None:
        """Set the interests of the settings.

        Raises:
            InvalidInterestError: see `complete`.
        """
        self.configured = tuple([await self.complete(interest) for interest in wanted])
        self._update()

    async def complete(self, wanted: Interest | StreamId) -> Interest:
        """Return the interest that is meant.

        A StreamId means that stream alone. Its init event names its sort value and controller.

        Raises:
            InvalidInterestError: no event can match it, or the stream is not here.
        """
        if isinstance(wanted, Interest):
            check_interest(wanted)
            right = None if wanted.stream_id is None else await self._find(wanted.stream_id)
            if right not in (None, wanted):
                raise InvalidInterestError(
                    f"no event can match {format_interest(wanted)!r}: by its init event, the "
                    f"stream is {format_interest(right)!r}"
                )
            return wanted
        interest = await self._find(wanted)
        if interest is None:
            raise InvalidInterestError(
                f"this node does not have the stream {wanted} yet, so its model and controller, "
                "which its keys start with, are unknown. Give them too: "
                f"model=STREAM_ID controller=DID stream={wanted} "
                "(in the API: sep, sepValue, controller and streamId)"
            )
        return interest

    async def _find(self, wanted: StreamId) -> Interest | None:
        """Return the interest in one stream; None if its init event is not here."""
        headers = await self._reader.stream_headers([wanted.cid])
        if not headers:
            return None
        [stream] = headers
        if not stream.sort_key:
            raise InvalidInterestError(
                f"the stream {wanted} has no sort key (its header has neither 'sep' nor 'model'), "
                "so that no interest can name it: only nodes without interests sync it"
            )
        return Interest(stream.sort_key, stream.sort_value, stream.controller, wanted)

    async def add(self, interest: Interest) -> bool:
        """Add an interest; return False if it was added before.

        The first one narrows what is accepted from peers: without any, that is the whole
        network.
        """
        added = await self._change(
            "INSERT INTO interests (sort_key, sort_value, controller, stream_id, controllers) "
            "SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS "
            f"(SELECT 1 FROM interests WHERE {_THIS_INTEREST})",
            interest,
        )
        if added:
            self._added = (*self._added, interest)
            self._update(interest)
        return added

    async def remove(self, interest: Interest) -> bool:
        """Remove an interest; return False if there was none. Events stay.

        After the last one, the whole network is wanted.

        Raises:
            InvalidInterestError: it comes from the settings.
        """
        if interest in self.configured:
            raise InvalidInterestError(
                f"the interest {format_interest(interest)!r} comes from the node's settings: "
                "remove it from `interests` there (the file, RECON_NODE_INTERESTS or --interest) "
                "and restart the node"
            )
        removed = await self._change(f"DELETE FROM interests WHERE {_THIS_INTEREST}", interest)
        if removed:
            self._added = tuple(other for other in self._added if other != interest)
            self._update()
        return removed

    async def outside(self, events: Iterable[EventId]) -> dict[EventId, str]:
        """Return the events of this log, of some, that no interest covers. No peer gets them from
        this node.

        Returns:
            For each, an interest in all streams of its sort value, as printable ASCII; empty if no
            interest can name them. Each such interest is logged once.
        """
        return {
            event: await self._name_of(event) for event in events if not covers(self.ranges, event)
        }

    async def _name_of(self, event: EventId) -> str:
        name = self._outside.get(event.separator)
        if name is None:
            init = await self._reader.stream_of(event.event_cid)
            headers = [] if init is None else await self._reader.stream_headers([init])
            name = "".join(
                ascii(format_interest(Interest(stream.sort_key, stream.sort_value)))[1:-1]
                for stream in headers
                if stream.sort_key
            )[:_MAX_NAME]
            if len(self._outside) >= _MAX_NAMED:
                self._outside.clear()
            self._outside[event.separator] = name
            logger.warning(
                "A client writes outside of the interests: no peer gets its events from this node",
                wanted_by=name or "no possible interest",
            )
        return name

    async def wait_for_change(self, known: Sequence[Interest]) -> None:
        """Return when the interests are no longer the `known` ones."""
        while self.all == tuple(known):
            await self._changed.park()

    async def _change(self, sql: str, interest: Interest) -> bool:
        """Run a statement with the fields of an interest; return whether it changed anything."""
        stream = None if interest.stream_id is None else str(interest.stream_id)
        shard = None if interest.controllers is None else str(interest.controllers)
        values = (interest.sort_key, interest.sort_value, interest.controller, stream, shard)
        log = self._writer.log

        def change() -> bool:
            with log.transaction():
                return log.connection.execute(sql, values).rowcount > 0

        return await self._writer.run(change)

    def _update(self, *added: Interest) -> None:
        """Note the interests there are now; `added` are all that is new, if there are some."""
        if not (added and self.all):  # without interests, the ranges are the network's
            self.ranges, self.ring_ranges, added = [], [], ()
        self.all = tuple(dict.fromkeys((*self.configured, *self._added)))
        self.sort_values = frozenset(interest.sort_value for interest in self.all)
        network, news = self._writer.log.network, added or self.all
        self.ranges = merge_ranges([*self.ranges, *key_ranges(network, news)])
        self.ring_ranges = merge_ranges([*self.ring_ranges, *ring_ranges(network, news)])
        self._changed.unpark_all()


def load_interests(log: EventLog) -> list[Interest]:
    """Return the interests that were added to a log, in that order.

    Raises:
        StoreError: the disk failed.
    """
    with explained_errors(log.path):
        rows = log.connection.execute("SELECT * FROM interests ORDER BY id").fetchall()
        return [read_interest(*row) for row in rows]


def read_interest(
    _id: int, key: str, value: str, controller: str | None, stream: str | None, shard: str | None
) -> Interest:
    """Return the interest in a row of the log.

    Raises:
        ValueError: there is none.
    """
    return Interest(
        key,
        value,
        controller,
        None if stream is None else StreamId.parse(stream),
        None if shard is None else Shard.parse(shard),
    )


def key_ranges(network: Network, interests: Iterable[Interest]) -> list[KeyRange]:
    """Return the ranges of all interests, ascending and apart; without any, the network's."""
    ranges = [
        key_range_of(network, spelling) for wanted in interests for spelling in _spelled(wanted)
    ]
    return merge_ranges(ranges or [KeyRange(*network_range(network))])


def ring_ranges(network: Network, interests: Iterable[Interest]) -> list[KeyRange]:
    """Return the ranges of all interests on the model ring, ascending and apart.

    Interests that do not name a model have none there.
    """
    wanted = list(interests)
    if not wanted:
        return [KeyRange(*heightless_event_id.network_range(network))]
    ranges = (ring_range_of(network, spelling) for one in wanted for spelling in _spelled(one))
    return merge_ranges(key_range for key_range in ranges if key_range is not None)


def key_range_of(network: Network, interest: Interest) -> KeyRange:
    """Return the range of an interest, of its controller as it is spelled."""
    value, controller, stream = interest.sort_value, interest.controller, interest.stream_id
    if interest.controllers is not None:
        return KeyRange(*interest.controllers.range(network, value))
    if controller is None:
        return KeyRange(*sort_value_range(network, value))
    if stream is None:
        return KeyRange(*controller_range(network, value, controller))
    return KeyRange(*stream_range(network, value, controller, stream.cid))


def ring_range_of(network: Network, interest: Interest) -> KeyRange | None:
    """Return the range of an interest on the model ring; None if it has none there."""
    try:
        model = StreamId.parse(interest.sort_value)
    except StreamIdError:
        return None
    controller, stream = interest.controller, interest.stream_id
    if interest.sort_key != DEFAULT_SORT_KEY:
        return None
    if interest.controllers is not None:
        return KeyRange(*heightless_event_id.shard_range(network, model, interest.controllers))
    if controller is None:
        return KeyRange(*heightless_event_id.model_range(network, model))
    if stream is None:
        return KeyRange(*heightless_event_id.controller_range(network, model, controller))
    return KeyRange(*heightless_event_id.stream_range(network, model, controller, stream.cid))


def _spelled(interest: Interest) -> list[Interest]:
    """Return the interest with each spelling of its controller."""
    if interest.controller is None:
        return [interest]
    return [replace(interest, controller=name) for name in did_spellings(interest.controller)]
