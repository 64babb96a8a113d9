"""A backup is whole: what is restored from it is the same node, in every key, hash and position."""

import io
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
from base64 import b64decode
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_run import error_of, json_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sdk_sample

from recon_node import backup
from recon_node.backup import DATA_FILES, age
from recon_node.backup.age import DecryptionError, Decryptor, Encryptor
from recon_node.testnet import TestnetNode

DOCS = Path(__file__).parents[2] / "docs"
MODEL = "model=kjzl6hvfrbw6c53juggd4cj7szd2apho8jezy4s8mzn55eeu93gnvrhjpvrj9qy"


@pytest.fixture(autouse=True)
def passphrases_take_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each use of one would take a second."""
    monkeypatch.setattr(backup, "Encryptor", partial(Encryptor, work=4))


def facts_of(node: TestnetNode) -> dict[str, Any]:
    """What readers and peers know of a node."""
    with httpx.Client(base_url=node.api_url) as http:
        recon = http.get("/ceramic/recon").raise_for_status().json()
        feed = http.get("/ceramic/feed/events", params={"resumeAt": 0, "limit": 5000})
        kept = ("peer_id", "events", "head", "epoch", "sha256a", "interests", "network")
        return {name: recon[name] for name in kept} | {"feed": feed.raise_for_status().json()}


def publish(node: TestnetNode, file: Path) -> tuple[str, str]:
    """Publish a file with the node's key; return its root and the did:key."""
    env = {"RECON_NODE_DATA_DIR": str(node.data_dir)}
    root = run("dag", "push", file, node=node, **env).stdout.strip()
    return root, run("dag", "publish", root, node=node, **env).stdout.strip()


class Published:
    """A running node with events, an interest, and a DAG under a did:key."""

    def __init__(self, directory: Path) -> None:
        self.node = TestnetNode("node", directory, ["--network", "local-7", "--no-discovery"])
        self.node.launch()
        self.node.wait_until_ready()
        run("events", "add", sdk_sample.FILE, node=self.node)
        (directory / "plot.svg").write_text("<svg/>")
        _, self.did = publish(self.node, directory / "plot.svg")
        run("interests", "add", MODEL, node=self.node)
        (self.node.data_dir / "swarm.key").write_text("somebody keeps it here")
        (self.node.data_dir / "core").write_bytes(bytes(2_000_000))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    node = Published(tmp_path_factory.mktemp("published"))
    yield node
    node.node.discard()


def backup_of(published: Published, directory: Path, *sealed: object, **more: str) -> Path:
    """Make another backup in a directory, encrypted if an option says so."""
    before = set(directory.glob("*"))
    result = run("backup", directory, "--data-dir", published.node.data_dir, *sealed, **more)
    assert "not in it: core" in result.stderr
    assert ("not encrypted" in result.stderr) is not bool(sealed)
    [made] = set(directory.iterdir()) - before
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert (b"did:key:" in made.read_bytes()) is not bool(sealed)
    return made


def test_the_restored_node_is_the_same_node(published: Published, tmp_path: Path) -> None:
    data_dir = published.node.data_dir
    (tmp_path / "secret").write_text("correct horse\n")
    sealed = ("--passphrase-file", tmp_path / "secret")
    made = backup_of(published, tmp_path / "backups", *sealed)
    restored = tmp_path / "other" / "node"
    run("restore", made, "--data-dir", restored, *sealed)
    kept = {path.name for path in DATA_FILES if path.is_kept} | {"swarm.key"}
    assert {path.name for path in restored.iterdir()} == kept - {"peers.json"} | {"lock"}
    for name in ("identity.key", "dag.key", "swarm.key"):
        assert (restored / name).read_bytes() == (data_dir / name).read_bytes()
        assert stat.S_IMODE((restored / name).stat().st_mode) == 0o600

    before = facts_of(published.node)
    other = TestnetNode("node", tmp_path / "other", ["--network", "local-7", "--no-discovery"])
    other.launch()
    other.wait_until_ready()
    try:
        assert facts_of(other) == before
        (tmp_path / "new.txt").write_text("published after the restore")
        root, did = publish(other, tmp_path / "new.txt")
        assert did == published.did
        assert run("dag", "resolve", did, node=other).stdout.strip() == root
    finally:
        other.discard()


def test_every_file_of_a_data_directory_is_on_the_list(published: Published) -> None:
    """A new file in the data directory has to be put on the list, and so into backups or not."""
    names = {path.name for path in DATA_FILES}
    companions = {f"{name}{suffix}" for name in names for suffix in ("-wal", "-shm")}
    there = {path.name for path in published.node.data_dir.iterdir()}
    assert there - names - companions == {"swarm.key", "core"}
    assert {"identity.key", "dag.key", "events.sqlite3", "dags.sqlite3", "feed.head"} <= there


def test_the_documentation_has_the_list() -> None:
    text = (DOCS / "how-to" / "backup.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (yes|no) \|$", text, re.MULTILINE)
    assert rows == [(path.name, path.holds, "yes" if path.is_kept else "no") for path in DATA_FILES]


