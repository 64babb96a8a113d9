"""Settings: which layer wins, what is refused, and that each refusal names its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.settings import (
    Settings,
    SettingsError,
    load_settings,
    split_host_port,
    unknown_variables,
)
from recon_node.store import parse_interest

ROOT = Path(__file__).parents[2]
PEER = "/ip4/192.0.2.1/tcp/4101/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RECON_NODE_NETWORK", "RECON_NODE_CONFIG", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings()
    assert settings.data_dir == tmp_path / ".recon-node"
    assert settings.network == "testnet-clay"
    assert settings.listen == ("/ip4/0.0.0.0/tcp/4101",)
    assert settings.api == "127.0.0.1:5101"
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert load_settings().data_dir == Path("/xdg/recon-node")


def test_flags_beat_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(
        tmp_path / "node.toml",
        'network = "local-1"\nlog_level = "debug"\napi = "127.0.0.1:1"\nsync_interval = 1\n',
    )
    monkeypatch.setenv("RECON_NODE_LOG_LEVEL", "error")
    monkeypatch.setenv("RECON_NODE_API", "127.0.0.1:2")
    settings = load_settings(config, {"api": "127.0.0.1:3"})
    assert settings.network == "local-1"  # only the file says so
    assert settings.log_level == "error"  # environment over file
    assert settings.api == "127.0.0.1:3"  # flag over both
    assert settings.sync_interval == 1.0


def test_lists_from_each_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/2"
    config = write(tmp_path / "node.toml", f'listen = ["{one}", "{two}"]\nbootstrap = "{PEER}"\n')
    settings = load_settings(config)
    assert settings.listen == (one, two)
    assert settings.bootstrap == (PEER,)
    monkeypatch.setenv("RECON_NODE_LISTEN", f"{two}, {one}")
    assert load_settings(config).listen == (two, one)
    assert load_settings(config, {"listen": (one,)}).listen == (one,)


def test_settings_reach_the_floors_below() -> None:
    flags = {"listen": ("/ip4/127.0.0.1/tcp/9",), "max_event_bytes": 5000, "max_body_bytes": 9000}
    settings = load_settings(flags={**flags, "synchronous": "normal", "bootstrap": (PEER,)})
    p2p, store = settings.p2p_settings(), settings.store_settings()
    assert (p2p.listen, p2p.bootstrap) == (("/ip4/127.0.0.1/tcp/9",), (PEER,))
    assert (store.max_event_bytes, store.synchronous) == (5000, "normal")
    assert settings.limits().body == 9000


def test_the_room_for_waiting_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path / "node.toml", "max_waiting = 7\nmax_waiting_bytes = 8000\n")
    store = load_settings(config).store_settings()
    assert (store.max_waiting, store.max_waiting_bytes) == (7, 8000)
    monkeypatch.setenv("RECON_NODE_MAX_WAITING", "0")
    assert load_settings(config).store_settings().max_waiting == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('lisen = "x"', "no setting is named 'lisen' (did you mean 'listen'?)"),
        ("zzz = 1", "no setting is named 'zzz' (see config/recon-node.toml)"),
        ("[p2p]\nx = 1", "no setting is named 'p2p'"),
        ("network = 5", "network: Input should be a valid string"),
        ('network = "nowhere"', "network: no network is named 'nowhere'"),
        ('sync_interval = "often"', "sync_interval: Input should be a valid number"),
        ("sync_interval = 0", "sync_interval: Input should be greater than 0"),
        ("sync_interval = nan", "sync_interval: Input should be a finite number"),
        ("listen = []", "listen: Tuple should have at least 1 item"),
        ('listen = ["/tcp/x"]', "listen: '/tcp/x' is not a multiaddr such as /ip4"),
        ('bootstrap = ["/ip4/1.2.3.4/tcp/1"]', "bootstrap: '/ip4/1.2.3.4/tcp/1' lacks the peer id"),
        ('api = "5101"', "api: '5101' should be HOST:PORT"),
        ("max_event_bytes = 1000001", "max_event_bytes: Input should be less than or equal to"),
        ("max_waiting = -1", "max_waiting: Input should be greater than or equal to 0"),
        ('log_level = "loud"', "log_level: Input should be 'debug', 'info'"),
        ("= 1", "not TOML"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    config = write(tmp_path / "node.toml", text)
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    message = str(caught.value)
    assert message.startswith(f"{config}: ")
    assert words in message
    assert "\n" not in message


def test_each_refusal_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^--network: no network is named 'x'"):
        load_settings(flags={"network": "x"})
    monkeypatch.setenv("RECON_NODE_SYNC_INTERVAL", "x")
    with pytest.raises(SettingsError, match=r"^RECON_NODE_SYNC_INTERVAL: Input should be"):
        load_settings()
    with pytest.raises(SettingsError, match=r"gone\.toml: No such file"):
        load_settings(tmp_path / "gone.toml")


def test_variables_that_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECON_NODE_PORT_5101_TCP", "tcp://10.0.0.1:5101")
    monkeypatch.setenv("RECON_NODE_NETWORK", "local-1")
    monkeypatch.setenv("RECON_NODE_URL", "http://127.0.0.1:5101")
    assert unknown_variables() == ["RECON_NODE_PORT_5101_TCP"]
    assert load_settings().network == "local-1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5101", ("127.0.0.1", 5101)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text) == expected


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:65536", "h:-1", "h:٣", "::1:80", "h:1:2"])
def test_what_is_no_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="should be HOST:PORT"):
        split_host_port(text)


def test_a_token_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().access().token is None
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    settings = load_settings(None, {"token_file": file, "token_for": "all"})
    access = settings.access()
    assert (access.token, access.token_for) == ("0123456789abcdef", "all")
    monkeypatch.setenv("RECON_NODE_TOKEN", "fedcba9876543210")
    assert load_settings().access().token == "fedcba9876543210"
    assert "fedcba" not in repr(load_settings())
    with pytest.raises(ValueError, match="both set"):
        load_settings(None, {"token_file": file}).access()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short", "token has 5 characters"),
        ("with blanks in the middle", "without blanks"),
        ("ünïcödé ünïcödé", "token"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_token_s_file_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(None, {"token_file": file})
    assert str(caught.value).startswith("--token-file: ")
    assert text is None or text not in str(caught.value)


def test_the_example_file_shows_every_setting_with_its_default() -> None:
    """Each setting stands in it, commented out, with the value that it has anyway."""
    text = (ROOT / "config" / "recon-node.toml").read_text()
    uncommented = "\n".join(
        line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")
    )
    shown = tomllib.loads(uncommented)
    assert set(shown) == set(Settings.model_fields)
    example = Settings.model_validate(shown)
    assert example == Settings()


def test_the_other_example_files_can_be_used() -> None:
    for path in (ROOT / "config").glob("*.toml"):
        assert load_settings(path).data_dir.is_absolute()


def test_interests_from_each_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = str(METAMODEL), f"model={METAMODEL} controller=did:key:z6Mk"
    config = write(tmp_path / "node.toml", f'interests = ["{one}", "{other}"]\n')
    assert load_settings(config).wanted() == [parse_interest(one), parse_interest(other)]
    monkeypatch.setenv("RECON_NODE_INTERESTS", f"{other}, {one}")
    assert load_settings(config).interests == (other, one)
    assert load_settings(config, {"interests": (one,)}).interests == (one,)
    assert load_settings().interests == (other, one)
    with pytest.raises(SettingsError, match=r"^--interest: 'x' is not a StreamID"):
        load_settings(flags={"interests": ("x",)})
    document = StreamId(StreamType.MODEL_INSTANCE, METAMODEL.cid)
    with pytest.raises(SettingsError, match=r"^--interest: .* of a document, not of a model"):
        load_settings(flags={"interests": (f"model={document}",)})
