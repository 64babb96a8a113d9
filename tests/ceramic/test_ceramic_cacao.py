"""Capabilities: who may write for whom, where, and when."""

import base64
import tracemalloc
from typing import Any

import coincurve
import pytest
from cacao_samples import (
    ETHEREUM,
    EXPIRES,
    ISSUED,
    PASSKEY,
    SOLANA,
    WALLETS,
    Passkey,
    SolanaWallet,
    Wallet,
    init_under,
)
from ceramic_samples import INIT, MODEL, OTHER_KEY
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from support import vectors
from support.wallets import AUDIENCE, SESSION, EthereumWallet, capability, payload_of

from recon_node.ceramic import (
    METAMODEL,
    Event,
    InvalidEventError,
    InvalidSignatureError,
    StreamId,
    StreamType,
    UnsupportedSignatureError,
    Validity,
    authority,
    check_authority,
    parse_event,
    signer,
    verify_signature,
)
from recon_node.ceramic.auth import signature
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.auth.signature import MAX_CACHED_SIZE
from recon_node.ceramic.auth.wallets import challenge
from recon_node.ceramic.builder import signed_event
from recon_node.ipld import CID, car, dag_cbor, multibase

DOCUMENT = StreamType.MODEL_INSTANCE
MODEL_RESOURCE = f"ceramic://*?model={MODEL}"
OTHERS: list[Wallet] = [EthereumWallet(b"x" * 32), SolanaWallet(b"x" * 32), Passkey(8)]
each_wallet = pytest.mark.parametrize("wallet", WALLETS, ids=lambda wallet: type(wallet).__name__)


def accepted(block: bytes, wallet: Wallet, model: StreamId | None = None) -> Validity:
    event = init_under(block, wallet.issuer)
    validity = verify_signature(event, None)
    assert verify_signature(event, wallet.issuer, model) == validity
    check_authority(event, wallet.issuer, model)
    return validity


def invalid(complaint: str, block: bytes, controller: str | None = None) -> None:
    with pytest.raises(InvalidSignatureError, match=complaint):
        verify_signature(init_under(block, controller or AUDIENCE), controller)


def unsupported(complaint: str, block: bytes) -> None:
    with pytest.raises(UnsupportedSignatureError, match=complaint):
        verify_signature(init_under(block, AUDIENCE), None)


# What a capability says is looked at whatever wallet signed it: one kind is enough for that.


@each_wallet
def test_a_session_writes_for_its_owner(wallet: Wallet) -> None:
    event = init_under(wallet.issue(), wallet.issuer)
    assert (signer(event), authority(event)) == (AUDIENCE, wallet.issuer)
    assert verify_signature(event, wallet.issuer) == Validity(ISSUED, EXPIRES)


@pytest.mark.parametrize(
    "key",
    [coincurve.PrivateKey(b"k" * 32), ec.derive_private_key(9, ec.SECP256R1())],
    ids=["secp256k1", "P-256"],
)
def test_sessions_with_every_kind_of_key(key: Any) -> None:
    event = init_under(ETHEREUM.issue(aud=controller_of(key)), ETHEREUM.issuer, key)
    assert verify_signature(event, ETHEREUM.issuer) == Validity(ISSUED, EXPIRES)


@each_wallet
def test_all_fields_and_as_few_as_there_must_be(wallet: Wallet) -> None:
    more = {"statement": "May I?", "requestId": "7", "nbf": "2025-01-01T00:00:00Z"}
    assert accepted(wallet.issue(**more), wallet) == Validity(1735689600, EXPIRES)
    bare = init_under(wallet.issue(resources=None, exp=None), wallet.issuer)
    assert verify_signature(bare, None) == Validity(ISSUED, None)


def test_null_says_that_a_field_is_not_there() -> None:
    """As for ceramic-one, which takes such capabilities from peers."""
    decoded = dag_cbor.decode(ETHEREUM.issue(exp=None))
    decoded["p"] |= dict.fromkeys(["nbf", "exp", "statement", "requestId"])
    assert accepted(dag_cbor.encode(decoded), ETHEREUM) == Validity(ISSUED, None)
    decoded["p"]["nonce"] = None
    invalid("the capability's 'nonce'", dag_cbor.encode(decoded))


def test_a_capability_that_has_run_out_is_not_wrong() -> None:
    """No clock is looked at: when it held is what comes back."""
    past = ETHEREUM.issue(iat="2001-01-01T00:00:00Z", exp="2001-01-02T00:00:00Z")
    validity = accepted(past, ETHEREUM)
    assert validity == Validity(978307200, 978393600)
    times = (978307199, 978307200, 978393600, 978393601)
    assert [validity.covers(time) for time in times] == [False, True, True, False]