def test_a_new_epoch_lets_readers_start_over(published: Published, tmp_path: Path) -> None:
    made = backup_of(published, tmp_path / "b")
    new = tmp_path / "new"
    run("restore", made, "--data-dir", new, "--new-epoch")
    info = json_of("store", "info", "--data-dir", new)
    before = facts_of(published.node)
    assert info["epoch"] != before["epoch"]
    assert (info["events"], info["head"]) == (before["events"], before["head"])


def test_a_directory_is_not_a_backup(tmp_path: Path) -> None:
    refused = error_of("restore", tmp_path, "--data-dir", tmp_path / "new")
    assert refused == f"Error: {tmp_path} is a directory: name one of the backups in it\n"


def test_nothing_is_replaced(published: Published, tmp_path: Path) -> None:
    made = backup_of(published, tmp_path / "b")
    for name in ("identity.key", "swarm.key"):
        there = tmp_path / name
        there.mkdir()
        (there / name).write_text("mine")
        assert f"already has {name}; not" in error_of("restore", made, "--data-dir", there)
        assert {path.name for path in there.iterdir()} == {name, "lock"}
        assert (there / name).read_text() == "mine"
    for suffix in ("-wal", "-journal", ".replacement"):  # of a log that was moved away alone
        (tmp_path / f"events.sqlite3{suffix}").write_bytes(b"mine")
    said = error_of("restore", made, "--data-dir", tmp_path)
    assert "already has events.sqlite3-wal, events.sqlite3-journal, events.sqlite3.rep" in said
    used = error_of("restore", made, "--data-dir", published.node.data_dir)
    assert "in use by process" in used


def test_a_pipe_is_not_a_backup(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "backup.tar")
    refused = error_of("restore", tmp_path / "backup.tar", "--data-dir", tmp_path / "new")
    assert "backup.tar is a pipe" in refused


def test_a_restore_that_was_killed_is_run_again(published, tmp_path, monkeypatch) -> None:
    made, new = backup_of(published, tmp_path / "b"), tmp_path / "new"
    new.mkdir()
    shutil.copy(published.node.data_dir / "identity.key", new)
    run("restore", made, "--data-dir", new)
    monkeypatch.setattr(backup, "_hash", None)  # a log of any size is not read to refuse it
    said = error_of("restore", made, "--data-dir", new)
    assert "already has events.sqlite3;" in said
    assert "if a restore was interrupted here, nothing is missing" in said


@pytest.mark.parametrize("suffix", ["-journal", ".replacement"])
def test_files_that_would_change_the_log_are_refused(published, tmp_path, suffix) -> None:
    with tarfile.open(backup_of(published, tmp_path / "b")) as tar:
        contents = {member.name: tar.extractfile(member).read() for member in tar}
    manifest = json.loads(contents.pop("manifest.json"))
    manifest["files"][f"events.sqlite3{suffix}"] = sha256(b"x").hexdigest()
    with tarfile.open(tmp_path / "crafted.tar", "w") as tar:
        first = {"manifest.json": json.dumps(manifest).encode(), f"events.sqlite3{suffix}": b"x"}
        for name, content in (first | contents).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    refused = error_of("restore", tmp_path / "crafted.tar", "--data-dir", tmp_path / "new")
    assert f"it has events.sqlite3{suffix}, which no backup has" in refused
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


def test_a_disk_without_room_is_named(published: Published, tmp_path, monkeypatch) -> None:
    made, new = backup_of(published, tmp_path / "b"), tmp_path / "new"
    monkeypatch.setattr("recon_node.backup.room_at", lambda directory: 4000)
    for source in (made, published.node.data_dir / "events.sqlite3"):
        said = error_of("restore", source, "--data-dir", new)
        assert f"there is no room for events.sqlite3 in {new}: " in said


