"""Settings: which source wins, what is refused, and that each refusal names its place."""

import os
import re
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import vectors
from support.settings import load_settings

from recon_node.api.settings import split_host_port
from recon_node.base import files
from recon_node.base.program import allow_files
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.cli import main
from recon_node.settings import (
    DECLARATIONS,
    Settings,
    SettingsError,
    example_file,
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
    assert settings.p2p.listen == ("/ip4/0.0.0.0/tcp/4101",)
    assert settings.api.address == "127.0.0.1:5101"
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert load_settings().data_dir == Path("/xdg/recon-node")


def test_a_data_directory_without_a_name_is_refused(tmp_path, monkeypatch):
    """A shell makes an empty text of a variable that is not set."""
    monkeypatch.setenv("RECON_NODE_DATA_DIR", "")
    with pytest.raises(SettingsError, match="RECON_NODE_DATA_DIR: it is empty: name a directory"):
        load_settings()
    result = CliRunner().invoke(main, ["config", "check", "--data-dir", ""])
    assert (result.exit_code, result.output) == (
        2,
        "Error: --data-dir: it is empty: name a directory\n",
    )


def test_later_sources_override_earlier_ones(tmp_path, monkeypatch):
    config = write(
        tmp_path / "node.toml",
        'network = "local-1"\nlog_level = "debug"\napi = "127.0.0.1:1"\nmax_waiting = 7\n',
    )
    assert load_settings(config).store.max_waiting == 7
    monkeypatch.setenv("RECON_NODE_MAX_WAITING", "0")
    monkeypatch.setenv("RECON_NODE_LOG_LEVEL", "error")
    monkeypatch.setenv("RECON_NODE_API", "127.0.0.1:2")
    settings = load_settings(config, {"api": "127.0.0.1:3"})
    assert settings.network == "local-1"  # only the file says so
    assert settings.log.level == "error"  # environment over file
    assert settings.api.address == "127.0.0.1:3"  # flag over both
    assert settings.store.max_waiting == 0


def test_lists_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/2"
    config = write(tmp_path / "node.toml", f'listen = ["{one}", "{two}"]\nbootstrap = "{PEER}"\n')
    settings = load_settings(config)
    assert settings.p2p.listen == (one, two)
    assert settings.p2p.bootstrap == (PEER,)
    monkeypatch.setenv("RECON_NODE_LISTEN", f"{two}, {one}")
    assert load_settings(config).p2p.listen == (two, one)
    assert load_settings(config, {"listen": (one,)}).p2p.listen == (one,)


def test_settings_reach_the_rooms() -> None:
    flags = {"listen": ("/ip4/127.0.0.1/tcp/9",), "max_event_bytes": 5000, "max_body_bytes": 9000}
    settings = load_settings(flags={**flags, "synchronous": "normal", "bootstrap": (PEER,)})
    p2p, store = settings.p2p, settings.store
    assert (p2p.listen, p2p.bootstrap) == (("/ip4/127.0.0.1/tcp/9",), (PEER,))
    assert (store.max_event_bytes, store.synchronous) == (5000, "normal")
    assert settings.api.limits.body == 9000


@pytest.mark.parametrize(("text", "words"), vectors.load("settings_refusals"))
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    config = write(tmp_path / "node.toml", text)
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    message = str(caught.value)
    assert message.startswith(f"{config}: ")
    assert words in message
    assert "\n" not in message


def test_a_file_that_never_ends_or_begins_is_not_waited_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "_PIPE_PATIENCE", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="pipe: nothing comes from it"):
        load_settings(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="/dev/zero: it has more than 1048576 bytes"):
        load_settings(Path("/dev/zero"))


def test_settings_are_read_by_a_process_with_many_open_files(tmp_path: Path) -> None:
    """`select` takes no descriptor above 1,023."""
    allow_files(2_000)
    with ExitStack() as opened:
        for _ in range(1_100):
            opened.enter_context(Path(os.devnull).open())
        file = write(tmp_path / "node.toml", "network = 'local-5'\n")
        assert load_settings(file).network == "local-5"


