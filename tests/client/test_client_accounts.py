"""Sessions of accounts: signed in, written under, renewed, and refused where they do not hold."""

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from client_samples import OWN_NODE, POST, PROFILE, issued
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from eth_account import Account as EthAccount
from eth_account.messages import encode_defunct
from nacl.signing import SigningKey

from recon_node.ceramic.auth.did import controller_of
from recon_node.client import (
    METAMODEL,
    Account,
    Assertion,
    AsyncCeramic,
    Capability,
    CapabilityExpiredError,
    Ceramic,
    EthereumAccount,
    InvalidArgumentError,
    Key,
    KeyFileError,
    PasskeyAccount,
    SolanaAccount,
)
from recon_node.ipld import multibase
from recon_node.testnet import Testnet

DOMAIN = "notes.example"
WALLET = EthAccount.from_key(b"e" * 32)
SOLANA = SigningKey(b"o" * 32)
PASSKEY = ec.derive_private_key(7, ec.SECP256R1())


def ethereum(sign: bool = True) -> EthereumAccount:
    """An account of eth-account, which knows nothing of this project."""

    def personal_sign(text: str) -> bytes:
        return bytes(WALLET.sign_message(encode_defunct(text=text)).signature)

    return EthereumAccount(WALLET.address, personal_sign if sign else None)


def solana() -> SolanaAccount:
    address = multibase.encode(bytes(SOLANA.verify_key), "base58btc")[1:]
    return SolanaAccount(address, lambda text: SOLANA.sign(text.encode()).signature)


def passkey() -> PasskeyAccount:
    """As a browser answers: the challenge in base64url, in JSON, hashed and signed."""

    def answer(challenge: bytes) -> Assertion:
        text = base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        origin = {"type": "webauthn.get", "challenge": text, "origin": f"https://{DOMAIN}"}
        client, auth = json.dumps(origin).encode(), bytes(32) + b"\x05\0\0\0\1"
        message = auth + hashlib.sha256(client).digest()
        return Assertion(auth, client, PASSKEY.sign(message, ec.ECDSA(SHA256())))

    return PasskeyAccount(controller_of(PASSKEY), answer)


ACCOUNTS: dict[str, Callable[[], Account]] = {
    "ethereum": ethereum,
    "solana": solana,
    "passkey": passkey,
}


SESSIONS = [("ethereum", "ed25519"), ("solana", "p256"), ("passkey", "ed25519")]


@pytest.mark.parametrize(("kind", "session"), SESSIONS)
async def test_a_session_writes_for_an_account(ceramic, kind, session):
    account = ACCOUNTS[kind]()
    ceramic.key = key = account.sign_in(Key.generate(session), domain=DOMAIN)
    assert (key.did, key.signer.startswith("did:key:")) == (account.did, True)
    model = await ceramic.create_model(POST)
    post = await ceramic.create(model.id, {"title": "a"})
    assert post.controller == account.did
    post = await ceramic.update(post.id, {"title": "b"})
    await ceramic.update(post.id, {"title": "b", "stars": 1}, at=post.event)
    await ceramic.update(post.id, {"title": "b", "tags": ["x"]}, at=post.event)
    merged = await ceramic.merge(post.id)
    assert merged.content == {"title": "b", "stars": 1, "tags": ["x"]}
    assert (await ceramic.read(post.id)).rejected == {}
    profiles = await ceramic.create_model(PROFILE)
    profile = await ceramic.create(profiles.id, {"name": "Ada"})
    assert profile.controller == account.did
    ceramic.key = account.sign_in(Key.generate(session), domain=DOMAIN)  # another session
    assert (await ceramic.create(profiles.id, {"name": "Eve"})).id == profile.id


@OWN_NODE
async def test_a_session_is_renewed(ceramic: AsyncCeramic) -> None:
    account = ethereum()
    request = issued(account.request(Key.generate(), domain=DOMAIN), 1_724_925_547, 1_725_148_800)
    signed = WALLET.sign_message(encode_defunct(text=request.message)).signature
    over = account.complete(request, bytes(signed))
    ceramic.key = over
    with pytest.raises(CapabilityExpiredError, match=r"account\.renew") as caught:
        await ceramic.create_model(POST)
    assert caught.value.account == account.did
    key = account.renew(over, lasts=timedelta(days=1))
    assert timedelta(hours=23) < key.capability.expires - datetime.now(UTC) < timedelta(hours=25)
    assert key.signer == over.signer
    assert key.capability.resources == over.capability.resources
    with pytest.raises(InvalidArgumentError, match="does not write for"):
        account.renew(Key.generate())
    with pytest.raises(InvalidArgumentError, match="does not write for"):
        solana().renew(key)


