"""The native core accepts exactly what Python accepts, and finds the same facts."""

import hashlib
import json
import random
from base64 import urlsafe_b64encode
from itertools import pairwise
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings as sodium
from nacl.signing import SigningKey
from store_helpers import KEYS, MODEL, World
from support import sdk_sample
from test_store_refusals import LOCAL, Case

from recon_node.ceramic import InvalidEventError, Network, parse_event
from recon_node.ceramic.auth.did import Ed25519Key, controller_of
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.checked_events import read_checked
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, CarError, car, dag_cbor
from recon_node.store import reading
from recon_node.store.damage import FORGOTTEN
from recon_node.store.reading import columns
from recon_node.verification import Facts, Finding, check_event
from recon_node.verification.facts import from_wire, to_wire
from recon_node.verification.verifiers import NATIVE_VERSION, Verifiers, check_events

if NATIVE_VERSION is None:
    pytest.skip(
        "recon-node-native is not installed: `make native` installs it", allow_module_level=True
    )

from recon_node_native import verify

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
LARGE = 200
"""Signatures that are checked as a batch."""

ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
ZERO, ONE = bytes(32), (1).to_bytes(32, "little")
Signed = tuple[bytes, bytes, bytes]
"""A key, a signature and a message."""


def scalar(number: int) -> bytes:
    return (number % ORDER).to_bytes(32, "little")


def base(number: int) -> bytes:
    return sodium.crypto_scalarmult_ed25519_base_noclamp(scalar(number))


def torsion() -> list[bytes]:
    """The eight points whose order divides 8."""
    points = [ORDER_8]
    while len(points) < 8:
        points.append(sodium.crypto_core_ed25519_add(points[-1], ORDER_8))
    return points


def other_forms() -> list[bytes]:
    """All encodings of small y that are not canonical: y + p, and a sign where x is zero."""
    sign = 1 << 255
    ys = [y + P for y in range(19)] + [1 | sign, P - 1 | sign]
    return [y.to_bytes(32, "little") for y in ys] + [
        (y | sign).to_bytes(32, "little") for y in ys if y < sign
    ]


def sign(
    rng: random.Random, *, key_torsion: bytes = ONE, r_torsion: bytes = ONE, s_more: int = 0
) -> Signed:
    """Sign with a key and an R that may have a part of small order, and an s that may be larger."""
    a, r, message = rng.randrange(1, ORDER), rng.randrange(1, ORDER), rng.randbytes(40)
    key = sodium.crypto_core_ed25519_add(base(a), key_torsion)
    point = sodium.crypto_core_ed25519_add(base(r), r_torsion)
    h = int.from_bytes(hashlib.sha512(point + key + message).digest(), "little")
    s = (r + h * a) % ORDER + s_more * ORDER
    return key, point + s.to_bytes(32, "little"), message


def hostile(rng: random.Random) -> list[Signed]:
    """Signatures that implementations of Ed25519 disagree about, and plainly wrong ones."""
    small, odd = torsion(), other_forms()
    cases = [sign(rng, key_torsion=rng.choice(small)) for _ in range(40)]
    cases += [sign(rng, r_torsion=rng.choice(small)) for _ in range(20)]
    cases += [
        sign(rng, key_torsion=rng.choice(small), r_torsion=rng.choice(small)) for _ in range(40)
    ]
    cases += [sign(rng, s_more=more) for more in (1, 2, 8, 14)]
    key, signature, message = sign(rng)
    for point in [*small, *odd, rng.randbytes(32), b"\xff" * 32]:
        for s in (ZERO, ONE, scalar(-1), signature[32:]):
            cases += [(key, point + s, message), (point, signature[:32] + s, message)]
            cases += [(point, point_s + s, message) for point_s in (*small[:3], ONE)]
    for at in range(64):
        flipped = bytearray(signature)
        flipped[at] ^= 1 << rng.randrange(8)
        cases.append((key, bytes(flipped), message))
    cases += [(key, signature, message + b"!"), (sign(rng)[0], signature, message)]
    return cases


def by_libsodium(case: Signed) -> bool:
    key, signature, message = case
    return Ed25519Key.from_bytes(key).verify(message, signature)


def by_openssl(case: Signed) -> bool:
    key, signature, message = case
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def test_signatures_alone_and_in_batches(rng: random.Random) -> None:
    """One by one; among others that are wrong; and each alone in a batch of good ones."""
    cases = hostile(rng)
    expected = list(map(by_libsodium, cases))
    assert 10 < sum(expected) < len(cases) / 2  # of keys with torsion, each eighth is accepted
    assert [verdict for case in cases for verdict in verify([case])] == expected
    assert verify(cases) == expected
    good = [sign(rng) for _ in range(LARGE)]
    assert verify(good) == [True] * LARGE == list(map(by_openssl, good))
    for case, is_right in zip(cases, expected, strict=True):
        if rng.random() < 0.1:
            at = rng.randrange(LARGE)
            assert verify([*good[:at], case, *good[at:]]) == [True] * at + [is_right] + [True] * (
                LARGE - at
            )


