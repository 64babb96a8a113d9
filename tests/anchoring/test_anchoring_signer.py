"""The key that pays: where it may come from, and what is said where it cannot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from eth_account import Account
from simulated_chain import ADDRESS, KEY

from recon_node.anchoring.authority import AuthorityError
from recon_node.anchoring.signer import create_key, load_signer
from recon_node.cli import main


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eth_account", None)
    with pytest.raises(AuthorityError, match=r"pip install 'recon-node\[anchor\]'"):
        load_signer(tmp_path / "key", None)


def test_keys_come_from_private_files_only(tmp_path: Path) -> None:
    plain, keystore, password = (tmp_path / name for name in ("plain", "keystore", "password"))
    create_key(plain)
    plain.chmod(0o644)
    with pytest.raises(AuthorityError, match=r"other users can read anchor_key_file .*chmod 600"):
        load_signer(plain, None)
    encrypted = Account.encrypt(KEY, "secret", kdf="pbkdf2", iterations=1000)
    for path, text in {keystore: json.dumps(encrypted), password: "secret\n"}.items():
        path.write_text(text)
        path.chmod(0o600)
    assert load_signer(keystore, password).address == ADDRESS
    with pytest.raises(AuthorityError, match="set anchor_password_file"):
        load_signer(keystore, None)
    password.write_text("wrong")
    with pytest.raises(AuthorityError, match="does not open the keystore"):
        load_signer(keystore, password)
    with pytest.raises(AuthorityError, match="cannot read anchor_key_file"):
        load_signer(tmp_path / "missing", None)
    plain.write_text("ab" * 31)
    plain.chmod(0o600)
    with pytest.raises(AuthorityError, match="neither a key of 64") as caught:
        load_signer(plain, None)
    assert "abab" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "0x"])
def test_a_key_in_place_of_its_file_is_not_shown(tmp_path, monkeypatch, prefix) -> None:
    """The node said that it cannot read a file of that name."""
    monkeypatch.setenv("RECON_NODE_ANCHOR_KEY_FILE", prefix + "ab" * 32)
    for command in (["run"], ["config", "show"], ["config", "check"]):
        result = CliRunner().invoke(main, [*command, "--data-dir", str(tmp_path)])
        assert result.exit_code != 0
        assert "this is a key, not a file" in result.stderr
        assert "abab" not in result.output


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("mine")
    with pytest.raises(AuthorityError, match="already exists; not overwriting"):
        create_key(path)
    assert path.read_text() == "mine"


def test_recursion_stays_bounded(tmp_path: Path) -> None:
    """Or JSON that nests deeply, and comes from anybody, would end a node that anchors."""
    create_key(tmp_path / "key")
    program = (
        "import sys; from pathlib import Path; "
        "from recon_node.anchoring.signer import load_signer; "
        "load_signer(Path(sys.argv[1]), None); print(sys.getrecursionlimit())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "key")]
    assert int(subprocess.check_output(command)) == 1000
