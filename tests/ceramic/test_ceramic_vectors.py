"""Event files of other implementations, where a checkout has them beside it (see conftest.py).

Events as ceramic-one stores them (`*_event_car*.car`), and signature test vectors (`tv_*.car`): a
CAR of many events, whose root block names the controller and which events must pass. The same
facts are tested on events of our own in the other files of this folder.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recon_node.ceramic import (
    EventKind,
    InvalidSignatureError,
    UnsupportedSignatureError,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.ipld import CID, Car, car, dag_cbor

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "events"

KINDS = {
    "unsigned_init_event_car": EventKind.INIT,
    "signed_init_event_car": EventKind.INIT,
    "signed_data_event_car": EventKind.DATA,
    "data_event_car_unsigned_init": EventKind.DATA,
    "time_event_car_single_event_batch": EventKind.TIME,
}


def named_events() -> Iterator[tuple[str, str, CID, str, Car]]:
    """Of each tv_ file: its name, an event's name and CID, the controller and the whole CAR."""
    for path in sorted(VECTORS.glob("tv_*.car")):
        vectors = car.decode(path.read_bytes())
        names = dag_cbor.decode(vectors.blocks[vectors.roots[0]])
        for name, cid in names.items():
            if isinstance(cid, CID) and not name.endswith("Payload"):
                yield path.stem, name, cid, names["controller"], vectors


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*_event_car*.car")), ids=lambda p: p.stem)
def test_events_as_ceramic_one_stores_them(path: Path) -> None:
    event = parse_event(path.read_bytes())
    assert event.kind is KINDS[path.stem]
    assert event.car == path.read_bytes()
    verify_signature(event, signer(event))


@pytest.mark.parametrize("named", list(named_events()), ids=lambda n: f"{n[0]}-{n[1]}")
def test_signature_vectors(named: tuple[str, str, CID, str, Car]) -> None:
    """Ed25519 by did:key gets the verdict of its name; what comes with a CACAO is refused."""
    _, name, cid, controller, vectors = named
    event = parse_event(car.encode([cid], vectors.blocks))
    assert event.cid == cid
    assert len(car.decode(event.car).blocks) < len(vectors.blocks)
    if event.envelope is not None and event.envelope.capability is not None:
        with pytest.raises(UnsupportedSignatureError, match="CACAO"):
            verify_signature(event, controller)
    elif name.startswith("valid"):
        verify_signature(event, controller)
    else:
        with pytest.raises(InvalidSignatureError, match="is wrong"):
            verify_signature(event, controller)