def test_torsion_that_cancels_out(rng: random.Random) -> None:
    """Two signatures that are wrong by opposite points of small order, in one batch."""
    good = [sign(rng) for _ in range(LARGE)]
    for first in torsion():
        for second in torsion():
            pair = [sign(rng, r_torsion=first), sign(rng, r_torsion=second)]
            assert verify([*good, *pair]) == [*[True] * LARGE, *map(by_libsodium, pair)]


def test_keys_that_many_signatures_share(rng: random.Random) -> None:
    key = SigningKey(rng.randbytes(32))
    messages = [rng.randbytes(at) for at in range(LARGE)]
    signed = [(bytes(key.verify_key), key.sign(message).signature, message) for message in messages]
    assert verify(signed) == [True] * LARGE
    mixed = [(public, signature, b"") for (public, signature, _) in signed]
    assert verify(mixed) == [True] + [False] * (LARGE - 1)


def by_python(data: bytes) -> Facts | None:
    """What Python finds of an event that has nothing wrong about it."""
    facts = check_event(data)
    return facts if isinstance(facts, Facts) and facts.refusal is None else None


def read(data: bytes, native: bool | None = None) -> tuple[Any, ...]:
    """What is read in a CAR, or what is wrong with it; None: by `parse_event`."""
    try:
        if native is None:
            event = parse_event(data)
        else:
            [event] = read_checked([data], native=native)
            [lazy] = read_checked([data], native=native, lazily=True)
            assert (lazy, repr(lazy.payload)) == (event, repr(event.payload))
    except InvalidEventError as error:
        return (str(error),)
    return event, event.envelope, repr(event.payload), event.car


def agreed(cars: list[bytes]) -> list[bool]:
    """Which of some CARs the native core accepts, with the same facts as Python; it reads all of
    them as Python does."""
    for native in (True, False):
        assert [read(data, native) for data in cars] == [read(data) for data in cars]
    results = check_events(cars)
    for facts, data in zip(results, cars, strict=True):
        assert facts is None or facts == by_python(data)
    return [facts is not None for facts in results]


def for_processes(finding: Finding) -> Finding:
    """A finding as it comes from a process: without fields of the header that admission ignores."""
    if not isinstance(finding, Facts):
        return finding
    return from_wire(to_wire(finding, finding.car), finding.car)


def signed(payload: bytes, header: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """The CAR of an event with that payload and the right signature of it."""
    cid = CID.of(DAG_CBOR, payload)
    protected = json.dumps(header or {"alg": "EdDSA", "kid": f"{DID}#{DID[8:]}"}).encode()
    text = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (protected, cid))
    signature = {"protected": protected, "signature": KEYS[0].sign(text).signature}
    block = dag_cbor.encode({"payload": bytes(cid), "signatures": [signature | changes]})
    return car.encode([CID.of(DAG_JOSE, block)], {CID.of(DAG_JOSE, block): block, cid: payload})


DID = controller_of(KEYS[0])
INIT = init_event(KEYS[0], MODEL, {"a": 1}, unique=b"1")


def some_fields(**changes: Any) -> dict[str, Any]:
    return {"id": INIT.cid, "prev": [INIT.cid], "data": []} | changes


def test_events_of_the_sdk_and_of_random_streams() -> None:
    events = World(3, events=200, time_events=True).events.values()
    cars = [*sdk_sample.cars(), *(event.car for event in events)]
    assert None not in map(by_python, cars)
    is_plain = [parse_event(data).envelope is not None for data in cars]
    assert 0 < is_plain.count(False) < len(cars) / 10
    assert agreed(cars) == is_plain


async def test_whatever_is_refused_is_refused_for_the_same_reason() -> None:
    case = Case()
    cars = [*(make(case) for make, _ in LOCAL.values()), *sdk_sample.cars()[:200]]
    facts = await Verifiers(0, native=True).verify(cars)
    assert list(map(for_processes, facts)) == await Verifiers(0).verify(cars)