def test_a_key_alone_signs_for_all_time() -> None:
    assert verify_signature(INIT, None) == Validity(None, None)
    assert Validity().covers(0)
    assert Validity().covers(2**63)


def test_an_init_event_names_its_model_itself() -> None:
    resources = [f"ceramic://*?model={METAMODEL}", MODEL_RESOURCE]
    accepted(ETHEREUM.issue(resources=resources), ETHEREUM, MODEL)
    accepted(ETHEREUM.issue(resources=resources), ETHEREUM)


@pytest.mark.parametrize(
    "resources",
    [
        ["ceramic://"],
        ["ceramic://*?model="],
        [f"ceramic://*?model=${MODEL}"],
        [f"ceramic://{MODEL}"],
        ["ceramic:/*", "*", "ceramic://**"],
    ],
)
def test_resources_that_do_not_cover_the_stream(resources: list[str]) -> None:
    block = ETHEREUM.issue(resources=resources)
    invalid("the capability covers .*, which is not this stream", block, ETHEREUM.issuer)
    # Nor when the session itself is the controller: it has bound itself to the capability.
    invalid("the capability covers .*, which is not this stream", block, AUDIENCE)


def change_under(block: bytes, init: Event) -> Event:
    return signed_event(SESSION, {"id": init.cid, "prev": init.cid, "data": []}, capability=block)


def test_data_events() -> None:
    """Their stream's model is not theirs to say."""
    init = init_under(ETHEREUM.issue(), ETHEREUM.issuer)
    for resource in (MODEL_RESOURCE, f"ceramic://{init.stream_id()}"):
        event = change_under(ETHEREUM.issue(resources=[resource]), init)
        assert verify_signature(event, ETHEREUM.issuer, MODEL) == Validity(ISSUED, EXPIRES)
        with pytest.raises(InvalidSignatureError, match="not this stream"):
            verify_signature(change_under(ETHEREUM.issue(resources=[resource]), INIT), AUDIENCE)
    event = change_under(ETHEREUM.issue(resources=[MODEL_RESOURCE]), init)
    for model in (None, METAMODEL):
        with pytest.raises(InvalidSignatureError, match="not this stream"):
            check_authority(event, ETHEREUM.issuer, model)


def test_a_resource_may_name_one_payload() -> None:
    event = change_under(ETHEREUM.issue(), INIT)
    stream = f"ceramic://{INIT.stream_id()}"
    named = ETHEREUM.issue(resources=[f"{stream}?payload={event.envelope.payload}"])
    verify_signature(change_under(named, INIT), ETHEREUM.issuer, MODEL)
    other = ETHEREUM.issue(resources=[f"{stream}?payload={INIT.cid}"])
    with pytest.raises(InvalidSignatureError, match="not this stream"):
        verify_signature(change_under(other, INIT), ETHEREUM.issuer, MODEL)


def test_a_stream_is_named_in_one_way_only() -> None:
    """As js-ceramic and ceramic-one compare it: as text."""
    raw = INIT.stream_id().to_bytes()
    names = [multibase.encode(raw, "base58btc"), f"k{'0' * 1000}", f"{INIT.stream_id()}?"]
    names += [str(StreamId(kind, INIT.cid)) for kind in (*StreamType, 99) if kind is not DOCUMENT]
    names.append(f"{INIT.stream_id()}".upper())
    for name in names:
        event = change_under(ETHEREUM.issue(resources=[f"ceramic://{name}"]), INIT)
        with pytest.raises(InvalidSignatureError, match="not this stream"):
            verify_signature(event, ETHEREUM.issuer, MODEL)
        payload = event.envelope and event.envelope.payload
        one = change_under(ETHEREUM.issue(resources=[f"ceramic://{name}?payload={payload}"]), INIT)
        with pytest.raises(InvalidSignatureError, match="not this stream"):
            verify_signature(one, ETHEREUM.issuer, MODEL)


@pytest.mark.parametrize(
    ("model", "kind"), [(None, StreamType.TILE), (METAMODEL, StreamType.MODEL), (MODEL, DOCUMENT)]
)
def test_the_type_of_a_stream_belongs_to_its_name(model: StreamId | None, kind: StreamType) -> None:
    named = ETHEREUM.issue(resources=[f"ceramic://{StreamId(kind, INIT.cid)}"])
    check_authority(change_under(named, INIT), ETHEREUM.issuer, model)