@pytest.mark.parametrize("value", ["true", "nan", "inf", "-inf", "1e400"])
def test_only_numbers_are_numbers(tmp_path: Path, value: str) -> None:
    """In Python, true is 1."""
    for name, declaration in DECLARATIONS.items():
        if not isinstance(declaration.default, bool):
            with pytest.raises(SettingsError, match=f": {name}: "):
                load_settings(write(tmp_path / "node.toml", f"{name} = {value}\n"))
    two = write(tmp_path / "node.toml", "max_frame = true\nlog_format = 'x'\n")
    with pytest.raises(SettingsError, match=r"max_frame: true is not a value.*; .*: log_format: "):
        load_settings(two)


def test_a_node_does_not_start_without_the_write_policy_of_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / "node.toml", 'write_policy = "policy.py"\n')
    with pytest.raises(SettingsError, match=r"'write_policy' \(not any more: docs/upgrading.md"):
        load_settings(config)
    monkeypatch.setenv("RECON_NODE_WRITE_POLICY", "policy.py")
    with pytest.raises(SettingsError, match=r"^RECON_NODE_WRITE_POLICY: .*docs/upgrading.md"):
        load_settings()
    monkeypatch.setenv("RECON_NODE_WRITE_POLICY", "")  # as a container's settings without a value
    load_settings()


def test_each_refusal_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^--network: no network is named 'x'"):
        load_settings(flags={"network": "x"})
    monkeypatch.setenv("RECON_NODE_SYNC_INTERVAL", "x")
    with pytest.raises(SettingsError, match=r"^RECON_NODE_SYNC_INTERVAL: Input should be"):
        load_settings()
    with pytest.raises(SettingsError, match=r"gone\.toml: No such file"):
        load_settings(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("listen", "/", "cannot listen on"),
        ("listen", "/ip4/0.0.0.0/udp/4101/quic-v1", "cannot listen on"),
        ("listen", "/dns4/node.example/tcp/4101", "cannot listen on"),
        ("announce", "/ip4/192.0.2.7/udp/4101/quic-v1", "this node speaks TCP only"),
        ("announce", "/ip4/0.0.0.0/tcp/4101", "is not the address of a host"),
        ("bootstrap", PEER.replace("/tcp/", "/udp/"), "this node speaks TCP only"),
        ("anchor_clients", "nonsense", "is not a DID"),
        ("snapshot_signers", "did:pkh:x", "only of did:key"),
    ],
)
def test_what_no_node_starts_with_or_works_with_is_refused(name, wrong, words, tmp_path) -> None:
    """By `recon-node config check`, too."""
    config = write(tmp_path / "node.toml", f'{name} = ["{wrong}"]\n')
    result = CliRunner().invoke(main, ["config", "check", "--config", str(config)])
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {config}: {name}: ")
    assert words in result.output


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "api_hosts",
            ("*", "node-1", ".svc.cluster.local", "192.0.2.1", "2001:db8::1", "A_b.example"),
            ("http://node-1", "node-1:5101", "[2001:db8::1]", "node.example.", "node-1/", "."),
        ),
        (
            "cors_allow_origins",
            ("*", "null", "https://a.example", "http://localhost:8080", "moz-extension://4a-b"),
            ("a.example", "https://a.example/", "https://A.example", "https://", "localhost:80"),
        ),
    ],
)
def test_a_name_that_no_request_can_have_is_refused(name, right, wrong):
    load_settings(flags={name: right})
    for text in wrong:
        with pytest.raises(SettingsError, match=rf"{name.replace('_', '-')}: '{re.escape(text)}' "):
            load_settings(flags={name: (text,)})