def test_a_backup_that_cannot_be_written_says_where(published: Published, tmp_path: Path) -> None:
    with tarfile.open(backup_of(published, tmp_path / "b")) as tar:
        size = tar.getmember("events.sqlite3").size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1, limits[1]))  # the copy of the log fits
    try:
        said = error_of("backup", tmp_path / "b", "--data-dir", published.node.data_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search(r"/backup-\w+\.tar cannot be used: File too large", said)


def test_what_is_wrong_with_a_backup_is_said(published: Published, tmp_path: Path) -> None:
    plain = backup_of(published, tmp_path / "b")
    sealed = backup_of(published, tmp_path / "b", "--encrypt", data="pass\npass\n")
    whole = plain.read_bytes()
    with tarfile.open(plain) as tar:
        names = tar.getnames()
    assert names[0] == "manifest.json"
    assert names[-1] == "events.sqlite3"
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    (tmp_path / "damaged.tar").write_bytes(damaged)
    (tmp_path / "short.tar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "short.tar.age").write_bytes(sealed.read_bytes()[:-20])
    (tmp_path / "text").write_text("not a backup")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        content = b"{}"
        for name in ("manifest.json", "../outside"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (tmp_path / "crafted.tar").write_bytes(archive.getvalue())
    for path, stdin, message in (
        (tmp_path / "damaged.tar", None, "damaged: events.sqlite3"),
        (tmp_path / "short.tar", None, "damaged"),
        (tmp_path / "text", None, "not a backup"),
        (tmp_path / "crafted.tar", None, "manifest is damaged"),
        (sealed, "wrong\n", "passphrase is wrong"),
        (tmp_path / "short.tar.age", "pass\n", "it is damaged, or was cut off"),
        (tmp_path / "none", None, "No such file"),
    ):
        new = tmp_path / "new"
        assert message in run("restore", path, "--data-dir", new, data=stdin, code=1).stderr
        assert [path.name for path in new.iterdir()] == ["lock"]
        shutil.rmtree(new)


def test_without_a_terminal_a_passphrase_comes_from_a_file(tmp_path: Path) -> None:
    """The command has a session of its own, and so no terminal to ask."""
    command = [sys.executable, "-m", "recon_node", "backup", tmp_path / "b", "--encrypt"]
    made = subprocess.run(
        [*command, "--data-dir", tmp_path],
        input="pass\npass\n",
        check=False,
        text=True,
        capture_output=True,
        start_new_session=True,
    )
    expected = "no terminal to ask for the passphrase: give it with --passphrase-file"
    assert (made.returncode, made.stdout) == (1, "")
    assert made.stderr == f"Error: there is {expected}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9\n", "is not text in UTF-8"),
        (b"\n", "is empty"),
        (b"x" * 70_000, "it has more than 65536 bytes"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_wrong_with_a_passphrase_is_said(content, message, tmp_path):
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    error = error_of("backup", tmp_path / "new", "--passphrase-file", secret)
    assert error.startswith(f"Error: the passphrase in {secret} ")
    assert error.endswith(f"{message}\n")


@pytest.mark.parametrize(
    "command", ["backup", "restore", "snapshot create", "snapshot list", "snapshot verify"]
)
def test_what_is_not_a_url_is_said(command: str, tmp_path: Path) -> None:
    words = [*command.split(), "http://[::1/x"]
    data_dir = (
        ["--data-dir", tmp_path] if command not in ("snapshot list", "snapshot verify") else []
    )
    error = error_of(*words, *data_dir)
    assert error == "Error: 'http://[::1/x' is not a URL: Invalid IPv6 URL\n"
    if command != "restore":  # as of a variable that is not set; not the working directory
        error = error_of(*command.split(), "", *data_dir)
        assert error == "Error: the name of the directory or store is empty\n"


def test_a_directory_that_is_not_there_is_not_backed_up(tmp_path: Path) -> None:
    error = error_of("backup", tmp_path / "b", "--data-dir", tmp_path / "gone")
    assert f"the data directory {tmp_path / 'gone'} does not exist; see --data-dir" in error


BY_AGE = b64decode(
    "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCByRjAvTndibFVISFRwZ1FnUnBlNUNRIDEwCmdVakV5bUZL"
    "TVZYUUVLZE1NSEwyNG9ZZXhqRTNUSUMwTzB6R1NxSjJhVVkKLS0tIElPWGlRWVN0a29UMW12WlcydEZPcVpkaFJW"
    "dmo1OGVnQUJ4L3NXZlpRYmMKGzXG5ofdANo6w3msn3QsIf0YWhuePe1znRSsappQEk24Ztg="
)
"""The vector "scrypt" of age's test kit (C2SP/CCTV): 'age', with little work."""


def test_what_age_has_written_is_read() -> None:
    assert Decryptor(io.BytesIO(BY_AGE), "password").read(100) == b"age"


def test_only_as_much_work_is_done_as_age_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(age, "_wrap_key", lambda _, salt, work: done.append(work) or bytes(32))
    for work in (b"0", b"20", b"21"):
        with pytest.raises(DecryptionError):
            Decryptor(io.BytesIO(BY_AGE.replace(b" 10\n", b" %s\n" % work)), "password")
    assert done == [20]


@given(
    size=st.sampled_from([0, 1, 65535, 65536, 65537, 131072, 200_000]),
    step=st.integers(1, 100_000),
    flip=st.floats(0, 1, exclude_max=True),
    cut=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=15)
def test_no_byte_can_be_changed_or_cut_off(size: int, step: int, flip: float, cut: float) -> None:
    content = sha256(b"content").digest() * (size // 32) + b"." * (size % 32)
    sealed = io.BytesIO()
    encryptor = Encryptor(sealed, "pass", work=4)
    for at in range(0, size, step):
        encryptor.write(content[at : at + step])
    encryptor.close()
    whole = sealed.getvalue()

    def read(data: bytes) -> bytes:
        decryptor = Decryptor(io.BytesIO(data), "pass")
        parts = list(iter(lambda: decryptor.read(step), b""))
        return b"".join(parts)

    assert read(whole) == content
    changed = bytearray(whole)
    changed[int(flip * len(whole))] ^= 1
    for wrong in (bytes(changed), whole[: int(cut * len(whole))], whole + b"."):
        with pytest.raises(DecryptionError):
            read(wrong)
