"""Files that are locked, or replaced in one step: `recon_node.base.files`."""

import errno
import os
import stat
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.waiting import finished

from recon_node.base import files
from recon_node.base.files import (
    create_file,
    draft_of,
    is_exposed,
    move_into_place,
    open_locked,
    private_directory,
    read_small,
    temporary_folder,
)
from recon_node.store import StoreError
from recon_node.store.directory_lock import directory_lock


def test_the_content_of_a_locked_file_can_be_read_by_those_who_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("the holder")
    with open_locked(path):
        with pytest.raises(BlockingIOError):
            open_locked(path)
        assert path.read_text() == "the holder"
    open_locked(path).close()


def test_a_file_that_was_moved_before_it_was_locked_is_not_taken(tmp_path, monkeypatch):
    """Its holder finished between our open and our lock: the file is no longer a draft."""
    path = tmp_path / "draft"
    flock = files.fcntl.flock

    def late(file: object, operation: int) -> None:
        monkeypatch.setattr(files.fcntl, "flock", flock)
        path.rename(tmp_path / "finished")
        flock(file, operation)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with open_locked(path) as file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())


KILLED = """
import os, signal
from recon_node.base.files import temporary_folder
with temporary_folder() as folder:
    (folder / "keys").write_text("secret")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_temporary_folder_deletes_what_a_killed_process_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = finished([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)})
    left = Path(killed.stdout.strip())
    assert (left / "keys").exists()
    with temporary_folder() as used, temporary_folder() as other:
        assert set(tmp_path.iterdir()) == {used, other}
        assert used.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_draft_replaces_a_file_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("old")
    with draft_of(path, mode=0o600) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        move_into_place(draft, path)
        assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_draft_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("old")

    def break_off() -> None:
        with draft_of(path) as draft:
            draft.write_text("half")
            raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        break_off()
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.with_name(".data.part").write_text("half of an earlier one")
    with draft_of(path) as draft:
        assert draft.read_bytes() == b""


def test_a_draft_has_one_writer_at_a_time_and_another_can_wait(tmp_path: Path) -> None:
    path = tmp_path / "data"

    def write_second() -> None:
        with draft_of(path, wait=True) as draft:
            draft.write_text(path.read_text() + " and second")
            move_into_place(draft, path)

    second = threading.Thread(target=write_second)
    with draft_of(path) as draft:
        draft.write_text("first")
        with pytest.raises(BlockingIOError), draft_of(path):
            pass
        second.start()
        move_into_place(draft, path)
    second.join()
    assert path.read_text() == "first and second"


def test_the_draft_of_the_next_writer_is_not_deleted(tmp_path: Path) -> None:
    """Once a draft was moved, its name is free for others."""
    path = tmp_path / "data"
    with draft_of(path) as draft:
        move_into_place(draft, path)
        draft.write_text("of the next writer")
    assert draft.read_text() == "of the next writer"


@pytest.mark.parametrize(("number", "is_kept"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_directory_that_cannot_be_synced(tmp_path, monkeypatch, number, is_kept):
    """A file system without the sync of directories is used; a disk that fails is reported."""
    real_sync = os.fsync

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    path = tmp_path / "data"
    outcome = nullcontext() if is_kept else pytest.raises(OSError, match="Input/output")
    with outcome, draft_of(path) as draft:
        draft.write_text("whole")
        move_into_place(draft, path)
    assert path.read_text() == "whole"


def test_a_directory_is_made_private_with_its_files(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    assert private_directory(data_dir) == []
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    data_dir.chmod(0o755)
    secret, target = data_dir / "events", tmp_path / "target"
    for path in (secret, target):
        path.write_text("x")
        path.chmod(0o644)
    (data_dir / "link").symlink_to(target)
    (data_dir / "nowhere").symlink_to("n" * 300)
    assert set(private_directory(data_dir)) == {data_dir, secret}
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert is_exposed(target)
    assert not is_exposed(secret)


def test_a_temporary_folder_that_is_being_made_is_not_deleted(tmp_path, monkeypatch):
    """Two backups may begin at the same moment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder() as other:
        new = tmp_path / f"{other.name}-2"
    new.mkdir()
    (new / ".lock").touch()  # which is locked next
    with temporary_folder():
        assert new.exists()


def test_a_secret_of_root_may_be_read_by_its_group(tmp_path: Path, monkeypatch) -> None:
    """As those that systemd and Kubernetes give to a process of another user."""
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(0o440)
    assert is_exposed(secret)
    monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
    assert not is_exposed(secret)
    secret.chmod(0o444)
    assert is_exposed(secret)


@pytest.mark.parametrize("use", ["a directory of its own", "files of all users"])
def test_a_directory_with_other_uses_is_not_closed_to_others(tmp_path: Path, use: str) -> None:
    """As `/` and `/tmp`, which somebody has named by mistake."""
    shared, kept = tmp_path / "shared", tmp_path / "shared" / "kept"
    shared.mkdir()
    kept.write_text("")
    if use == "files of all users":
        shared.chmod(0o1777)
    else:
        (shared / "etc").mkdir()
    before = {path: path.stat().st_mode for path in (shared, *shared.iterdir())}
    assert private_directory(shared) == []
    assert {path: path.stat().st_mode for path in before} == before


@pytest.mark.parametrize("name", ["lost+found", ".recon-node.part"])
def test_a_directory_of_the_disk_or_for_drafts_is_not_another_use(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    assert tmp_path in private_directory(tmp_path)


def test_a_file_that_disappears_meanwhile_is_not_an_error(tmp_path: Path, monkeypatch) -> None:
    """A running node replaces files in its directory while another one tries to start in it."""
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    kept.write_text("")
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([gone, kept]))
    kept.chmod(0o644)
    tmp_path.chmod(0o700)
    assert private_directory(tmp_path) == [kept]


def test_a_new_file_has_its_name_after_a_power_cut(tmp_path: Path, monkeypatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    create_file(tmp_path / "key", b"secret")
    assert synced == [tmp_path]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for place, reason in (tmp_path, "Is a directory"), (Path("/dev/zero"), "more than 9 bytes"):
        with pytest.raises(OSError, match=reason) as caught:
            read_small(place, 9)
        assert caught.value.filename == str(place)


def test_a_lock_that_is_not_a_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(StoreError, match="cannot be locked: File"), directory_lock(tmp_path):
        pass


def test_links_are_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("precious")
    (tmp_path / ".file.part").symlink_to(target)
    with draft_of(path) as draft:
        draft.write_text("new")
        move_into_place(draft, path)
    assert (path.read_text(), target.read_text()) == ("new", "precious")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        open_locked(tmp_path / "lock")
    with (
        pytest.raises(StoreError, match="'lock' is a symbolic link: remove it"),
        directory_lock(tmp_path),
    ):
        pass
    assert target.read_text() == "precious"