def test_capabilities_for_many_streams() -> None:
    """Too large to be remembered, and as good as others."""
    many = [f"ceramic://*?model={n}" for n in range(900)]
    block = ETHEREUM.issue(resources=[*many, MODEL_RESOURCE])
    assert len(block) > MAX_CACHED_SIZE
    for _ in range(2):
        accepted(block, ETHEREUM, MODEL)
    invalid("not this stream", ETHEREUM.issue(resources=many), ETHEREUM.issuer)


def test_a_capability_for_someone_else() -> None:
    block = ETHEREUM.issue(aud=controller_of(OTHER_KEY))
    for controller in (None, AUDIENCE, ETHEREUM.issuer):
        invalid("but the capability is for", block, controller)


@pytest.mark.parametrize(("wallet", "other"), list(zip(WALLETS, OTHERS, strict=True)))
def test_another_owner(wallet: Wallet, other: Wallet) -> None:
    invalid("but the stream's controller is", other.issue(), wallet.issuer)
    claimed = other.issue(iss=wallet.issuer)
    invalid("the capability is not signed by its issuer", claimed)
    invalid("the capability is not signed by its issuer", claimed, wallet.issuer)


def test_the_event_itself_must_be_the_sessions() -> None:
    event = init_under(ETHEREUM.issue(), ETHEREUM.issuer)
    blocks = dict(car.decode(event.car).blocks)
    envelope = dag_cbor.decode(blocks.pop(event.cid))
    envelope["signatures"][0]["signature"] = bytes(64)
    forged = dag_cbor.encode(envelope)
    cid = CID.of(event.cid.codec, forged)
    with pytest.raises(InvalidSignatureError, match=r"the signature of .* is wrong"):
        verify_signature(parse_event(car.encode([cid], blocks | {cid: forged})), None)


def test_without_the_capabilitys_block() -> None:
    event = init_under(ETHEREUM.issue(), ETHEREUM.issuer)
    kept = dict(car.decode(event.car).blocks)
    del kept[event.envelope.capability]  # type: ignore[arg-type]
    with pytest.raises(InvalidEventError, match="lacks the block of the capability"):
        parse_event(car.encode([event.cid], kept))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"exp": "2024-08-29T09:59:06Z"}, "expires .* before it becomes valid"),
        ({"nbf": "2101-01-01T00:00:00Z"}, "expires .* before it becomes valid"),
        ({"iat": "yesterday"}, "'iat': 'yesterday' is not a date and time"),
        ({"nbf": ""}, "'nbf': '' is not a date"),
        *(
            ({"iat": f"2024-08-29T{time}"}, "'iat': .* is not a date and time")
            for time in ("09:60:00Z", "09:59:07+24:00", "09:59:07+00:60")
        ),
        ({"iat": "0001-01-01T00:00:00+00:01"}, "'iat': .* is not a date and time"),
        ({"exp": "9999-12-31T23:59:59-00:01"}, "'exp': .* is not a date and time"),
        ({"nonce": "1\nURI: did:key:z6Mk"}, "'nonce' holds a line break"),
        ({"statement": "a\u2028b"}, "'statement' holds a line break"),
        ({"resources": ["ceramic://*\n- x"]}, "'resources' holds a line break"),
        ({"resources": ["ceramic://*"] * 1001}, "lists 1001 resources"),
        ({"facts": "x"}, "unknown fields, which are refused: 'facts'"),
    ],
)
def test_payloads_that_are_refused(changes: dict[str, Any], complaint: str) -> None:
    invalid(complaint, ETHEREUM.issue(**changes))


@pytest.mark.parametrize("name", ["iss", "aud", "domain", "version", "nonce", "iat"])
def test_payloads_that_lack_a_field_or_have_it_as_something_else(name: str) -> None:
    payload = payload_of(SOLANA.issuer, {})
    signature = {"t": "solana:ed25519", "s": ""}
    invalid(f"is a .*, not|'{name}'", capability("caip122", payload | {name: 7}, signature))
    del payload[name]
    invalid(f"lacks '{name}'", capability("caip122", payload, signature))


@pytest.mark.parametrize("name", ["iss", "aud"])
def test_parties_that_are_not_dids(name: str) -> None:
    payload = payload_of(SOLANA.issuer, {name: "0xabc"})
    invalid("is not a DID", capability("caip122", payload, {"t": "eip191", "s": ""}))