def test_no_session_lasts_beyond_the_calendar() -> None:
    for account in (ethereum(), solana()):
        with pytest.raises(InvalidArgumentError, match="after the year 9999"):
            account.request(Key.generate(), domain=DOMAIN, lasts=timedelta(weeks=999_999))


@OWN_NODE
async def test_a_session_writes_only_what_it_may(ceramic: AsyncCeramic) -> None:
    account = ethereum()
    ceramic.key = account.sign_in(Key.generate(), domain=DOMAIN, models=[METAMODEL])
    model = await ceramic.create_model(POST)
    with pytest.raises(InvalidArgumentError, match="which is not this stream"):
        await ceramic.create(model.id, {"title": "a"})
    ceramic.key = account.sign_in(Key.generate(), domain=DOMAIN, models=[model.id])
    post = await ceramic.create(model.id, {"title": "a"})
    other = solana().sign_in(Key.generate(), domain=DOMAIN)
    with pytest.raises(InvalidArgumentError, match="the stream's controller is"):
        await ceramic.update(post.id, {"title": "b"}, key=other)


@OWN_NODE
async def test_a_wallet_signs_elsewhere(ceramic: AsyncCeramic, tmp_path: Path) -> None:
    """The text goes to somebody who shows it, and the signature comes back as digits."""
    account, key = ethereum(sign=False), Key.generate()
    with pytest.raises(InvalidArgumentError, match="`request` and `complete`"):
        account.sign_in(key, domain=DOMAIN)
    request = account.request(key, domain=DOMAIN, statement="Write notes", lasts=None)
    assert request.message.startswith(
        f"{DOMAIN} wants you to sign in with your Ethereum account:\n{WALLET.address}\n\n"
        f"Write notes\n\nURI: {key.did}\n"
    )
    signed = WALLET.sign_message(encode_defunct(text=request.message)).signature
    for wrong in ("0x" + bytes(64).hex(), signed[:-1] + bytes([signed[-1] ^ 7]), b""):
        with pytest.raises(InvalidArgumentError, match=r"signature|signed"):
            account.complete(request, wrong)
    ready = account.complete(request, "0x" + signed.hex())
    ready.capability.save(tmp_path / "session.cacao")
    capability = Capability.load(tmp_path / "session.cacao")
    assert (capability, capability.expires) == (ready.capability, None)
    ceramic.key = key.acting_for(capability)
    assert (await ceramic.create_model(POST)).controller == account.did
    with pytest.raises(InvalidArgumentError, match="is for the key"):
        Key.generate().acting_for(capability)


def test_what_is_not_an_account_or_a_capability(tmp_path: Path) -> None:
    for address in ("0x1/2", "0xabc", WALLET.address[2:]):
        with pytest.raises(InvalidArgumentError, match=f"'{address}' is not an Ethereum address"):
            EthereumAccount(address)
    for address in ("", "0x1", "1" * 31):
        with pytest.raises(InvalidArgumentError, match=f"'{address}' is not a Solana address"):
            SolanaAccount(address)
    with pytest.raises(InvalidArgumentError, match="passkeys have P-256 keys"):
        PasskeyAccount(Key.generate().did)
    with pytest.raises(InvalidArgumentError, match="line break"):
        ethereum().sign_in(Key.generate(), domain=DOMAIN, statement="a\nb")
    with pytest.raises(KeyFileError, match="No such file"):
        Capability.load(tmp_path / "none")
    (tmp_path / "wrong").write_text("uAAAA")
    with pytest.raises(KeyFileError, match="the capability"):
        Capability.load(tmp_path / "wrong")


def test_what_a_session_writes_spreads() -> None:
    """Between two daemons: the other one verifies the capability and the signature itself."""
    with (
        Testnet(2, flags=("--sync-interval", "1")) as pair,
        Ceramic(pair.nodes[0].api_url, timeout=60) as here,
        Ceramic(pair.nodes[1].api_url, timeout=60) as there,
    ):
        start, written = there.feed_token(), {}
        for kind, make in ACCOUNTS.items():
            account = make()
            here.key = key = account.sign_in(Key.generate(), domain=DOMAIN)
            post = here.create(here.create_model(POST).id, {"title": "a"})
            post = here.update(post.id, {"title": kind}, key=account.renew(key))
            written[post.event] = (post.id, {"title": kind}, account.did)
        missing = set(written)
        for page in there.tail(start):
            missing -= {entry.cid for entry in page.entries}
            if not missing:
                break
        for stream, content, did in written.values():
            read = there.read(stream)
            assert (read.content, read.controller) == (content, did)
