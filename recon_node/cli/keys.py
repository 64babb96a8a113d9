"""The key that signs what the commands write: an Ed25519 key in a file that only its owner reads.

The file has the 32 bytes of the key's seed as one line of hexadecimal text.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from nacl.signing import SigningKey

from recon_node.cli.errors import CommandError
from recon_node.data_dir import default_data_dir

KEY_FILE = "dag.key"

key_option = click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The Ed25519 key that signs (hexadecimal); by default dag.key in the data directory "
    "(RECON_NODE_DATA_DIR), made when it is not there.",
)


def open_key(path: Path | None) -> SigningKey:
    """The key in a file; None: the default one, which is made on the first call.

    Raises:
        CommandError: there is none, it is no key, or it cannot be read or written.
    """
    chosen = path or _default_path()
    try:
        if path is None and not chosen.exists():
            return _create(chosen)
        seed = bytes.fromhex(chosen.read_text(encoding="ascii").strip())
        return SigningKey(seed)
    except OSError as error:
        raise CommandError(f"the key {chosen}: {error.strerror or error}") from None
    except ValueError:
        raise CommandError(
            f"{chosen} is not a key: it should be 64 hexadecimal digits, the seed of an Ed25519 key"
        ) from None


def _default_path() -> Path:
    configured = os.environ.get("RECON_NODE_DATA_DIR")
    return (Path(configured).expanduser() if configured else default_data_dir()) / KEY_FILE


def _create(path: Path) -> SigningKey:
    """Write a new key beside its place and move it there: it is whole, or not there at all."""
    key = SigningKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(bytes(key).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike a rename it never replaces the key of another process
        except FileExistsError:
            return open_key(path)
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"made a new key: {path}", err=True)
    return key
