"""Accounts that sign in: Ethereum, Solana and passkeys, in whose names a session's key writes.

    wallet = eth_account.Account.from_key(...)
    account = EthereumAccount(
        wallet.address, lambda text: wallet.sign_message(encode_defunct(text=text)).signature
    )
    key = account.sign_in(Key.generate(), domain="notes.example", models=[posts.id])
    with Ceramic(url, key=key) as ceramic:
        ceramic.create(posts.id, {"title": "Mine"})  # its controller is the account

Theory of operation. An account signs once: a capability (CACAO) that lets the session's key write
for it until it expires. The account itself is a callback, since its key is in a wallet, on a
hardware token or in a browser: it is shown a text (EIP-4361, CAIP-122) or a challenge (WebAuthn)
and returns its signature. Where that cannot be a call, because somebody signs elsewhere, there are
its two halves: `request`, which has the text, and `complete`, which takes the signature.
"""

from __future__ import annotations

import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from recon_node.base.connection import InvalidArgumentError
from recon_node.ceramic.auth.capability import ANY_STREAM, parse_cacao
from recon_node.ceramic.auth.did import canonical_did, chain_account, eip55, public_key
from recon_node.ceramic.auth.wallets import ADDRESS, challenge, signed_text
from recon_node.client.arguments import StreamRef, shown, to_stream_id
from recon_node.client.keys import Capability, Key, checked_arguments
from recon_node.ipld import IpldError, dag_cbor, multibase

LASTS: Final = timedelta(days=7)
"""How long a session lasts."""

_VERSION: Final = "1"
_PASSKEY: Final = "P-256"
"""The kind of a passkey's key."""
_SOLANA_SIZE: Final = 32
"""Bytes of an address: an Ed25519 key."""
_NONCE_SIZE: Final = 16
"""Random bytes."""
_KEPT: Final = ("domain", "statement", "resources")
"""Fields that are the same in a renewed capability."""

S = TypeVar("S")
M = TypeVar("M", str, bytes)


@dataclass(frozen=True, slots=True)
class SignIn(Generic[M]):
    """A capability that its account has not signed yet."""

    key: Key
    """The session's key, which is to write for the account."""
    message: M
    """What the account is to sign: the text that its wallet shows, or a passkey's challenge."""
    fields: dict[str, Any] = field(repr=False)
    """The capability's header and payload."""


class Account(ABC, Generic[M, S]):
    """An account that lets keys write in its name."""

    _kind: ClassVar[str]

    def __init__(self, did: str, sign: Callable[[M], S] | None) -> None:
        self.did = did
        self._ask: Callable[[M], S] | None = sign

    def request(
        self,
        key: Key,
        *,
        domain: str,
        models: Iterable[StreamRef] | None = None,
        statement: str | None = None,
        lasts: timedelta | None = LASTS,
    ) -> SignIn[M]:
        """Prepare a capability, for `complete` once the account has signed its message.

        Args:
            key: of the session.
            domain: of the application that asks; wallets show it.
            models: whose documents the key may write; by default it may write everything.
            statement: a sentence for the person who signs.
            lasts: how long; None means forever.

        Raises:
            InvalidArgumentError: a field that a capability cannot have.
        """
        resources = [ANY_STREAM]
        if models is not None:
            resources = [f"{ANY_STREAM}?model={to_stream_id(model)}" for model in models]
        said = {"domain": domain, "statement": statement, "resources": resources}
        return self._request(key, said, lasts)

    def complete(self, request: SignIn[M], signature: S) -> Key:
        """Return the key that writes for the account.

        Raises:
            InvalidArgumentError: it is not the account's signature of that message.
        """
        signed = {**request.fields, "s": self._signature(signature)}
        return request.key.acting_for(Capability(dag_cbor.encode(signed)))

    def sign_in(
        self,
        key: Key,
        *,
        domain: str,
        models: Iterable[StreamRef] | None = None,
        statement: str | None = None,
        lasts: timedelta | None = LASTS,
    ) -> Key:
        """Have the account sign, and return the key that writes for it. Arguments as `request`.

        Raises:
            InvalidArgumentError: what was signed is not right, or the account has no `sign`.
        """
        request = self.request(key, domain=domain, models=models, statement=statement, lasts=lasts)
        return self.complete(request, self._sign(request.message))

    def renew(self, key: Key, *, lasts: timedelta | None = LASTS) -> Key:
        """Have the account sign again what lets a key write, so that it lasts longer.

        Raises:
            InvalidArgumentError: the key does not write for this account, or as `sign_in`.
        """
        if key.capability is None or canonical_did(key.did) != canonical_did(self.did):
            raise InvalidArgumentError(f"the key does not write for {self.did}: use `sign_in`")
        payload = key.capability.cacao.payload
        request = self._request(key, {name: payload.get(name) for name in _KEPT}, lasts)
        return self.complete(request, self._sign(request.message))

    def _request(self, key: Key, said: dict[str, Any], lasts: timedelta | None) -> SignIn[M]:
        now = datetime.now(UTC)
        try:
            expires = None if lasts is None else _rfc_3339(now + lasts)
        except OverflowError:
            raise InvalidArgumentError("`lasts` ends after the year 9999") from None
        payload = {
            "iss": self.did,
            "aud": key.signer,
            "version": _VERSION,
            "nonce": secrets.token_hex(_NONCE_SIZE),
            "iat": _rfc_3339(now),
            "exp": expires,
            **said,
        }
        payload = {name: value for name, value in payload.items() if value is not None}
        fields = {"h": {"t": self._kind}, "p": payload}
        return SignIn(replace(key, capability=None), self._message(fields), fields)

    @abstractmethod
    def _message(self, fields: dict[str, Any]) -> M:
        """What is signed."""

    @abstractmethod
    def _signature(self, signature: S) -> dict[str, Any]:
        """The signature as the capability holds it."""

    def _sign(self, message: M) -> S:
        if self._ask is None:
            raise InvalidArgumentError("the account has no `sign`: use `request` and `complete`")
        return self._ask(message)


