"""The node's settings: what they are called, what they may be, and where they come from.

Four layers, of rising precedence: the defaults below, a TOML file, the environment
(`RECON_NODE_` and the setting's name in capitals), flags. A setting has one name in all of them:
`data_dir`, `RECON_NODE_DATA_DIR`, `--data-dir`. Lists are TOML arrays, or text with commas.

A key in the file that is no setting is refused. A variable that is none is only reported: a
container platform may set some of its own (a Kubernetes service named `recon-node` does).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from recon_node.api import Access, Limits
from recon_node.api.middleware.access import check_token, read_token
from recon_node.ceramic import MAX_CAR_SIZE, Network, StreamId
from recon_node.chain import ChainSettings, parse_confirmations, parse_providers
from recon_node.data_dir import default_data_dir
from recon_node.p2p import P2PSettings, PeerError
from recon_node.p2p.settings import MAX_FRAME, MIN_FRAME, MIN_MESSAGE, MIN_PEER_MEMORY
from recon_node.p2p.transport.addresses import parse_address
from recon_node.recon import SessionSettings
from recon_node.store import Interest, StoreSettings, parse_interest, usable_cores
from recon_node.store.interests import check_interest

ENV_PREFIX = "RECON_NODE_"
_OTHER_VARIABLES = frozenset({"RECON_NODE_CONFIG", "RECON_NODE_URL"})

_FLAGS = {"interests": "interest"}
"""Settings whose flag has another name."""


class SettingsError(ValueError):
    """A setting that cannot be used. The message names it and its source, on one line."""


def _split(value: object) -> object:
    """Text with commas as a list; anything else as it is."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
ChainUrls = Annotated[
    dict[str, tuple[str, ...]], NoDecode, BeforeValidator(parse_providers), Field(repr=False)
]
Confirmations = Annotated[
    int | Literal["finalized"], NoDecode, BeforeValidator(parse_confirmations)
]


