"""Events whose signatures were checked before: the native core reads them where it is installed.

It reads a signed event that names no capability, says yes or nothing, and leaves all others to
`parse_event`.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from recon_node.ceramic.auth.envelope import Envelope, parse_protected
from recon_node.ceramic.errors import InvalidEventError
from recon_node.ceramic.event import DATA, Event, event_of_payload, parse_event
from recon_node.ipld import CID, dag_cbor

_new_cid: Final[Callable[[type[CID], bytes], CID]] = bytes.__new__
"""Makes a CID of bytes that were checked."""

_INIT_AT: Final = 5
"""Where the native core has the init event's CID of what it read: None in an init event."""


def read_checked(
    cars: Sequence[bytes], *, native: bool = True, lazily: bool = False
) -> list[Event]:
    """Read CARs that hold events, by the native core where it is installed.

    Args:
        cars: as in `parse_event`.
        native: whether the native core looks first; it leaves uncommon events to `parse_event`.
        lazily: whether the events are without their decoded payloads; see `Event.lazily`.

    Raises:
        InvalidEventError: as in `parse_event`.
    """
    read = _native_reader() if native else None
    if read is None:
        return [parse_event(car).lazily() if lazily else parse_event(car) for car in cars]
    by_car = read([car if type(car) is bytes else b"" for car in cars])
    events: list[Event] = []
    before = None
    for data, fields in zip(cars, by_car, strict=True):
        before = _event_of(data, fields, lazily, before)
        events.append(before)
    return events


class Chain(NamedTuple):
    """Signed events of which the first is an init event, and each other one builds on the one
    before: as most streams are that have no anchor yet.

    Attributes:
        init: the init event.
        cids: of all events.
        data: the data of all events.
    """

    init: Event
    cids: Sequence[bytes]
    data: Sequence[Any]


def read_chain(cars: Sequence[bytes]) -> Chain | None:
    """Read CARs that hold a chain, by the native core, in half of the time that `read_checked`
    takes: there are no objects for the events.

    Returns:
        None if they are anything else: if one is wrong, or has a header or a capability. Always
        None without the core.
    """
    read = _native_reader()
    if read is None:
        return None
    [first, *others] = read([car if type(car) is bytes else b"" for car in cars])
    if first is None or first[_INIT_AT] is not None:
        return None
    try:
        init = _event_of(cars[0], first, False, None)
    except InvalidEventError:  # the core does not look at its header
        return None
    if init.capability is not None:
        return None
    cids, data = [first[0]], [init.data]
    for fields in others:
        if fields is None:
            return None
        cid, _, protected, _, encoded, of_stream, prev = fields
        if prev != cids[-1] or of_stream != init.cid or _without_capability(protected) is None:
            return None
        cids.append(cid)
        data.append(dag_cbor.decode(encoded, is_shallow=True))
    return Chain(init, cids, data)


@cache
def _native_reader() -> Callable[[list[bytes]], list[tuple[Any, ...] | None]] | None:
    """Return what reads CARs in the native core; None if that is not installed, or is too old."""
    try:
        from recon_node_native import read  # most programs do without it
    except ImportError:
        return None
    return read  # type: ignore[no-any-return]


def _event_of(
    car: bytes, fields: tuple[Any, ...] | None, lazily: bool, before: Event | None
) -> Event:
    """Return an event, which nearly always builds on the one `before`: it shares that one's CIDs,
    whose hashes are known then."""
    if fields is not None and (signer := _without_capability(fields[2])) is not None:
        raw_cid, payload_cid, _, signature, encoded, raw_init, raw_prev = fields
        cid, (protected, header) = _new_cid(CID, raw_cid), signer
        signed = Envelope(_new_cid(CID, payload_cid), protected, header, signature, None)
        data = None if lazily and raw_init else dag_cbor.decode(encoded, is_shallow=True)
        if raw_init is None:
            event = event_of_payload(cid, signed, data, car, None)
            return event.lazily() if lazily else event
        if before is not None and raw_prev == before.cid and raw_init == before.init:
            init, prev = before.init, before.cid
        else:
            init, prev = _new_cid(CID, raw_init), _new_cid(CID, raw_prev)
        payload = None if lazily else {"id": init, "data": data, "prev": prev}
        return Event(cid, DATA, init, (prev,), None, payload, signed, None, car)
    event = parse_event(car)
    return event.lazily() if lazily else event


@lru_cache(maxsize=1024)
def _without_capability(protected: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Return a protected header, the same object for all events of a signer, and what it says.

    None if it is wrong or names a capability.
    """
    try:
        header = parse_protected(protected)
    except InvalidEventError:
        return None
    return None if "cap" in header else (protected, header)
