"""Back up a node whole, and restore it: its log, its keys, its peers, in one file.

`DATA_FILES` says of every file in a data directory what it holds, and whether it can be made
again. What cannot is in a backup; so are other small files that somebody keeps in the directory,
such as settings, a token or a swarm key. A backup is a tar file with a manifest in front, encrypted
if there is a passphrase (`recon_node.backup.age`). The manifest has the hash of each file.

A restore writes to a directory of its own within the data directory, checks everything, and only
then gives the files their names, the log as the last: until that is there, a restore that was
killed is simply run again.
"""

import io
import json
import os
import shutil
import stat
import tarfile
import time
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self, cast

from recon_node.anchoring.journal import FILE_NAME as ANCHORS
from recon_node.backup.age import MAGIC, DecryptionError, Decryptor, Encryptor
from recon_node.base.errors import reason_of
from recon_node.base.files import (
    SQLITE_HEAD,
    move_into_place,
    private_directory,
    read_small,
    room_at,
    scratch_folder,
    sync_directory,
)
from recon_node.dag.dag_index import FILE as DAGS
from recon_node.dag.dag_index import KEY_FILE as DAG_KEY_FILE
from recon_node.p2p.network_side import PEERS_FILE
from recon_node.p2p.transport.identity import IDENTITY_FILE, open_identity, peer_id_of
from recon_node.store.db.log import HEAD_FILE
from recon_node.store.db.log_schema import FILE_NAME as LOG_FILE
from recon_node.store.db.saved_keys import FILE_NAMES as SAVED_KEYS
from recon_node.store.db.saved_keys import SUMS_FILE
from recon_node.store.db.sql import explained_errors
from recon_node.store.directory_lock import LOCK_FILE, directory_lock
from recon_node.store.maintenance import BackedUp, Progress, backup_log, begin_epoch, check_copy
from recon_node.store.maintenance.closed_log import SQLITE_SUFFIXES
from recon_node.store.reading.block_index import FILE_NAME as BLOCKS_FILE
from recon_node.tangles.index import FILE as TANGLES


class DataDirectoryFile(NamedTuple):
    """A file of a data directory."""

    name: str
    holds: str
    is_kept: bool
    """Whether it is in a backup. The others are made again."""


_KEPT: Final = {
    IDENTITY_FILE: "the node's private key, and with it its peer id",
    DAG_KEY_FILE: "the private key of `recon-node dag`: the did:key that DAGs are published under",
    LOG_FILE: "the log: events, the feed's positions and its epoch, interests, results of chain "
    "lookups",
    PEERS_FILE: "the peers that the node knows",
}
_MADE_AGAIN: Final = {
    BLOCKS_FILE: "where the log has each block",
    DAGS.name: "the DAGs in the log",
    TANGLES.name: "the tangles in the log",
    ANCHORS: "what is to be anchored, and the transactions that are under way",
    "snapshot-sync.sqlite3": "of earlier versions; it may be deleted",
    **dict.fromkeys(SAVED_KEYS.values(), "keys of the log, for a fast start"),
    SUMS_FILE: "sums of the log's keys, for fast first sessions",
    HEAD_FILE: "the feed position that readers have seen last",
    LOCK_FILE: "which process uses the directory",
}
DATA_FILES: Final = (
    *(DataDirectoryFile(name, holds, True) for name, holds in _KEPT.items()),
    *(DataDirectoryFile(name, holds, False) for name, holds in _MADE_AGAIN.items()),
)
"""What a node keeps in its data directory."""
_OF_A_LOG: Final = (*SQLITE_SUFFIXES, ".replacement")
_NEVER: Final = {entry.name + suffix for entry in DATA_FILES for suffix in _OF_A_LOG} - _KEPT.keys()
"""Files that no backup has. Some of them would change the log after it was checked."""

_MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_MAX_OTHER: Final = 1024 * 1024
"""Bytes of a file that is not a node's own, and yet is in a backup."""
_MAX_SMALL: Final = 64 * 1024 * 1024
"""Bytes of any file but the log; a link may lead to a device."""
_MAX_MANIFEST: Final = 1024 * 1024
_MAX_ATTRIBUTES: Final = 4096
"""Bytes of the attributes of a file in an archive."""
_COPY: Final = 1024 * 1024
_DRAFT: Final = ".part"
_PRIVATE: Final = 0o600


class BackupError(Exception):
    """A backup that cannot be made or restored; the message says why."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What is in a backup."""

    files: dict[str, str]
    """The sha2-256 of each file, as hexadecimal text."""
    events: int
    head: int
    """The last feed position."""
    epoch: str
    peer_id: str | None
    made_at: str
    format: int = _FORMAT


