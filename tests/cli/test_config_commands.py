"""`recon-node config`, and the completion of commands."""

import re
import sys
import tomllib
from pathlib import Path

import click
import pytest
from cli_run import error_of, json_of, run
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.settings import load_settings
from support.waiting import finished

from recon_node.cli import import_command, main
from recon_node.settings import DECLARATIONS, toml_value
from spark_sink.cli import main as spark_main

TOKEN = "a-token-that-nobody-should-see"
KEY = "https://rpc.example/a-secret-key"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(
        f'network = "local-1"\nlog_level = "debug"\ntoken = "{TOKEN}"\n'
        f'interests = []\nchain_rpc = {{ "eip155:1" = "{KEY}" }}\n'
    )
    return path


def test_each_setting_is_shown_with_its_source(file: Path) -> None:
    args = ("config", "show", "--config", file, "--log-level", "error")
    lines = run(*args, RECON_NODE_API="127.0.0.1:9").stdout.splitlines()
    assert f'network = "local-1"  # {file}: network' in lines
    assert 'api = "127.0.0.1:9"  # RECON_NODE_API' in lines
    assert 'log_level = "error"  # --log-level' in lines
    as_json = json_of(*args, RECON_NODE_API="127.0.0.1:9")
    assert as_json["api"] == {"value": "127.0.0.1:9", "source": "RECON_NODE_API"}
    assert set(as_json) == {"network", "api", "log_level", "token", "interests", "chain_rpc"}


def test_secrets_are_not_shown(file: Path) -> None:
    with file.open("a") as more:
        more.write('snapshot_sources = ["https://user:s3cret@host/path"]')
    for options in ([], ["--all"], ["--json"], ["--all", "--json"]):
        printed = run("config", "show", "--config", file, *options).output
        assert "token" in printed
        assert TOKEN not in printed
        assert KEY not in printed
        assert "s3cret" not in printed


def test_what_is_shown_is_a_file_of_settings(tmp_path: Path) -> None:
    shown = run("config", "show", "--all", "--network", "local-3", "--sync-interval", "2.5").stdout
    assert set(tomllib.loads(shown)) == set(DECLARATIONS)
    copy = tmp_path / "copy.toml"
    copy.write_text(shown)
    settings = load_settings(copy)
    assert (settings.network, settings.p2p.sync_interval) == ("local-3", 2.5)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_one_of_a_file(text: str) -> None:
    """An emoji, or the character 0x7f, made it a file that nobody can read."""
    written = toml_value((text, text))
    assert written.isprintable()  # commands would escape it once more
    assert tomllib.loads(f"x = {written}") == {"x": [text, text]}


def test_nothing_is_set() -> None:
    assert run("config", "show").stdout.startswith("# nothing is set")
    assert run("config", "check").stdout == "ok: 0 settings, all others have their defaults\n"


def test_the_defaults_in_the_help_are_values_that_the_flags_take() -> None:
    command = import_command("config", "config").commands["check"]
    args: list[str] = []
    for flag in command.get_params(click.Context(command)):
        if isinstance(flag, click.Option) and (
            default := re.search(r"\[default: (.+)\]$", flag.help)
        ):
            args += [f"--{default[1]}"] if flag.is_flag else [flag.opts[0], default[1]]
    assert "--anchor-interval" in args
    assert run("config", "check", *args).stdout.startswith("ok: ")


def test_checked_settings(file: Path, tmp_path: Path) -> None:
    check = ("config", "check", "--config", file)
    good = run(*check, RECON_NODE_NETWROK="local-1")
    assert good.stdout.startswith("ok: 5 settings")
    assert "RECON_NODE_NETWROK is not a setting" in good.stderr
    secret = tmp_path / "token"
    secret.write_text("another-token-of-sixteen")
    both = error_of(*check, "--token-file", secret, code=2)
    assert "token and token_file are both set" in both
    assert "needs the setting anchor_chain" in error_of(*check, "--anchor", "evm", code=2)
    endpoint = ("--chain-rpc", "eip155:1=http://127.0.0.1:1", "--anchor-chain", "eip155:1")
    assert "needs anchor_key_file" in error_of(*check, "--anchor", "evm", *endpoint, code=2)
    assert "needs development_time" in error_of(*check, "--anchor", "development", code=2)
    assert "swarm.key: No such file" in error_of(*check, "--swarm-key-file", "swarm.key", code=2)
    for name in "SNAPSHOT_URL", "SNAPSHOT_SOURCES":
        error = error_of(*check, code=2, **{f"RECON_NODE_{name}": "nothing://x"})
        assert "cannot use the object store 'nothing://x'" in error
    file.write_text('netwrok = "local-1"\n')
    assert "did you mean 'network'?" in error_of(*check, code=2)


@pytest.mark.parametrize(
    ("program", "line", "completed"),
    [
        (main, "recon-node feed tail --fo", "--follow"),
        (spark_main, "spark-sink run --from", "--from-snapshot"),
    ],
)
def test_bash_completes_commands_and_flags(tmp_path, program, line, completed):
    """The function that bash calls at the Tab key, in a real bash."""
    script, words = tmp_path / "completion", line.split()
    variable = f"_{words[0].replace('-', '_').upper()}_COMPLETE"
    shown = CliRunner().invoke(program, prog_name=words[0], env={variable: "bash_source"})
    script.write_text(shown.stdout)
    asked = f"""
        source {script}
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
        _{words[0].replace("-", "_")}_completion {Path(sys.executable).with_name(words[0])}
        echo "${{COMPREPLY[@]}}"
    """
    bash = ["bash", "-c", asked]
    done = finished(bash, timeout=60)
    assert done.stdout.split() == [completed], done.stderr


@pytest.mark.parametrize("name", ["listen", "bootstrap", "api"])
@pytest.mark.parametrize("text", ["\udcff", "\x1b[31m", "\u202e"])
def test_a_setting_that_does_not_print_is_shown_escaped(name: str, text: str) -> None:
    for words, env in (([f"--{name}", text], {}), ([], {f"RECON_NODE_{name.upper()}": text})):
        error = error_of("config", "check", *words, code=2, **env)
        assert error.startswith("Error: ")
        assert error.rstrip("\n").isprintable()
