"""Event files of other implementations, where a checkout has them beside it (see conftest.py).

Events as ceramic-one stores them (`*_event_car*.car`), and signature test vectors (`tv_*.car`): a
CAR of many events, whose root block names the controller and which events must pass. The same
facts are tested on events of our own in the other files of this folder.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recon_node.ceramic import (
    EventKind,
    InvalidSignatureError,
    StreamId,
    authority,
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


def named_events() -> Iterator[tuple[str, str, CID, dict[str, Any], Car]]:
    """Of each tv_ file: its name, an event's name and CID, the root block and the whole CAR."""
    for path in sorted(VECTORS.glob("tv_*.car")):
        vectors = car.decode(path.read_bytes())
        names = dag_cbor.decode(vectors.blocks[vectors.roots[0]])
        for name, cid in names.items():
            if isinstance(cid, CID) and not name.endswith("Payload"):
                yield path.stem, name, cid, names, vectors


STORED = [path for path in sorted(VECTORS.glob("*_event_car*.car")) if path.stem in KINDS]


@pytest.mark.parametrize("path", STORED, ids=lambda p: p.stem)
def test_events_as_ceramic_one_stores_them(path: Path) -> None:
    event = parse_event(path.read_bytes())
    assert event.kind is KINDS[path.stem]
    assert event.car == path.read_bytes()
    verify_signature(event, signer(event))


def test_an_event_of_the_network_from_a_file_that_kubo_made() -> None:
    """Its envelope has `link: null` and the CID codec of DAG-CBOR. On the network the event is
    bagcqcera6zhhs3...: so says rust-ceramic, validation/src/verifier/event_verifier.rs."""
    data = (VECTORS / "gitcoin_init_event_car.car").read_bytes()
    event = parse_event(data)
    assert str(event.cid) == "bagcqcera6zhhs3vt3vmkanmwj3gksysl3vk7y3uzr3wjsj4i5lbiyca5bhna"
    assert event.header.controller == "did:pkh:eip155:1:0xc1e722551c7eac8675903f95f1330a2fe6ad34ea"
    assert car.decode(event.car).roots == (event.cid,)
    assert parse_event(event.car) == event
    assert verify_signature(event, event.header.controller).covers(1734640033)  # 2024-12-19


@pytest.mark.parametrize("named", list(named_events()), ids=lambda n: f"{n[0]}-{n[1]}")
def test_signature_vectors(named: tuple[str, str, CID, dict[str, Any], Car]) -> None:
    """Each event gets the verdict of its name; for those that have expired, judged now."""
    kind, name, cid, root, vectors = named
    event = parse_event(car.encode([cid], vectors.blocks))
    model = StreamId.from_bytes(root["model"])
    assert event.cid == cid
    assert len(car.decode(event.car).blocks) < len(vectors.blocks)
    if name.startswith("valid"):
        verify_signature(event, None)
        assert verify_signature(event, root["controller"], model).covers(int(time.time()))
        issuers = {"tv_pkh-ethereum": "did:pkh:eip155:1:", "tv_pkh-solana": "did:pkh:solana:"}
        if event.capability is not None:
            assert str(authority(event)).startswith(issuers[kind])
    else:
        with pytest.raises(InvalidSignatureError, match=complaint(name)):
            verify_signature(event, root["controller"], model)
        if name.endswith(("NoResource", "OtherModel")):  # its issuer's, and holds for itself
            assert verify_signature(event, None).covers(1_800_000_000)


def complaint(name: str) -> str:
    if "CapabilitySignature" in name:
        return "the capability is not signed by its issuer|ends in 27 or 28"
    if name.startswith("expired"):
        return "expires .* before it becomes valid"
    if name.endswith(("NoResource", "OtherModel")):
        return "the capability covers .*, which is not this stream"
    return "the signature of did:key:.* is wrong"