@pytest.mark.parametrize(
    ("kind", "signature_kind"),
    [("caip122", "jws"), ("eip4361", "solana:ed25519"), ("jwt", "eip191")],
)
def test_kinds_that_cannot_be_checked(kind: str, signature_kind: str) -> None:
    payload = payload_of(ETHEREUM.issuer, {})
    block = capability(kind, payload, {"t": signature_kind, "s": ""})
    unsupported(f"'{kind}' capabilities with '{signature_kind}' signatures", block)


def test_chains_of_capabilities_are_not_supported() -> None:
    unsupported("chains of capabilities are not supported", SOLANA.issue(prf=[INIT.cid]))


def test_controllers_whose_keys_would_have_to_be_looked_up() -> None:
    event = init_under(ETHEREUM.issue(), "did:3:kjzl6cwe1jw14a")
    verify_signature(event, None)
    with pytest.raises(UnsupportedSignatureError, match="'did:3', the method of the"):
        verify_signature(event, "did:3:kjzl6cwe1jw14a")


# Signatures of wallets.


def test_each_kind_of_signature_wants_its_kind_of_issuer() -> None:
    by_ethereum, by_solana = (signature_of(wallet.issue()) for wallet in (ETHEREUM, SOLANA))
    for issuer in (SOLANA.issuer, f"did:pkh:eip155:main:{ETHEREUM.address}", PASSKEY.issuer):
        block = capability("eip4361", payload_of(issuer, {}), by_ethereum)
        invalid("an Ethereum signature, but|not a did:pkh", block)
    for issuer in (PASSKEY.issuer, "did:pkh:eip155:1:abc", "did:pkh:solana:x:1111"):
        invalid("the capability's issuer", capability("caip122", payload_of(issuer, {}), by_solana))
    near = payload_of(SOLANA.issuer.replace(":solana:", ":near:"), {})
    invalid("a Solana signature, but", capability("caip122", near, by_solana))


def signature_of(block: bytes) -> dict[str, Any]:
    signature: dict[str, Any] = dag_cbor.decode(block)["s"]
    return signature


def with_signature(block: bytes, text: str) -> bytes:
    decoded = dag_cbor.decode(block)
    decoded["s"]["s"] = text
    return dag_cbor.encode(decoded)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0x" + "g" * 130, "is 65 bytes in hexadecimal"),
        ("00" * 65, "ends in 27 or 28|not signed by"),
        ("00" * 64 + "1b", "not signed by"),
        ("ff" * 32 + "01" * 32 + "1b", "not signed by"),
    ],
)
def test_forms_of_an_ethereum_signature(text: str, complaint: str) -> None:
    invalid(complaint, with_signature(ETHEREUM.issue(), text))


@pytest.mark.parametrize("text", ["", "0", "1111", "z" * 88, "é"])
def test_forms_of_a_solana_signature(text: str) -> None:
    invalid("signature|not signed by", with_signature(SOLANA.issue(), text))


def test_passkeys_sign_in_der_or_raw() -> None:
    accepted(PASSKEY.issue(raw=False), PASSKEY)
    accepted(PASSKEY.issue(raw=True), PASSKEY)


@pytest.mark.parametrize("text", ["", "!", "AAAA", "A" * 86, "MEUCIQ"])
def test_forms_of_a_passkeys_signature(text: str) -> None:
    invalid("signature|not signed by", with_signature(PASSKEY.issue(), text))


def test_a_passkeys_challenge_leaves_out_what_is_not_known_before() -> None:
    decoded = dag_cbor.decode(PASSKEY.issue())
    decoded["p"] |= {"statement": "anything", "requestId": "1"}
    accepted(dag_cbor.encode(decoded), PASSKEY)
    decoded["p"]["nonce"] = "another"
    invalid("confirmed a different capability", dag_cbor.encode(decoded))


def test_a_passkeys_challenge_may_leave_out_what_is_null() -> None:
    """As for ceramic-one; for js-did it does not."""
    nulls = dict.fromkeys(["nbf", "exp", "statement", "requestId"])
    decoded = dag_cbor.decode(PASSKEY.issue(exp=None))
    decoded["p"] |= nulls
    accepted(dag_cbor.encode(decoded), PASSKEY)
    client = {"challenge": challenge(decoded["h"], decoded["p"])}
    decoded = dag_cbor.decode(PASSKEY.issue(exp=None, client=client))
    decoded["p"] |= nulls
    assert accepted(dag_cbor.encode(decoded), PASSKEY) == Validity(ISSUED, None)
    del decoded["p"]["nbf"]
    invalid("confirmed a different capability", dag_cbor.encode(decoded))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"client": {"type": "webauthn.create"}}, "is not from a sign-in"),
        ({"client": {"challenge": "AAAA"}}, "confirmed a different capability"),
        ({"client": {"challenge": 7}}, "confirmed a different capability"),
        ({"client": b"[]"}, "is not from a sign-in"),
        ({"client": b"\xff"}, "client data is not JSON"),
        ({"client": b"[" * 100_000}, "client data is not JSON"),
        ({"auth_data": bytes(36)}, "has 36 bytes, fewer than 37"),
    ],
)
def test_what_a_passkey_must_have_confirmed(changes: dict[str, Any], complaint: str) -> None:
    invalid(complaint, PASSKEY.issue(**changes))


