"""`recon-node key new`, `key show` and `key sign-in`."""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from recon_node.base.terminal import FILE, echo, json_option, one_line, print_result
from recon_node.cli.command import expires_option
from recon_node.client import ClientError, Key, KeyFileError
from recon_node.client.accounts import LASTS, account_of


@click.group("key")
def key() -> None:
    """Make keys that sign events."""


@key.command("new")
@click.argument("file", type=FILE)
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "secp256k1", "p256"]),
    default="ed25519",
    show_default=True,
    help="The kind of key.",
)
@json_option
def new_key(file: Path, kind: Any, as_json: bool) -> None:
    """Write a new key to FILE, which only you can read, and print its did:key.

    \b
    Example:
      recon-node key new my.key
    """
    made = Key.generate(kind)
    with one_line(KeyFileError):
        made.save(file)
    _print_key(made, file, as_json=as_json)


@key.command("show")
@click.argument("file", type=FILE)
@json_option
def show_key(file: Path, as_json: bool) -> None:
    """Print the did:key of the key in FILE."""
    with one_line(KeyFileError):
        loaded = Key.load(file)
    _print_key(loaded, file, as_json=as_json)


@key.command("sign-in")
@click.argument("file", type=FILE)
@click.argument("capability", type=FILE)
@click.option(
    "--account",
    required=True,
    metavar="DID",
    help="The account: did:pkh:eip155:1:0x... or did:pkh:solana:...:...",
)
@click.option(
    "--domain", default="localhost", show_default=True, help="Who asks, as the wallet shows it."
)
@click.option(
    "--model", "models", multiple=True, metavar="STREAM_ID", help="Only documents of this model."
)
@expires_option("7 days")
@json_option
def sign_in(
    file: Path,
    capability: Path,
    account: str,
    domain: str,
    models: tuple[str, ...],
    expires: int | None,
    as_json: bool,
) -> None:
    """Let the key in FILE write for an account, and save the account's permission as CAPABILITY.

    Shows a text, which the account's wallet has to sign (Ethereum: personal_sign; Solana: Ed25519),
    and reads the signature from standard input, as the wallet prints it. Pass CAPABILITY as
    --capability to the commands that write. To renew it, sign in again.

    \b
    Example:
      recon-node key sign-in my.key my.cacao --account did:pkh:eip155:1:0x...
      recon-node stream new kjzl6hvf... '{"title": "Hello"}' --key my.key --capability my.cacao
    """
    lasts = LASTS if expires is None else timedelta(seconds=expires - time.time())
    with one_line(ClientError):
        signing = Key.load(file)
        owner = account_of(account)
        request = owner.request(signing, domain=domain, models=models or None, lasts=lasts)
        echo(request.message, err=True, lines=True)
        echo("\nThe signature of the lines above:", err=True, lines=True)
        signed = owner.complete(request, sys.stdin.readline().strip())
        granted = signed.capability
        assert granted is not None, "signing in makes one"
        granted.save(capability)
    facts = {
        "did": signed.did,
        "key": signed.signer,
        "file": str(capability),
        "expires": str(granted.expires),
    }
    print_result(facts, signed.did, as_json=as_json)


def _print_key(key: Key, file: Path, *, as_json: bool) -> None:
    print_result({"did": key.did, "file": str(file)}, key.did, as_json=as_json)