class Settings(BaseSettings):
    """All settings of a node. Times are seconds, sizes bytes. See `config/recon-node.toml`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, allow_inf_nan=False
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    """Where the identity and the event log live. One running node each."""
    network: str = "testnet-clay"
    """mainnet, testnet-clay, dev-unstable, inmemory, or local-<number>."""

    interests: TextList = ()
    """What the node wants of its network, as `recon_node.store.interests` has it; empty: all."""

    listen: TextList = Field(P2PSettings().listen, min_length=1)
    """Multiaddrs for peers to connect to; TCP, port 0 takes any free port."""
    announce: TextList = ()
    """Multiaddrs told to peers in place of those, for a node behind NAT."""
    bootstrap: TextList = ()
    """Multiaddrs, each with /p2p/<peer id>, of peers to join the network by."""
    discovery: bool = P2PSettings().discovery
    """Whether to find peers, and be found, through the DHT."""
    sync_interval: float = Field(P2PSettings().sync_interval, gt=0)
    """Time between syncs with known peers while nothing new comes in."""
    max_connections: int = Field(P2PSettings().max_connections, gt=0)
    """Connections to peers at most."""
    max_peer_memory: int = Field(P2PSettings().max_peer_memory, ge=MIN_PEER_MEMORY)
    """Memory that all peers together may make the node use; the greediest are cut off beyond it."""
    peer_id_file: Annotated[Path | None, BeforeValidator(_empty_is_none)] = None
    """A file that gets this node's peer id once it listens, for others to bootstrap by."""
    max_frame: int = Field(P2PSettings().max_frame, ge=MIN_FRAME, le=MAX_FRAME)
    """A frame from a peer at most; peers may set other limits."""
    message_bytes: int = Field(SessionSettings().message_bytes, ge=MIN_MESSAGE)
    """A recon message of ours at most. It is kept below `max_frame`."""

    api: str = "127.0.0.1:5101"
    """HOST:PORT of the HTTP API. Give it a token before opening it up to others."""
    token: Annotated[SecretStr | None, BeforeValidator(_empty_is_none)] = None
    """What clients of the API must show; without it, whoever reaches the API may use all of it."""
    token_file: Annotated[Path | None, BeforeValidator(_empty_is_none)] = None
    """A file with the token, in place of `token`."""
    token_for: Literal["writes", "all"] = "writes"
    """writes: the token is asked for by what changes the node. all: by everything."""
    rate_limit: float = Field(200.0, ge=0)
    """API requests a second of one client address, this machine's apart; 0: any number."""
    max_body_bytes: int = Field(Limits().body, gt=0)
    """Largest request body of the API."""
    max_requests: int = Field(Limits().requests, gt=0)
    """API requests under way at once."""
    cors_allow_origins: TextList = ()
    """Origins whose web pages may call the API; "*" allows all."""

    max_event_bytes: int = Field(StoreSettings().max_event_bytes, gt=0, le=MAX_CAR_SIZE)
    """Largest event (its CAR) that is taken."""
    synchronous: Literal["full", "normal"] = StoreSettings().synchronous
    """full: an acknowledged event survives a power cut; normal: only a crash of the node."""
    max_waiting: int = Field(StoreSettings().max_waiting, ge=0)
    """Most events of peers that are kept while the events that they build on are not here."""
    max_waiting_bytes: int = Field(StoreSettings().max_waiting_bytes, ge=0)
    """The same, by the size of their CARs."""
    verifiers: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = "auto"
    """Processes that check signatures beside the node's own; auto: one a core, at most 4."""

    chain_rpc: ChainUrls = Field(default_factory=dict)
    """For each chain (CAIP-2) the URLs of JSON-RPC endpoints, by which time events are checked."""
    chain_confirmations: Confirmations = ChainSettings().confirmations
    """finalized, or the number of blocks after which a block's time counts."""
    chain_requests_per_second: float = Field(ChainSettings().requests_per_second, gt=0)
    """Requests to the endpoints of one chain at most."""

    log_format: Literal["auto", "pretty", "json"] = "auto"
    """auto: pretty on a terminal, JSON lines otherwise."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("network")
    @classmethod
    def _known_network(cls, value: str) -> str:
        return Network.parse(value).name

    @field_validator("interests")
    @classmethod
    def _known_interests(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            wanted = parse_interest(text)
            if isinstance(wanted, Interest):
                check_interest(wanted)
        return value

    @field_validator("listen", "announce", "bootstrap")
    @classmethod
    def _multiaddrs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                parse_address(text)
            except PeerError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("bootstrap")
    @classmethod
    def _with_peer_ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if "/p2p/" not in text:
                raise ValueError(f"{text!r} lacks the peer id: it should end with /p2p/<peer id>")
        return value

    @field_validator("token")
    @classmethod
    def _usable_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_token(value.get_secret_value())
        return value

    @field_validator("token_file")
    @classmethod
    def _readable_token_file(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_token(value.expanduser())
        return value

    @field_validator("api")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        split_host_port(value)
        return value

    def wanted(self) -> list[Interest | StreamId]:
        """The interests; a StreamId is a stream whose model and controller are not named."""
        return [parse_interest(text) for text in self.interests]

    def p2p_settings(self) -> P2PSettings:
        """The settings of the network side."""
        return P2PSettings(
            listen=self.listen,
            announce=self.announce,
            bootstrap=self.bootstrap,
            discovery=self.discovery,
            sync_interval=self.sync_interval,
            max_connections=self.max_connections,
            max_peer_memory=self.max_peer_memory,
            max_frame=self.max_frame,
            recon=SessionSettings(message_bytes=self.message_bytes),
        )

    def store_settings(self) -> StoreSettings:
        """The settings of the event log."""
        return StoreSettings(
            max_event_bytes=self.max_event_bytes,
            synchronous=self.synchronous,
            max_waiting=self.max_waiting,
            max_waiting_bytes=self.max_waiting_bytes,
            verifiers=usable_cores() if self.verifiers == "auto" else self.verifiers,
        )

    def chain_settings(self) -> ChainSettings:
        """The settings of the chain side."""
        return ChainSettings(
            providers=self.chain_rpc,
            confirmations=self.chain_confirmations,
            requests_per_second=self.chain_requests_per_second,
        )

    def limits(self) -> Limits:
        """The bounds of the API."""
        return Limits(body=self.max_body_bytes, requests=self.max_requests)

    def access(self) -> Access:
        """Who may use the API. Reads the token's file, which was fine when the settings were read.

        Raises:
            ValueError: it is not fine any more, or there are two tokens.
        """
        token = None if self.token is None else self.token.get_secret_value()
        if self.token_file is not None:
            if token is not None:
                raise ValueError("token and token_file are both set: keep one of them")
            token = read_token(self.token_file.expanduser())
        return Access(
            token=token,
            token_for=self.token_for,
            rate_limit=self.rate_limit,
            cors_allow_origins=self.cors_allow_origins,
        )


def split_host_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as host and port; raises ValueError."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} should be HOST:PORT, like 127.0.0.1:5101 or [::1]:5101")
    return host, int(port)


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings of all layers.

    Args:
        config: a TOML file, or None for none.
        flags: settings from the command line, by name.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown or cannot be used.
    """
    given = dict(flags or {})
    file_values = _read_toml(config) if config else {}
    _refuse_unknown(file_values, str(config))

    class LayeredSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file_settings = InitSettingsSource(settings_cls, init_kwargs=file_values)
            return init_settings, env_settings, file_settings

    try:
        return LayeredSettings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(error, given, config))) from None


def unknown_variables() -> list[str]:
    """Environment variables that look like settings and are none, sorted."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | _OTHER_VARIABLES
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"{path}: not TOML: {error}") from None


def _refuse_unknown(values: Mapping[str, Any], source: str) -> None:
    for name in values:
        if name not in Settings.model_fields:
            close = get_close_matches(name, Settings.model_fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see config/recon-node.toml"
            raise SettingsError(f"{source}: no setting is named {name!r} ({hint})")


def _explain(
    error: ValidationError, flags: Mapping[str, Any], config: Path | None
) -> Iterator[str]:
    """Each problem with the place that the value came from."""
    for problem in error.errors():
        name = str(problem["loc"][0])
        if name in flags:
            source = "--" + _FLAGS.get(name, name).replace("_", "-")
        elif ENV_PREFIX + name.upper() in os.environ:
            source = ENV_PREFIX + name.upper()
        else:
            source = f"{config}: {name}"
        message = problem["msg"].removeprefix("Value error, ")
        yield f"{source}: {message}"
