"""Networks, StreamIDs and DIDs: names in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from recon_node.ceramic import (
    IN_MEMORY,
    METAMODEL,
    DidError,
    Network,
    NetworkError,
    StreamId,
    StreamIdError,
    StreamType,
    ed25519_did,
)
from recon_node.ceramic.auth.did import ed25519_key, is_did
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, multibase

cids = st.builds(CID.of, st.sampled_from([DAG_CBOR, DAG_JOSE]), st.binary(max_size=8))
stream_ids = st.builds(StreamId, st.integers(0, 2**63 - 1), cids)


@pytest.mark.parametrize(
    ("name", "network_id"),
    [
        # https://github.com/ceramicnetwork/CIPs/blob/main/tables/networkIds.csv
        ("mainnet", 0),
        ("testnet-clay", 1),
        ("dev-unstable", 2),
        ("inmemory", 0xFF),
        ("local-0", 0x1_0000_0000),
        ("local-7", 0x1_0000_0007),
        ("local-4294967295", 0x1_FFFF_FFFF),
    ],
)
def test_networks(name: str, network_id: int) -> None:
    network = Network.parse(name)
    assert (network.id, network.name, str(network)) == (network_id, name, name)
    assert Network.from_id(network_id) == network


def test_the_in_memory_network_has_two_names() -> None:
    assert Network.parse("in-memory") == Network.parse("inmemory") == IN_MEMORY


@pytest.mark.parametrize(
    "name", ["", "Mainnet", "local", "local-", "local-07", "local--1", "local-4294967296", "0"]
)
def test_no_such_network(name: str) -> None:
    with pytest.raises(NetworkError):
        Network.parse(name)


@pytest.mark.parametrize("network_id", [-1, 3, 0xFE, 2**32 - 1, 2**33])
def test_no_such_network_id(network_id: int) -> None:
    with pytest.raises(NetworkError, match=str(network_id)):
        Network.from_id(network_id)


@given(stream_ids)
def test_stream_ids_in_and_out(stream_id: StreamId) -> None:
    assert StreamId.from_bytes(stream_id.to_bytes()) == stream_id
    assert StreamId.parse(str(stream_id)) == stream_id
    assert str(stream_id).startswith("k")
    assert StreamId.parse(multibase.encode(stream_id.to_bytes(), "base58btc")) == stream_id


def test_the_metamodel() -> None:
    """`MODEL_STREAM_ID` of the Ceramic SDK: the stream "model-v1", which no one can load."""
    assert str(METAMODEL) == "kh4q0ozorrgaq2mezktnrmdwleo1d"
    assert METAMODEL.type == StreamType.UNLOADABLE
    assert METAMODEL.cid.digest.endswith(b"model-v1")


def test_an_example_of_cip_124() -> None:
    stream_id = StreamId.parse("kjzl6hvfrbw6c82mkud4qs38zl4hd03ifoyg2ksvfjkhuxebfzh3ef89vwvtvrr")
    assert stream_id.type == StreamType.MODEL
    assert stream_id.cid.codec == DAG_JOSE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("k", "broken"),
        ("blog", "multibase"),
        (str(METAMODEL)[:-1], "is it complete"),
        (str(CID.of(DAG_CBOR, b"")), "it is a CID"),
    ],
)
def test_other_texts_are_not_stream_ids(text: str, reason: str) -> None:
    with pytest.raises(StreamIdError, match=f"not a StreamID: .*{reason}"):
        StreamId.parse(text)


@given(stream_ids, st.binary(min_size=1, max_size=4))
def test_truncated_and_padded_stream_ids_are_refused(stream_id: StreamId, tail: bytes) -> None:
    raw = stream_id.to_bytes()
    for size in range(len(raw)):
        with pytest.raises(StreamIdError):
            StreamId.from_bytes(raw[:size])
    with pytest.raises(StreamIdError, match="extra bytes"):
        StreamId.from_bytes(raw + tail)


@given(st.binary(min_size=32, max_size=32))
def test_keys_and_their_dids(seed: bytes) -> None:
    key = SigningKey(seed).verify_key
    did = ed25519_did(bytes(key))
    assert did.startswith("did:key:z6Mk")
    assert is_did(did)
    assert ed25519_key(did) == key


@pytest.mark.parametrize(
    ("did", "complaint"),
    [
        ("did:pkh:eip155:1:0xab16a96d359ec26a11e2c2b3d8f8b8942d5bfcdb", "'did:pkh'"),
        ("did:3:kjzl6cwe1jw149tlplc4bgnpn1v4uwk9rg9jkvijx0u0zmfa97t69dnqibqa2as", "'did:3'"),
        ("did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme", "a secp256k1 key, not Ed"),
        ("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooW", "broken DID"),
        ("did:key:f1234", "base58"),
        ("did:key:z0OIl", "broken DID"),
        ("did:key:" + multibase.encode(b"\xed\x01" + bytes(31), "base58btc"), "32 bytes"),
        ("did:key:" + multibase.encode(b"\xed\x01" + bytes(33), "base58btc"), "32 bytes"),
        ("", "is not a DID"),
    ],
)
def test_dids_whose_key_is_not_known(did: str, complaint: str) -> None:
    with pytest.raises(DidError, match=complaint):
        ed25519_key(did)


@pytest.mark.parametrize(
    "text",
    [
        *("", "did:", "did:key:", "key:z6Mk", "did:KEY:z", "did:key:z6Mk#z6Mk", "did:key:z6Mk\n"),
        *("did:key:\x1b[31m", "did:key:z 6", "did:web:example.com/path", "did:key:é"),
        "did:key:" + "z" * 1000,
    ],
)
def test_texts_that_are_not_dids(text: str) -> None:
    assert not is_did(text)