@pytest.mark.parametrize(
    "metadata", [None, {}, {"aad": "x"}, {"aad": b""}, {"aad": b"\xa0"}, {"aad": b"", "x": 1}]
)
def test_a_passkeys_metadata(metadata: Any) -> None:
    payload = payload_of(PASSKEY.issuer, {})
    signature = {"t": "webauthn:p256", "s": "", "m": metadata}
    invalid("metadata|'aad'|CBOR", capability("caip122", payload, signature))


def test_a_passkeys_key_is_p_256() -> None:
    for issuer in (AUDIENCE, SOLANA.issuer, "did:key:zabc"):
        invalid("issuer", PASSKEY.issue(iss=issuer))


# Whatever is changed.

BLOCKS = [(wallet, wallet.issue(resources=[MODEL_RESOURCE])) for wallet in WALLETS]


@pytest.mark.parametrize("sample", BLOCKS, ids=lambda sample: type(sample[0]).__name__)
@given(draw=st.data())
def test_every_bit_of_a_capability_counts(sample, draw):
    """Signed anew by the session, which knows no other secret than its own."""
    wallet, block = sample
    flipped = bytearray(block)
    bit = draw.draw(st.integers(0, len(block) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        verify_signature(init_under(bytes(flipped), wallet.issuer), wallet.issuer)
    except InvalidEventError:
        return
    # Hexadecimal may be written in either case; nothing else has a second form.
    assert wallet is ETHEREUM
    changed, original = dag_cbor.decode(bytes(flipped)), dag_cbor.decode(block)
    assert changed["s"].pop("s").lower() == original["s"].pop("s").lower()
    assert changed == original


leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9) | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
NAMES = ["iss", "aud", "iat", "exp", "nbf", "resources", "statement", "t", "s", "m", "aad", "prf"]


@given(st.sampled_from(BLOCKS), st.sampled_from(["h", "p", "s", ""]), st.data())
def test_whatever_stands_in_a_capability(sample, part, draw):
    """An event or an `InvalidEventError`, nothing else."""
    wallet, block = sample
    decoded = dag_cbor.decode(block)
    target = decoded[part] if part else decoded
    names = st.sampled_from([*sorted(target), *NAMES])
    target[draw.draw(names)] = draw.draw(values | st.sampled_from([wallet.issuer, AUDIENCE]))
    try:
        event = init_under(dag_cbor.encode(decoded), wallet.issuer)
        verify_signature(event, wallet.issuer)
    except InvalidEventError:
        return
    assert authority(event) == wallet.issuer


# --- beside ceramic-one ------------------------------------------------------------------------

VERDICTS = vectors.load("capability_verdicts")


def test_the_verdict_is_that_of_ceramic_one() -> None:
    """The file names what differs; docs/admission.md says why."""
    for name, event, accepted, *differs in VERDICTS["events"]:
        try:
            parsed = parse_event(base64.b64decode(event))
            assert parsed.header is not None, name
            verify_signature(parsed, parsed.header.controller, parsed.header.model)
        except InvalidEventError:
            assert accepted == bool(differs), name
        else:
            assert accepted != bool(differs), name


def test_what_is_remembered_of_capabilities_is_small() -> None:
    """6,000 refused events left 1.1 GB: a list of empty lists takes sixty times its bytes."""
    fields = dag_cbor.decode(ETHEREUM.issue())
    fields["s"]["m"] = [[]] * 3000
    fields["p"]["nonce"] = "nonce0000"
    block = dag_cbor.encode(fields)
    assert len(block) <= MAX_CACHED_SIZE
    tracemalloc.start()
    for number in range(120):
        signature._unverified(block.replace(b"nonce0000", f"nonce{number:04}".encode()))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert signature._remembered_unverified.cache_info().currsize > 100
    assert after < 6_000_000