@pytest.mark.skipif(reading.fit is None, reason="this core is older than version 0.3.0")
def test_rows_of_the_log(rng: random.Random) -> None:
    """Rows of signed events fit, and only rows with which Python finds nothing wrong."""
    world = World(4, events=100, time_events=True)
    rows: list[tuple[Any, ...]] = []
    for event in world.events.values():
        height = world.heights[event.cid]
        event_id = event.event_id(Network.local(5), world.headers[event.init], height)
        rows.append((event_id, event.cid, event.init, event.kind.value, event.car))
    is_signed = [event.proof is None for event in world.events.values()]
    assert reading.fit(*zip(*rows, strict=True)) == is_signed
    assert not any(columns.damage_of(None, *row) for row in rows)
    mixed = [(*row[:at], rng.choice(rows)[at], *row[at + 1 :]) for row in rows for at in range(5)]
    flipped = [
        (*row[:at], changed(row[at], rng), *row[at + 1 :])
        for row in rows
        for at in (0, 1, 2, 4)
        for _ in range(10)
    ]
    others = [*mixed, *flipped]
    for row, fits in zip(others, reading.fit(*zip(*others, strict=True)), strict=True):
        assert not fits or columns.damage_of(None, *row) is None
    odd = [None, 5, 0.5, "text", b"", [], FORGOTTEN, CarError("damaged")]
    strange = [
        (*row[:at], value, *row[at + 1 :]) for row in rows[:5] for at in range(5) for value in odd
    ]
    assert not any(reading.fit(*zip(*strange, strict=True)))


def changed(data: bytes, rng: random.Random) -> bytes:
    """Bytes with one bit flipped, or cut off."""
    at = rng.randrange(len(data))
    flip = bytes([data[at] ^ 1 << rng.randrange(8)])
    return rng.choice([data[:at] + flip + data[at + 1 :], data[:at], data + flip])


def test_changed_bytes(rng: random.Random) -> None:
    for data in (INIT.car, data_event(KEYS[0], INIT, [INIT.cid], {"text": "é" * 20}).car):
        assert agreed([data]) == [True]
        flipped = [
            data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            for at in range(len(data))
        ]
        cut = [data[:at] for at in range(0, len(data), 7)]
        assert not any(agreed([*flipped, *cut, data + b"\0", data + data[59:], bytearray(data)]))


def test_payloads(rng: random.Random) -> None:
    """Right and wrong ones under the right signature."""
    link, other = CID.of(DAG_CBOR, b"x"), CID.of(DAG_JOSE, b"y")
    header = {"controllers": [DID], "model": MODEL.to_bytes(), "sep": "model"}
    accepted: list[dict[str, Any]] = [
        some_fields(prev=link),
        some_fields(prev=[link, other], id=other),
        some_fields(data={"a": [None, True, False, -(2**63), 2**64 - 1, 1.5, -0.0, b"\0", "é"]}),
        some_fields(header={}),
        some_fields(header={"shouldIndex": True, "modelVersion": CID.of(0x55, b"raw")}),
        {"header": header, "data": None},
        {"header": header | {"unique": b"u", "context": b"c"}, "data": {"x": link}},
    ]
    left: list[Any] = [
        some_fields(more=1),
        some_fields(prev=[]),
        some_fields(prev=[link, link]),
        some_fields(prev=CID.of(0x55, b"raw")),
        some_fields(id=bytes(link)),
        some_fields(data=-(2**63) - 1),
        some_fields(header={"shouldIndex": 1}),
        some_fields(header={"shouldIndex": None}),
        some_fields(header={"modelVersion": b"x"}),
        some_fields(header={"surprise": True}),
        some_fields(header=True),
        some_fields(proof=link),
        {"id": link, "data": 1},
        {"header": header},
        {"header": header | {"surprise": 1}, "data": None},
        {"header": header | {"controllers": [controller_of(KEYS[1])]}, "data": None},
        {"header": [], "data": None},
        [],
        None,
    ]
    assert all(agreed([signed(dag_cbor.encode(payload)) for payload in accepted]))
    assert not any(agreed([signed(dag_cbor.encode(payload)) for payload in left]))
    for depth in (90, 120, 200):
        nested = dag_cbor.encode(some_fields(data="?")).replace(b"a?", b"\x81" * depth + b"\x80")
        assert agreed([signed(nested)]) == [depth == 90]


