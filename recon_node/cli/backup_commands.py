"""`recon-node backup` and `recon-node restore`: a node whole, with its keys."""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from getpass import GetPassWarning
from pathlib import Path

import click

from recon_node.backup import Backup, BackupError, read_passphrase, restore_backup, write_backup
from recon_node.base.files import temporary_folder
from recon_node.base.program import cleaned_up_when_stopped
from recon_node.base.terminal import (
    FILE,
    CommandError,
    counted,
    echo,
    human_size,
    json_option,
    one_line,
    print_result,
)
from recon_node.cli.command import step_bar
from recon_node.cli.config import DataDirCommand
from recon_node.cli.snapshot import ERRORS
from recon_node.settings import Settings
from recon_node.snapshot.objects import FILE_TIMEOUT, Objects, scheme_of

_errors = partial(one_line, BackupError, *ERRORS)

passphrase_option = click.option(
    "--passphrase-file",
    type=FILE,
    metavar="FILE",
    envvar="RECON_NODE_BACKUP_PASSPHRASE_FILE",
    help="The passphrase is the first line of FILE.",
)


@click.command("backup", cls=DataDirCommand)
@click.argument("url", metavar="URL")
@passphrase_option
@click.option("--encrypt", is_flag=True, help="Ask for a passphrase.")
@json_option
def backup(
    url: str, settings: Settings, passphrase_file: Path | None, encrypt: bool, as_json: bool
) -> None:
    """Back up a node, running or not, to a directory or an object store.

    The backup has everything in the data directory that cannot be made again: the log as it is at
    one moment, with its feed positions, epoch and interests; the node's identity; the key that DAGs
    are published with; the known peers; and other small files that are kept there, such as
    settings. It is one file, backup-TIME.tar, and `recon-node restore` restores it.

    The keys in it make anybody who reads it this node. With a passphrase, it is encrypted, as
    backup-TIME.tar.age: without it, nobody can read the backup, and `age -d` decrypts it, too.

    URL is a directory, s3://bucket/path or another store (see `recon-node snapshot --help`). The
    backup is made in the directory for temporary files first (TMPDIR), which needs room for the log
    twice, and locks (flock). The next backup deletes what a killed one has left there.

    \b
    Examples:
      recon-node backup /backup --encrypt
      recon-node backup s3://bucket/backups --passphrase-file /etc/recon-node/passphrase
    """
    with _errors(), cleaned_up_when_stopped():
        passphrase = _passphrase(passphrase_file, ask=encrypt, confirm=True)
        objects = Objects.open(url, make=True)
        suffix = "tar" if passphrase is None else "tar.age"
        name = time.strftime(f"backup-%Y%m%dT%H%M%SZ.{suffix}", time.gmtime())
        before = os.umask(0o077)  # a copy in a directory is for its owner alone
        try:
            with temporary_folder() as folder, step_bar() as progress:
                made = folder / name
                written, left_out = write_backup(settings.data_dir, made, passphrase, progress)
                progress("sending", 0, None)
                objects.put(name, made)
                size = made.stat().st_size
        finally:
            os.umask(before)
    left_out += _secrets_elsewhere(settings)
    url = objects.url
    result = {"name": name, "url": url, "bytes": size, "left_out": left_out, **asdict(written)}
    text = f"{name} in {url}: {_described(written)}, {human_size(size)}"
    print_result(result, text, as_json=as_json)
    if left_out:
        echo(f"not in it: {', '.join(left_out)}", err=True)
    if passphrase is None:
        echo("it holds private keys and is not encrypted: keep it as safe as they are", err=True)


@click.command("restore", cls=DataDirCommand)
@click.argument("source", metavar="SOURCE")
@passphrase_option
@click.option("--new-epoch", is_flag=True, help="Let readers of the feed start over.")
@json_option
def restore(
    source: str, settings: Settings, passphrase_file: Path | None, new_epoch: bool, as_json: bool
) -> None:
    """Restore a node from SOURCE into a data directory that is empty.

    SOURCE is a file that `recon-node backup` has made: a path, or the URL of one in an object
    store. Everything is checked before anything is put into its place, and no file is replaced.

    Readers of the feed go on where they were. If a reader may have read further than the backup
    goes, use --new-epoch: the restored node gives the positions after it to other events, and such
    a reader would mistake them for those that it knows.

    Never run the old node and the restored one at the same time: they have one identity.

    \b
    Examples:
      recon-node restore /backup/backup-20260101T000000Z.tar --data-dir /var/lib/recon-node
      recon-node restore s3://bucket/backups/backup-20260101T000000Z.tar.age
    """
    directory = settings.data_dir
    with _errors(), cleaned_up_when_stopped(), step_bar() as progress, _local(source) as path:
        passphrase = _passphrase(passphrase_file, ask=path.name.endswith(".age"), confirm=False)
        restored = restore_backup(path, directory, passphrase, progress, new_epoch=new_epoch)
    result = {"data_dir": str(directory), "new_epoch": new_epoch, **asdict(restored)}
    text = f"{directory}: {_described(restored)}; restored {', '.join(sorted(restored.files))}"
    print_result(result, text, as_json=as_json)
    if not new_epoch:
        echo(
            f"readers of the feed go on; if one has read further than position {restored.head:,}, "
            "restore with --new-epoch instead",
            err=True,
        )


@contextmanager
def _local(source: str) -> Iterator[Path]:
    """Yield the path of a backup, which is fetched first if it is in an object store."""
    if scheme_of(source) in ("", "file"):
        path = Path(source.removeprefix("file://")).expanduser()
        if path.is_fifo():  # a backup is read more than once
            raise CommandError(f"{path} is a pipe: write the backup to a file first")
        if path.is_dir():
            raise CommandError(f"{path} is a directory: name one of the backups in it")
        yield path
        return
    url, _, name = source.rpartition("/")
    with temporary_folder() as folder:
        path = folder / name
        Objects.open(url, total_timeout=FILE_TIMEOUT).fetch(name, path)
        yield path


def _passphrase(file: Path | None, *, ask: bool, confirm: bool) -> str | None:
    if file is not None:
        return read_passphrase(file)
    if not ask:
        return None
    try:
        with warnings.catch_warnings(action="error", category=GetPassWarning):
            asked = click.prompt(
                "Passphrase", hide_input=True, confirmation_prompt=confirm, err=True
            )
    except GetPassWarning:
        raise CommandError(
            "there is no terminal to ask for the passphrase: give it with --passphrase-file"
        ) from None
    return str(asked)


def _secrets_elsewhere(settings: Settings) -> list[str]:
    """Return the files with secrets that the settings name outside of the data directory."""
    p2p, api, anchor = settings.p2p, settings.api, settings.anchor
    named = (p2p.swarm_key_file, api.token_file, anchor.key_file, anchor.password_file)
    paths = [file.expanduser().absolute() for file in named if file is not None]
    return [str(path) for path in paths if path.parent != settings.data_dir.absolute()]


def _described(contents: Backup) -> str:
    made = f"made {contents.made_at}, " if contents.made_at else ""
    return (
        f"{made}{counted(contents.events, 'event')}, feed head {contents.head:,}, "
        f"epoch {contents.epoch}, peer id {contents.peer_id or '-'}"
    )
