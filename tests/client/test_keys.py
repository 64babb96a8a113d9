"""Keys and their files."""

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recon_node.client import Capability, Key, KeyFileError, keys

KINDS: list[Any] = ["ed25519", "secp256k1", "p256"]
OPENSSL = {
    "ed25519": ["genpkey", "-algorithm", "ed25519"],
    "secp256k1": ["ecparam", "-name", "secp256k1", "-genkey", "-noout"],
    "p256": ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
}
STARTS = {"ed25519": "did:key:z6Mk", "secp256k1": "did:key:zQ3s", "p256": "did:key:zDn"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_the_same_after_a_file(kind: Any, tmp_path: Path) -> None:
    key, path = Key.generate(kind), tmp_path / "key"
    assert key.did.startswith(STARTS[kind])
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.load(path).did == key.did
    with pytest.raises(KeyFileError, match="already exists; not overwriting"):
        key.save(path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_openssl(kind: Any) -> None:
    pem = subprocess.run(["openssl", *OPENSSL[kind]], capture_output=True, check=True).stdout
    assert Key.parse(pem).did.startswith(STARTS[kind])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "64 hexadecimal digits"),
        (b"\xff\xfe", "64 hexadecimal digits"),
        (b"00" * 31, "64 hexadecimal digits"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "not a private key"),
        (b"-----BEGIN ", "not a private key"),
    ],
)
def test_what_is_not_a_key(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    with pytest.raises(KeyFileError, match=words):
        Key.load(path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["genpkey", "-algorithm", "x25519"], "does not support"),
        (["ecparam", "-name", "secp384r1", "-genkey", "-noout"], "secp384r1"),
        (["genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:x"], "password"),
    ],
)
def test_keys_that_are_of_no_use(command: list[str], words: str) -> None:
    pem = subprocess.run(["openssl", *command], capture_output=True, check=True).stdout
    with pytest.raises(KeyFileError, match=words):
        Key.parse(pem)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        Key.load(tmp_path / "key")
    with pytest.raises(KeyFileError, match="No such file"):
        Key.generate().save(tmp_path / "nowhere" / "key")


def test_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of `<(pass show key)`; to open one ends when somebody writes to it."""
    pipe, key = tmp_path / "key", Key.generate()
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(pipe.write_bytes, key.to_bytes())
        assert Key.load(pipe).did == key.did
        writing.result()
    monkeypatch.setattr(keys, "_PIPE_PATIENCE", 0.01)
    with ThreadPoolExecutor() as threads, os.fdopen(os.open(pipe, os.O_RDWR), "wb") as writer:
        reading = threads.submit(Key.load, pipe)
        with pytest.raises(TimeoutError):  # a passphrase is typed, which takes longer
            reading.result(0.2)
        writer.write(key.to_bytes())
    for load in (Key.load, Capability.load):
        with pytest.raises(KeyFileError, match="nothing comes from it"):
            load(pipe)


def test_a_key_that_is_typed() -> None:
    code = "from recon_node.client import Key; print(); print(Key.load('/dev/stdin').did)"
    typed, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-uc", code], stdin=terminal, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):  # it waits
            reader.wait(0.2)
        os.write(typed, b"00" * 32 + b"\n\x04")
        assert reader.stdout.read().decode().strip() == Key.from_seed(bytes(32)).did
    os.close(typed)
    os.close(terminal)


def test_a_capability_in_place_of_an_earlier_one(tmp_path, monkeypatch):
    """Whoever was to read the file may read it, and nobody else."""
    monkeypatch.setattr(keys, "verified_capability", lambda block: block)
    file, link = tmp_path / "session.cacao", tmp_path / "link"
    for mode in (0o600, 0o640):
        file.write_text("as it was")
        file.chmod(mode)
        Capability(b"a capability").save(file)
        assert stat.S_IMODE(file.stat().st_mode) == mode
    link.symlink_to(link)
    Capability(b"a capability").save(link)
    assert link.read_bytes() == file.read_bytes()


def test_a_private_key_is_not_shown() -> None:
    key = Key.from_seed(b"\7" * 32)
    assert "7" * 4 not in repr(key)
    assert "private" not in repr(key)
    with pytest.raises(ValueError, match="32 bytes"):
        Key.from_seed(b"")
    unknown: Any = "rsa"
    with pytest.raises(ValueError, match="ed25519, secp256k1 or p256"):
        Key.generate(unknown)
