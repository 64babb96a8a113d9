"""Whatever bytes come in, only an event or an `InvalidEventError` comes out."""

from typing import Any

import pytest
from ceramic_samples import CONTROLLER, INIT, KEY, MODEL, signed_car, unsigned_car
from hypothesis import given
from hypothesis import strategies as st
from support.time_events import time_event

from recon_node.ceramic import Event, InvalidEventError, parse_event, verify_signature
from recon_node.ceramic.builder import data_event, deterministic_init_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, RAW, car
from recon_node.ipld import cid as cid_module

CHANGE = data_event(KEY, INIT, [INIT.cid], [{"op": "add", "path": "/a", "value": 1}])
SAMPLES = [
    INIT,
    CHANGE,
    deterministic_init_event(CONTROLLER, MODEL),
    time_event(INIT, CHANGE.cid, siblings=[INIT.cid, INIT.cid]),
]

links = st.builds(CID.of, st.sampled_from([DAG_CBOR, DAG_JOSE, RAW]), st.binary(max_size=2))
leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4) | st.binary() | links
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
EVENT_FIELDS = ["id", "prev", "data", "header", "proof", "path", "payload", "signatures"]
HEADER_FIELDS = ["controllers", "model", "sep", "unique"]
field_names = st.sampled_from(EVENT_FIELDS + HEADER_FIELDS)
maps = st.dictionaries(field_names, values | st.dictionaries(field_names, values), max_size=5)


def event_or_refusal(data: bytes) -> Event | None:
    try:
        event = parse_event(data)
        verify_signature(event, CONTROLLER)
    except InvalidEventError:
        return None
    return event


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.cid.digest.hex()[:6])
@given(draw=st.data())
def test_damaged_cars(sample: Event, draw: st.DataObject) -> None:
    data = bytearray(sample.car)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    event = event_or_refusal(bytes(data))
    assert event is None or event == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.cid.digest.hex()[:6])
@given(draw=st.data())
def test_cut_and_lengthened_cars(sample: Event, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(sample.car) - 1))
    assert event_or_refusal(sample.car[:cut]) is None
    assert event_or_refusal(sample.car + draw.draw(st.binary(min_size=1, max_size=40))) is None


@given(maps | values)
def test_blocks_with_the_fields_of_events(payload: Any) -> None:
    """CARs whose hashes are right, so that the shape is what is looked at."""
    for data in (unsigned_car(payload), unsigned_car(payload, DAG_JOSE), signed_car(payload)):
        event_or_refusal(data)


@given(st.sampled_from(SAMPLES), st.data())
def test_payloads_with_one_field_changed(sample: Event, draw: st.DataObject) -> None:
    """The block is changed and signed anew: right hashes, right signature, wrong content."""
    payload = dict(sample.payload)
    name = draw.draw(st.sampled_from(sorted(payload)) | field_names)
    payload[name] = draw.draw(values | maps)
    make = signed_car if sample.envelope is not None else unsigned_car
    event = event_or_refusal(make(payload))
    assert event is None or event.payload == payload


@given(st.binary(max_size=200) | maps.map(repr).map(str.encode))
def test_protected_headers(protected: bytes) -> None:
    assert event_or_refusal(signed_car(INIT.payload, protected=protected)) is None


@given(st.sampled_from(SAMPLES), st.data())
def test_the_car_of_an_event_has_just_its_blocks(sample: Event, draw: st.DataObject) -> None:
    """Whatever came along, how often, and in whatever order. Else whoever hands an event on first
    decides how much room it takes at everyone's."""
    own = car.decode(sample.car)
    stowaway = CID.of(RAW, b"stowaway")
    rest = draw.draw(st.lists(st.sampled_from([*own.blocks, stowaway]), max_size=3))
    order = draw.draw(st.permutations([*own.blocks, *rest]))
    blocks = own.blocks | {stowaway: b"stowaway"}
    bare = car.encode(own.roots, {})
    data = bare + b"".join(
        car.encode(own.roots, {cid: blocks[cid]}).removeprefix(bare) for cid in order
    )
    kept = {cid: blocks[cid] for cid in order if cid != stowaway}
    event = parse_event(data)
    assert event.car == car.encode(own.roots, kept)
    assert (event.cid, event.payload) == (sample.cid, sample.payload)


@given(st.sampled_from(SAMPLES), st.data())
def test_the_short_ways_change_nothing(sample: Event, draw: st.DataObject) -> None:
    """Each CAR is read twice, the second time without the short ways for common CIDs and CARs."""
    data = bytearray(sample.car)
    room = draw.draw(st.sampled_from([70, len(data)]))  # often in the header or the first CID
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, min(room, len(data)) - 1))
        data[at : at + draw.draw(st.integers(0, 2))] = draw.draw(st.binary(max_size=2))
    expected = event_or_complaint(bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(car, "_COMMON_HEADERS", ())
        patch.setattr(cid_module, "_COMMON_HEADS", ())
        patch.setattr(cid_module, "_COMMON_HEADS_BY_SIZE", {})
        for module in (car, cid_module):
            patch.setattr(module, "decode_varint", cid_module._decode_any_varint)
        assert event_or_complaint(bytes(data)) == expected


def event_or_complaint(data: bytes) -> Event | str:
    try:
        return parse_event(data)
    except InvalidEventError as error:
        return str(error)