def test_blocks_that_are_not_strict() -> None:
    block = dag_cbor.encode(some_fields(data="?"))
    values = [
        "18 01", "19 0001", "1a 00000001", "1b 0000000000000001", "38 01", "3b 8000000000000000",
        "f7", "e0", "f8 20", "f9 3c00", "fa 3f800000", "fb 7ff0000000000000", "fb 7ff8000000000000",
        "fb fff0000000000000", "9f ff", "bf ff", "5f ff", "61 ff", "62 c080", "63 eda080",
        "a2 6162 01 6161 02", "a2 6161 01 6161 02", "a1 01 01", "a2 626161 01 6162 02", "c0 61 61",
        "d8 2a 41 00", "d8 2a 43 000171", "d8 2b 41 00", "d9 002a 58 25 00", "1c", "3e", "81", "ff",
        "d8 2a 58 24" + CID.of(DAG_CBOR, b"").hex(), "5a 00000001 00", "78 01 61", "98 01 00",
    ]  # fmt: skip
    cars = [signed(block.replace(b"a?", bytes.fromhex(value))) for value in values]
    assert not any(map(by_python, cars))
    assert not any(agreed(cars))


def test_envelopes_and_headers(rng: random.Random) -> None:
    block = dag_cbor.encode(some_fields())
    plain = {"alg": "EdDSA", "kid": DID}
    assert all(agreed([signed(block), signed(block, plain), signed(block, plain | {"x": 1})]))
    headers = [
        plain | {"crit": ["x"]},
        plain | {"cap": "ipfs://bafy"},
        plain | {"cap": None},
        plain | {"alg": "ES256"},
        plain | {"kid": "did:web:example.com"},
        plain | {"kid": DID[:-1]},
        plain | {"x": "y" * 2000},
    ]
    changes: list[dict[str, Any]] = [
        {"signature": rng.randbytes(64)},
        {"signature": bytes(63)},
        {"signature": bytes(65)},
        {"protected": b"{}"},
        {"protected": "text"},
        {"more": 1},
    ]
    assert not any(agreed([signed(block, header) for header in headers]))
    assert not any(agreed([signed(block, **change) for change in changes]))


def test_cars_with_other_blocks_or_headers() -> None:
    blocks, root = car.decode(INIT.car).blocks, INIT.cid
    [payload] = blocks.keys() - {root}
    envelope, block = blocks[root], blocks[payload]
    both = {root: envelope, payload: block}
    assert agreed([car.encode([root], both)]) == [True]
    assert agreed([car.encode([root], {payload: block, root: envelope})]) == [True]
    more = {CID.of(DAG_CBOR, b"\xf6"): b"\xf6"}
    again = car.encode([root], both)[59:]
    others = [
        car.encode([root], both | more),
        car.encode([root], {root: envelope}),
        car.encode([root, payload], both),
        car.encode([payload], both),
        car.encode([], both),
        car.encode([root], both) + again,
        INIT.car.replace(bytes(envelope), bytes(envelope)[:-1] + b"?"),
    ]
    assert not any(agreed(others))


def test_large_and_many_events() -> None:
    large = signed(dag_cbor.encode(some_fields(data=[[]] * 100_000)))
    several = signed(dag_cbor.encode(some_fields(data="x" * 20_000)))
    too_large = signed(dag_cbor.encode(some_fields(data=b"x" * 1_000_000)))
    assert agreed([large, several, too_large]) == [True, True, False]
    cars = [data_event(KEYS[n % 3], INIT, [INIT.cid], n).car for n in range(150)]
    wrong = signed(dag_cbor.encode(some_fields()), signature=bytes(64))
    for mixed in (cars, [*cars, wrong], []):
        assert agreed(mixed) == [data is not wrong for data in mixed]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary()
    | st.floats() | st.builds(lambda block: CID.of(DAG_CBOR, block), st.binary()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON.map(lambda value: some_fields(data=value)), st.randoms(), st.integers(0, 3))
def test_any_payload(fields: dict[str, Any], rng: random.Random, changes: int) -> None:
    """Random values, and a few of their bytes changed."""
    try:
        block = bytearray(dag_cbor.encode(fields))
    except ValueError:
        return
    for _ in range(changes):
        block[rng.randrange(len(block))] = rng.randrange(256)
    [is_accepted] = agreed([data := signed(bytes(block))])
    python = by_python(data)
    is_common = b"\x3b" not in block and changes == 0
    assert is_accepted or python is None or not is_common


def test_sums_of_neighbours_do_not_hide_a_wrong_signature(rng: random.Random) -> None:
    """Signatures whose errors add up to zero without random factors."""
    good = [sign(rng) for _ in range(LARGE)]
    swapped = [
        (key, first[1][:32] + second[1][32:], message)
        for first, second in pairwise(good)
        for key, _, message in (first,)
    ]
    key, signature, message = good[0]
    s = int.from_bytes(signature[32:], "little")
    shifted = [(key, signature[:32] + scalar(s + error), message) for error in (7, -7)]
    for cases in (swapped, [*shifted, *good]):
        assert verify(cases) == list(map(by_libsodium, cases))