def test_how_to_write_an_ipv6_host_is_said() -> None:
    with pytest.raises(SettingsError, match="an IPv6 address without brackets"):
        load_settings(flags={"api_hosts": ("[::1]",)})


def test_variables_that_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECON_NODE_PORT_5101_TCP", "tcp://10.0.0.1:5101")
    monkeypatch.setenv("RECON_NODE_NETWORK", "local-1")
    monkeypatch.setenv("RECON_NODE_URL", "http://127.0.0.1:5101")
    monkeypatch.setenv("RECON_NODE_KEY", "my.key")
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
def test_what_is_not_a_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="should be HOST:PORT"):
        split_host_port(text)


def test_a_token_from_a_file_or_the_environment(tmp_path, monkeypatch):
    assert load_settings().api.access_with_token().token is None
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    settings = load_settings(None, {"token_file": file, "token_for": "all"})
    access = settings.api.access_with_token()
    assert (access.token, access.token_for) == ("0123456789abcdef", "all")
    monkeypatch.setenv("RECON_NODE_TOKEN", "fedcba9876543210")
    assert load_settings().api.access_with_token().token == "fedcba9876543210"
    assert "fedcba" not in repr(load_settings())
    with pytest.raises(ValueError, match="both set"):
        load_settings(None, {"token_file": file}).api.access_with_token()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short", "token has 5 characters"),
        ("with blanks in the middle", "without spaces"),
        ("ünïcödé ünïcödé", "token"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_token_file_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(None, {"token_file": file})
    assert str(caught.value).startswith("--token-file: ")
    assert text is None or text not in str(caught.value)


def test_the_example_file_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    text = (ROOT / "config" / "recon-node.toml").read_text()
    assert text == example_file(), "python -m recon_node.settings > config/recon-node.toml"
    uncommented = "\n".join(
        line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")
    )
    shown = tomllib.loads(uncommented)
    assert set(shown) == set(DECLARATIONS)
    config = write(tmp_path / "node.toml", uncommented)
    assert load_settings(config) == Settings()
    assert all(declaration.description for declaration in DECLARATIONS.values())


def test_the_other_example_files_can_be_used() -> None:
    for path in (ROOT / "config").glob("*.toml"):
        assert load_settings(path).data_dir.is_absolute()


def test_extra_interests_are_ceramic_one_s_name_for_interests(tmp_path, monkeypatch):
    one, other = METAMODEL, StreamId(StreamType.MODEL, METAMODEL.cid)
    expected = [parse_interest(str(one)), parse_interest(str(other))]
    for flags in ((f"{one},{other}",), (str(one), f"{other}, {one}")):
        settings = {"extra_interests": flags, "interests": (str(one),)}
        assert load_settings(flags=settings).wanted() == expected
    config = write(tmp_path / "node.toml", f'extra_interests = ["{one}", "{other}"]\n')
    assert load_settings(config).wanted() == expected
    monkeypatch.setenv("RECON_NODE_EXTRA_INTERESTS", f"{one},{other}")
    assert load_settings().wanted() == expected
    with pytest.raises(SettingsError, match=r"^--extra-interests: 'x' is not a StreamID"):
        load_settings(flags={"extra_interests": (f"{one},x",)})


def test_write_policies_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, did, other = str(METAMODEL), "did:key:z6Mk", "did:pkh:eip155:1:0xab"
    config = write(tmp_path / "node.toml", f'deny_models = ["{model}"]\n')
    monkeypatch.setenv("RECON_NODE_ALLOW_CONTROLLERS", f"{did},{other}")
    policy = load_settings(config, {"deny_controllers": (did, other)}).policy
    assert policy.in_use() == {
        "deny_models": [model],
        "allow_controllers": [did, other],
        "deny_controllers": [did, other],
    }
    flags = [DECLARATIONS[name].flag for name in ("allow_models", "deny_controllers")]
    assert flags == ["--allow-model", "--deny-controller"]


def test_interests_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
