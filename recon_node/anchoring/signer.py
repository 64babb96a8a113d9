"""The key that signs transactions: read from a file that only its owner can read.

There is no setting, flag or variable with the key itself: others can see those of a process, and
they end up in logs and histories of shells. The key is in no message, and `repr` does not show it.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recon_node.anchoring.authority import AuthorityError
from recon_node.base.files import create_file, is_exposed, read_secret


class Signer:
    """Signs transactions of one account.

    Attributes:
        address: of the account, in the case of EIP-55.
    """

    def __init__(self, account: Any) -> None:
        self._account = account
        self.address = str(account.address)

    def sign(self, transaction: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the hash (0x and 64 digits) and the bytes of a signed transaction."""
        fields = dict(transaction)
        if "to" in fields:
            fields["to"] = bytes.fromhex(fields["to"].removeprefix("0x"))
        signed = self._account.sign_transaction(fields)
        return "0x" + bytes(signed.hash).hex(), bytes(signed.raw_transaction)


def load_signer(path: Path, password_path: Path | None) -> Signer:
    """Read a key: 64 hexadecimal digits, or an encrypted keystore (Web3 Secret Storage) as JSON.

    Takes seconds for a keystore. The password of a keystore is on the first line of a file.

    Raises:
        AuthorityError: a file cannot be read or used, or others can read it.
    """
    account = _eth_account()
    text = _secret(path, "anchor_key_file")
    try:
        if not text.startswith("{"):
            return Signer(account.from_key(bytes.fromhex(text.removeprefix("0x"))))
        keystore = json.loads(text)
    except Exception:  # whatever it says may quote the key
        raise AuthorityError(
            f"anchor_key_file {path} has neither a key of 64 hexadecimal digits nor a keystore"
        ) from None
    if password_path is None:
        raise AuthorityError(
            f"anchor_key_file {path} is encrypted: set anchor_password_file to a file with the "
            "password"
        )
    password = _secret(password_path, "anchor_password_file")
    try:
        return Signer(account.from_key(account.decrypt(keystore, password)))
    except Exception:
        raise AuthorityError(
            f"the password in {password_path} does not open the keystore {path}"
        ) from None


def create_key(path: Path) -> str:
    """Make a new key, in a file for its owner alone; return the account's address.

    Raises:
        AuthorityError: the file exists, or cannot be written.
    """
    account = _eth_account().create()
    try:
        create_file(path, bytes(account.key).hex().encode() + b"\n")
    except FileExistsError:
        raise AuthorityError(f"{path} already exists; not overwriting it") from None
    except OSError as error:
        raise AuthorityError(f"cannot write {path}: {error.strerror}") from None
    return str(account.address)


def _eth_account() -> Any:
    # Importing py_ecc, which eth-account needs, lets recursion go 100,000 levels deep. JSON that
    # nests deeply, which anybody can send, would then end the process instead of being refused.
    limit = sys.getrecursionlimit()
    try:
        from eth_account import Account
    except ImportError:
        raise AuthorityError(
            "transactions are signed by the package eth-account, which is not installed: "
            "pip install 'recon-node[anchor]'"
        ) from None
    finally:
        sys.setrecursionlimit(limit)
    return Account


def _secret(path: Path, setting: str) -> str:
    path = path.expanduser()
    if is_exposed(path):
        raise AuthorityError(f"other users can read {setting} {path}: run chmod 600 on it")
    try:
        text = read_secret(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AuthorityError(f"cannot read {setting} {path}: {reason}") from None
    return text.splitlines()[0] if text and not text.startswith("{") else text