class _Wallet(Account[str, bytes | str]):
    """A blockchain account: it signs a text that its wallet shows."""

    _chain: ClassVar[str]
    _algorithm: ClassVar[str]

    def __init__(self, did: str, sign: Callable[[str], bytes | str] | None) -> None:
        with checked_arguments():
            self._account = chain_account(did)
        super().__init__(did, sign)

    def _message(self, fields: dict[str, Any]) -> str:
        unsigned = {**fields, "s": {"t": self._algorithm, "s": ""}}
        with checked_arguments():
            cacao = parse_cacao(unsigned)
        return signed_text(cacao, self._chain, self._account)

    def _signature(self, signature: bytes | str) -> dict[str, Any]:
        text = signature if isinstance(signature, str) else self._text(bytes(signature))
        return {"t": self._algorithm, "s": text}

    @abstractmethod
    def _text(self, signature: bytes) -> str:
        """A signature as the capability has it."""


class EthereumAccount(_Wallet):
    """An Ethereum account (not a contract).

    Args:
        address: "0x" and 40 digits.
        sign: makes the signature of a text by `personal_sign` (EIP-191): 65 bytes, or their
            hexadecimal digits. Without it, use `Account.request` and `Account.complete`.
        chain: the id of the chain; 1 is Ethereum's own.

    Raises:
        InvalidArgumentError: not an address.
    """

    _kind = "eip4361"
    _chain = "Ethereum"
    _algorithm = "eip191"

    def __init__(
        self, address: str, sign: Callable[[str], bytes | str] | None = None, *, chain: int = 1
    ) -> None:
        if ADDRESS.fullmatch(address) is None:
            raise InvalidArgumentError(
                f"{shown(address)} is not an Ethereum address: 0x and 40 hexadecimal digits"
            )
        super().__init__(f"did:pkh:eip155:{chain}:{address.lower()}", sign)
        self._account = self._account._replace(address=eip55(address.lower()))  # what wallets show

    def _text(self, signature: bytes) -> str:
        return "0x" + signature.hex()


class SolanaAccount(_Wallet):
    """A Solana account.

    Args:
        address: in base58.
        sign: makes the Ed25519 signature of a text, in UTF-8: 64 bytes, or base58. Without it,
            use `Account.request` and `Account.complete`.
        chain: the reference of the chain (CAIP-30); by default its mainnet.

    Raises:
        InvalidArgumentError: not an address.
    """

    _kind = "caip122"
    _chain = "Solana"
    _algorithm = "solana:ed25519"

    def __init__(
        self,
        address: str,
        sign: Callable[[str], bytes | str] | None = None,
        *,
        chain: str = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp",
    ) -> None:
        try:
            is_key = len(multibase.decode(f"z{address}")) == _SOLANA_SIZE
        except IpldError:
            is_key = False
        if not is_key:
            raise InvalidArgumentError(
                f"{shown(address)} is not a Solana address: {_SOLANA_SIZE} bytes in base58"
            )
        super().__init__(f"did:pkh:solana:{chain}:{address}", sign)

    def _text(self, signature: bytes) -> str:
        return multibase.encode(signature, "base58btc")[1:]


def account_of(did: str) -> EthereumAccount | SolanaAccount:
    """Return the account that a did:pkh names, which signs elsewhere.

    Raises:
        InvalidArgumentError: not a did:pkh, or of another kind of chain.
    """
    with checked_arguments():
        account = chain_account(did)
    if account.namespace == "solana":
        return SolanaAccount(account.address, chain=account.reference)
    if account.namespace == "eip155" and account.reference.isdecimal():
        return EthereumAccount(account.address, chain=int(account.reference))
    raise InvalidArgumentError(f"{did} is not an account of Ethereum (eip155) or Solana")


class Assertion(NamedTuple):
    """What a passkey answers: the members of WebAuthn's `AuthenticatorAssertionResponse`."""

    authenticator_data: bytes
    client_data_json: bytes
    signature: bytes
    """As DER, as browsers have it."""


class PasskeyAccount(Account[bytes, Assertion]):
    """A passkey (WebAuthn) with a P-256 key.

    `sign` answers a challenge, as `navigator.credentials.get` does. Without it, use
    `Account.request` and `Account.complete`.

    Raises:
        InvalidArgumentError: not the did:key of a P-256 key.
    """

    _kind = "caip122"

    def __init__(self, did: str, sign: Callable[[bytes], Assertion] | None = None) -> None:
        with checked_arguments():
            key = public_key(did)
        if key.kind != _PASSKEY:
            raise InvalidArgumentError(f"{did} names a {key.kind} key; passkeys have P-256 keys")
        super().__init__(did, sign)

    def _message(self, fields: dict[str, Any]) -> bytes:
        text = challenge(fields["h"], fields["p"])
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    def _signature(self, signature: Assertion) -> dict[str, Any]:
        aad = {
            "authData": bytes(signature.authenticator_data),
            "clientDataJSON": bytes(signature.client_data_json),
        }
        text = base64.urlsafe_b64encode(signature.signature).rstrip(b"=").decode()
        return {"t": "webauthn:p256", "s": text, "m": {"aad": dag_cbor.encode(aad)}}


def _rfc_3339(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
