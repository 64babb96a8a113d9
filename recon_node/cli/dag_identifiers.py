"""`recon-node dag publish`, `resolve`, `grant` and `key`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recon_node.cli.client import NodeApi, node_options
from recon_node.cli.dag_support import read_cid, told_to_people
from recon_node.cli.errors import CommandError
from recon_node.cli.keys import key_option, open_key
from recon_node.cli.output import json_option

if TYPE_CHECKING:
    from recon_node.dag import Identifier

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(context: Any, param: Any, value: str | None) -> int | None:
    """A time span in seconds; a callback of click."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a time span, such as 90d, 12h or 30m")
    return int(match[1]) * _UNITS[match[2]]


def expires_option(default: str) -> Callable[[Command], Command]:
    """The option `--expires`; `default` says what holds without it."""
    return click.option(
        "--expires",
        callback=_seconds,
        metavar="SPAN",
        help=f"For how long nodes accept it anew (90d, 12h ...); by default {default}.",
    )


@click.command("publish")
@click.argument("root", metavar="CID")
@click.option("--id", "identifier", metavar="DID", help="The identifier; by default the key's own.")
@click.option(
    "--proof",
    "proofs",
    multiple=True,
    metavar="UCAN",
    help="What permits the key to publish under another's identifier; @FILE reads it from a file.",
)
@click.option(
    "--origin",
    metavar="CID",
    help="The replica, which must contain the DAG's root; by default all that the node knows.",
)
@expires_option("for ever, or as long as its proofs hold")
@key_option
@node_options
def publish(
    root: str,
    identifier: str | None,
    proofs: tuple[str, ...],
    origin: str | None,
    expires: int | None,
    key_file: Path | None,
    node: NodeApi,
) -> None:
    """Make an identifier lead to the DAG CID, which is at the node.

    The identifier is the did:key of the key, or one whose owner granted it (`dag grant`). Prints
    the identifier.

    \b
    Examples:
      recon-node dag publish bafybei...
      recon-node dag publish bafybei... --id did:key:z6Mk... --proof @grant.ucan
    """
    from recon_node.cli.dag_publish import publish_dag

    key = open_key(key_file)
    with told_to_people():
        found = publish_dag(
            node,
            key,
            root=read_cid(root),
            identifier=None if identifier is None else _identifier(identifier),
            proofs=[_read_proof(proof) for proof in proofs],
            origin=None if origin is None else read_cid(origin),
            expires=None if expires is None else int(time.time()) + expires,
        )
    click.echo(f"{found.identifier} leads to {found.link} (publish {found.replica})", err=True)
    click.echo(str(found.identifier))


@click.command("resolve")
@click.argument("did")
@click.option("-v", "--verbose", is_flag=True, help="Show the publishes in their order, too.")
@node_options
@json_option
def resolve(did: str, verbose: bool, node: NodeApi, as_json: bool) -> None:
    """Print the root's CID of the DAG that the identifier DID leads to, as the node knows it.

    Exit code 1 if it leads nowhere (yet): a publish counts once the node knows that its origin
    contains its link.

    \b
    Example:
      recon-node dag resolve did:key:z6Mk...
    """
    from recon_node.cli.dag_node import publication_of

    with told_to_people():
        found = publication_of(node, _identifier(did))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for line in _described(found, verbose):
            click.echo(line)
    if found["link"] is None:
        raise SystemExit(1)


@click.command("grant")
@click.argument("audience", metavar="DID")
@expires_option("for ever")
@key_option
def grant(audience: str, expires: int | None, key_file: Path | None) -> None:
    """Print a UCAN by which DID may publish under this key's identifier.

    \b
    Example:
      recon-node dag grant did:key:z6Mk... --expires 90d > grant.ucan
    """
    from recon_node.ceramic.auth.did import ed25519_did, public_key
    from recon_node.dag.protocol.publishing import ABILITY
    from recon_node.dag.protocol.ucan import Capability, issue_ucan

    key = open_key(key_file)
    with told_to_people():
        public_key(audience)
    owner = ed25519_did(bytes(key.verify_key))
    until = None if expires is None else int(time.time()) + expires
    click.echo(issue_ucan(key, audience, [Capability(owner, ABILITY)], until))


@click.command("key")
@key_option
def show_key(key_file: Path | None) -> None:
    """Print the did:key of the key that signs: what it publishes under.

    \b
    Example:
      recon-node dag key
    """
    from recon_node.ceramic.auth.did import ed25519_did

    click.echo(ed25519_did(bytes(open_key(key_file).verify_key)))


def _described(found: dict[str, Any], verbose: bool) -> Iterator[str]:
    if found["link"] is not None:
        yield found["link"]
    elif found["pending"] is not None:
        yield (
            f"{found['id']} does not lead to {found['pending']['link']} yet: the node does not "
            "have enough of the DAG to check the publish"
        )
    elif not verbose:
        yield f"nothing was published under {found['id']}, as far as this node knows"
    if verbose:
        yield f"origin {found['origin']}"
        if found["pending"] is not None:
            yield "pending: {link}, origin {origin}".format(**found["pending"])
        yield from (f"{place}. {cid}" for place, cid in enumerate(found["order"], 1))
        yield from (f"not here: {cid}" for cid in found["waiting_for"])
        yield from (f"refused: {each['cid']}: {each['reason']}" for each in found["refused"])
        yield f"{found['ignored']} other events ignored"


def _identifier(text: str) -> Identifier:
    from recon_node.ceramic import DidError
    from recon_node.dag import Identifier

    try:
        return Identifier.parse(text)
    except DidError as error:
        raise CommandError(str(error)) from None


def _read_proof(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{text[1:]}: {getattr(error, 'strerror', None) or error}") from None