def read_passphrase(path: Path) -> str:
    """Return the first line of a small file.

    Raises:
        BackupError: the file cannot be read, or the line is empty or not text in UTF-8.
    """
    try:
        first = read_small(path).partition(b"\n")[0].strip(b"\r").decode()
    except OSError as error:
        reason = reason_of(error)
        raise BackupError(f"the passphrase in {path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise BackupError(f"the passphrase in {path} is not text in UTF-8") from None
    if not first:
        raise BackupError(f"the passphrase in {path} is empty")
    return first


def write_backup(
    data_dir: Path, target: Path, passphrase: str | None, progress: Progress
) -> tuple[Backup, list[str]]:
    """Write a backup of a node, running or stopped, to a new file.

    The log is copied to the directory of the target first, which needs room for it twice.

    Returns:
        What is in it, and the files of the data directory that are neither in it nor made again.

    Raises:
        BackupError: there is no such directory.
        StoreError: there is no log, or it is damaged or cannot be read.
        P2PError: the identity cannot be used.
        OSError: a file cannot be read or written.
    """
    if not data_dir.is_dir():
        raise BackupError(f"the data directory {data_dir} does not exist; see --data-dir")
    small, left_out = _small_files(data_dir)
    copy = target.with_name(f"{target.name}.log")
    log = backup_log(data_dir, copy, progress)
    backup = _described(data_dir, small, copy, log)
    progress("writing the backup", 0, None)
    with explained_errors(target), target.open("xb") as file:
        encryptor = None if passphrase is None else Encryptor(file, passphrase)
        sink = cast(IO[bytes], file if encryptor is None else encryptor)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            manifest = json.dumps(asdict(backup), indent=1).encode()
            _add(archive, _MANIFEST, io.BytesIO(manifest), len(manifest))
            for name, content in small.items():
                _add(archive, name, io.BytesIO(content), len(content))
            with copy.open("rb") as log_file:
                _add(archive, LOG_FILE, log_file, log.size)
        if encryptor is not None:
            encryptor.close()
    copy.unlink()
    return backup, left_out


def _small_files(data_dir: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the content of all files to back up but the log, and the names of the others."""
    small: dict[str, bytes] = {}
    left_out: list[str] = []
    for path in sorted(data_dir.iterdir()):
        name, status = path.name, path.lstat()
        if name == LOG_FILE or name.endswith(_DRAFT) or name in _NEVER:
            continue
        if name in _KEPT or (stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_OTHER):
            small[name] = read_small(path, _MAX_SMALL)
        else:
            left_out.append(name)
    return small, left_out


def _described(data_dir: Path, small: dict[str, bytes], copy: Path, log: BackedUp) -> Backup:
    files = {name: sha256(content).hexdigest() for name, content in small.items()}
    peer_id = peer_id_of(open_identity(data_dir)) if IDENTITY_FILE in small else None
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Backup(files | {LOG_FILE: _hash(copy)}, log.events, log.head, log.epoch, peer_id, now)


def restore_backup(
    source: Path, data_dir: Path, passphrase: str | None, progress: Progress, *, new_epoch: bool
) -> Backup:
    """Put the files of a backup, or a copy of a log, into a data directory that has none of them.

    `source` is a file of `write_backup`, or of `backup_log`. With a new epoch of the feed, its
    readers start over.

    Raises:
        BackupError: it is not a backup, is damaged, or needs another passphrase; or the directory
            has files that it would replace.
        StoreError: a node uses the directory, or the log is damaged.
        OSError: a file cannot be read or written.
    """
    private_directory(data_dir)
    with directory_lock(data_dir), scratch_folder(data_dir) as folder, source.open("rb") as file:
        # A write-ahead log beside another log than its own would be applied to it.
        _refuse_replacing(data_dir, {LOG_FILE + suffix: "" for suffix in _OF_A_LOG})
        progress("reading the backup", 0, None)
        backup = _unpack(file, folder, passphrase)
        _refuse_replacing(data_dir, backup.files)
        _check(backup, folder, progress)
        if new_epoch:
            begin_epoch(folder / LOG_FILE)
        for name in sorted(backup.files, key=lambda name: name == LOG_FILE):
            move_into_place(folder / name, data_dir / name)
    sync_directory(data_dir)
    return backup


def _refuse_replacing(data_dir: Path, files: dict[str, str]) -> None:
    """Refuse to replace files, but those that a restore of this backup has put there before it was
    killed: what is there has the same hash. (None has the hash "", so none is read for it.)"""
    paths = [data_dir / name for name in files if os.path.lexists(data_dir / name)]
    there = [
        path.name
        for path in paths
        if not (path.is_file() and files[path.name] and _hash(path) == files[path.name])
    ]
    if there:
        is_complete = "; if a restore was interrupted here, nothing is missing: the log comes last"
        raise BackupError(
            f"{data_dir} already has {', '.join(there)}; not overwriting: name an empty directory "
            f"with --data-dir, or move its files away{is_complete if LOG_FILE in there else ''}"
        )


def _unpack(file: IO[bytes], folder: Path, passphrase: str | None) -> Backup:
    """Write the files of a backup to a directory, and check them against the manifest."""
    start = file.read(len(MAGIC))
    file.seek(0)
    if start.startswith(SQLITE_HEAD):
        return _copied_log(file, folder)
    if start == MAGIC and passphrase is None:
        raise BackupError("it is encrypted: a passphrase is needed (--passphrase-file)")
    try:
        stream = Decryptor(cast(Any, file), passphrase or "") if start == MAGIC else file
        source = cast(IO[bytes], stream)
        with tarfile.open(fileobj=source, mode="r|", tarinfo=_PlainFile) as archive:
            manifest = _read_manifest(archive)
            hashes: dict[str, str] = {}
            for member in iter(archive.next, None):
                if member is None or member.name not in manifest.files or member.name in hashes:
                    raise BackupError("it has files that its manifest does not name")
                hashes[member.name] = _extract(archive, member, folder)
        while stream.read(_COPY):  # the end proves that nothing is cut off
            pass
    except DecryptionError as error:
        raise BackupError(str(error)) from None
    except (tarfile.TarError, EOFError):
        raise BackupError("the file is not a backup of a node, or is damaged") from None
    if hashes != manifest.files:
        names = sorted(name for name, _ in hashes.items() ^ manifest.files.items())
        raise BackupError(f"it is damaged: {', '.join(dict.fromkeys(names))}")
    return manifest


class _PlainFile(tarfile.TarInfo):
    """A member that is an ordinary file. What precedes others, such as long names and attributes,
    tarfile would read as a whole, and of sparse ones it would write the holes."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # A file of 8 GiB and more has attributes.
        has_attributes = self.type == tarfile.XHDTYPE and self.size <= _MAX_ATTRIBUTES
        if not has_attributes and self.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise tarfile.HeaderError("not an ordinary file")
        return cast(Self, super()._proc_member(archive))  # type: ignore[misc]


def _read_manifest(archive: tarfile.TarFile) -> Backup:
    first = archive.next()
    if first is None or first.name != _MANIFEST or first.size > _MAX_MANIFEST:
        raise BackupError("the file is not a backup of a node: it has no manifest")
    try:
        fields = json.load(cast(IO[bytes], archive.extractfile(first)))
        if fields["format"] > _FORMAT:
            raise BackupError("a later version of recon-node made it: use that version")
        if not isinstance(fields.get("files"), dict):
            raise TypeError
        return Backup(**fields)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise BackupError("its manifest is damaged") from None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Write a file of an archive, and return its hash."""
    content = None if member.issparse() else archive.extractfile(member)
    if content is None or member.name in ("", ".", "..") or "/" in member.name:
        raise BackupError(f"the file is not a backup of a node: it has {member.name!r}")
    return _copy(content, folder / member.name, member.size)


def _copy(content: IO[bytes], path: Path, size: int) -> str:
    if size > room_at(path.parent):
        disk = path.parent.parent
        raise BackupError(f"there is no room for {path.name} in {disk}: {size:,} bytes")
    with path.open("xb") as target:
        path.chmod(_PRIVATE)
        shutil.copyfileobj(content, target, _COPY)
    return _hash(path)


def _copied_log(file: IO[bytes], folder: Path) -> Backup:
    path = folder / LOG_FILE
    digest = _copy(file, path, file.seek(0, os.SEEK_END) - file.seek(0))
    log = check_copy(path)
    return Backup({LOG_FILE: digest}, log.events, log.head, log.epoch, None, "")


def _check(backup: Backup, folder: Path, progress: Progress) -> None:
    """Check that what a backup has can be used, and is what its manifest says."""
    if LOG_FILE not in backup.files:
        raise BackupError("it has no event log")
    if strange := backup.files.keys() & _NEVER:
        raise BackupError(f"it has {', '.join(sorted(strange))}, which no backup has")
    log = check_copy(folder / LOG_FILE, progress)
    if (log.events, log.head, log.epoch) != (backup.events, backup.head, backup.epoch):
        raise BackupError(f"{LOG_FILE} in it is not the log that its manifest describes")
    if backup.peer_id is not None and peer_id_of(open_identity(folder)) != backup.peer_id:
        raise BackupError(f"{IDENTITY_FILE} in it is not the key of {backup.peer_id}")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)  # which says nothing of this machine
    member.size, member.mode, member.mtime = size, _PRIVATE, int(time.time())
    archive.addfile(member, content)
