"""`recon-node dag publish`, `resolve`, `grant` and `key`: DAGs under identifiers, and signing keys.

The key is Ed25519. Its file, which only its owner can read, has the 32 bytes of the seed as one
line of hexadecimal text.
"""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict

import click
from nacl.signing import SigningKey
from rich.progress import (
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from recon_node.base.connection import Connection
from recon_node.base.errors import reason_of, unwrapped
from recon_node.base.files import (
    draft_of,
    move_into_place,
    private_directory,
    read_secret,
    read_small,
)
from recon_node.base.setting_types import at_home, default_data_dir
from recon_node.base.terminal import (
    FILE,
    CommandError,
    counted,
    echo,
    json_option,
    node_options,
    one_line,
    print_json,
    print_result,
)
from recon_node.ceramic import CeramicError
from recon_node.ceramic.auth.did import ed25519_did, public_key
from recon_node.cli.command import expires_option, progress_bar, understood
from recon_node.cli.dag.transfer import Published, join_heads, post_replica, publication_of, want
from recon_node.dag.dag_events import Identifier, parse_root
from recon_node.dag.dag_index import KEY_FILE
from recon_node.dag.errors import DagError
from recon_node.dag.protocol.dag_operations import ReplicaError
from recon_node.dag.protocol.publishing import ABILITY, check_publish, make_publish, publish_of
from recon_node.dag.protocol.shards import ShardError
from recon_node.dag.protocol.ucan import (
    FOREVER,
    MAX_TOKEN_SIZE,
    UcanCapability,
    UcanError,
    issue_ucan,
    parse_ucan,
)
from recon_node.ipld import CID, IpldError

_REFUSALS: Final = (CeramicError, DagError, IpldError, ReplicaError, ShardError, UcanError)

key_option = click.option(
    "--key",
    "key_file",
    type=FILE,
    metavar="FILE",
    help="The Ed25519 signing key, in hexadecimal; by default dag.key in the data directory "
    "(RECON_NODE_DATA_DIR), which is created if missing.",
)


class DagCommand(click.Command):
    """A command that prints what the layers below refuse as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with one_line(*_REFUSALS), unwrapped(CommandError, *_REFUSALS):
            return super().invoke(ctx)


def bytes_bar(what: str) -> AbstractContextManager[Progress]:
    """Show a progress bar that counts bytes."""
    after = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return progress_bar(TextColumn(what), *after)


def open_key(path: Path | None) -> SigningKey:
    """Return the key in a file; None: the default one, which is created by the first call."""
    chosen = path or _default_path()
    try:
        if path is None and not chosen.exists():
            return _create(chosen)
        return SigningKey(bytes.fromhex(read_secret(chosen, "ascii")))
    except OSError as error:
        raise CommandError(f"the key {chosen}: {reason_of(error)}") from None
    except ValueError:
        raise CommandError(
            f"{chosen} is not a key: it should be 64 hexadecimal digits, the seed of an Ed25519 key"
        ) from None


def _default_path() -> Path:
    configured = os.environ.get("RECON_NODE_DATA_DIR")
    try:
        return at_home(Path(configured) if configured else default_data_dir()) / KEY_FILE
    except ValueError as error:
        raise CommandError(f"{error}, or name a key with --key") from None


def _create(path: Path) -> SigningKey:
    key = SigningKey.generate()
    private_directory(path.parent)
    with draft_of(path, wait=True, mode=0o600) as draft:
        if path.exists():  # another command made one meanwhile
            return open_key(path)
        draft.write_text(bytes(key).hex() + "\n", encoding="ascii")
        move_into_place(draft, path)
    echo(
        f"created a new key: {path}; only it can publish under its did:key, so keep it "
        "(`recon-node backup` copies it if it is in the node's data directory)",
        err=True,
    )
    return key


@click.command("publish", cls=DagCommand)
@click.argument("root", metavar="CID")
@click.option("--id", "identifier", metavar="DID", help="The identifier; by default the key's own.")
@click.option(
    "--proof",
    "proofs",
    multiple=True,
    metavar="UCAN",
    help="A grant that permits the key to publish under another identifier; @FILE reads it from a "
    "file. May be repeated.",
)
@click.option(
    "--origin",
    metavar="CID",
    help="The replica that contains the DAG's root; by default all replicas that the node knows.",
)
@expires_option("forever, or as long as its proofs are valid")
@key_option
@node_options
@json_option
def publish(
    root: str,
    identifier: str | None,
    proofs: tuple[str, ...],
    origin: str | None,
    expires: int | None,
    key_file: Path | None,
    node: Connection,
    as_json: bool,
) -> None:
    """Make an identifier resolve to the DAG CID, which the node must have.

    The identifier is the did:key of the key, or one whose owner granted it (`dag grant`). Prints
    the identifier.

    \b
    Examples:
      recon-node dag publish bafybei...
      recon-node dag publish bafybei... --id did:key:z6Mk... --proof @grant.ucan
    """
    key, link = open_key(key_file), parse_root(root)
    own = Identifier(bytes(key.verify_key))
    chosen = own if identifier is None else Identifier.parse(identifier)
    texts = [_read_proof(proof) for proof in proofs]
    source = join_heads(node, key, link) if origin is None else CID.parse(origin)
    if source is None:
        raise CommandError(
            f"the node knows no replica of {link}: push the DAG with `recon-node dag push`, or "
            "pull it first"
        )
    shard = _shard_in(node, link, source)
    publish_after = partial(
        make_publish, key, chosen.key, link, source, expires=expires, shard=shard, proofs=texts
    )
    check_publish(publish_after(prior=None), int(time.time()))
    want(node, chosen)
    order = publication_of(node, chosen)["order"]
    replica = publish_after(prior=CID.parse(order[-1]) if order else None)
    post_replica(node, key, chosen, replica.block)
    _check_accepted(node, chosen, replica.cid)
    echo(f"{chosen} resolves to {link} (publish {replica.cid})", err=True)
    until = parse_ucan(publish_of(replica).proof).expires
    end = None if until == FOREVER else until
    if expires is not None and end != expires:
        echo("nodes accept it for as long as its proofs are valid, not longer", err=True)
    facts = {"id": str(chosen), "link": str(link), "publish": str(replica.cid), "expires": end}
    print_result(facts, str(chosen), as_json=as_json)


class _Containment(TypedDict):
    contains: bool | None
    waiting_for: list[str]
    shard: str | None


def _shard_in(node: Connection, root: CID, origin: CID) -> CID | None:
    """Return the shard of the replica that has the root; None if the root is inside its own CID."""
    answer = node.request("GET", f"/ceramic/dag/{root}/contained/{origin}")
    containment = understood(node, answer, _Containment)
    if containment["contains"]:
        return None if containment["shard"] is None else CID.parse(containment["shard"])
    if containment["contains"] is None:
        missing = ", ".join(containment["waiting_for"][:3])
        unsure = f"the node cannot tell whether the replica {origin} contains {root}"
        raise CommandError(f"{unsure}: it does not have {missing}")
    raise CommandError(
        f"the replica {origin} does not contain {root}: no node would accept the publish. Push the "
        "DAG first, or name the replica that has its shards (`recon-node dag show` lists them)"
    )


def _check_accepted(node: Connection, identifier: Identifier, replica: CID) -> None:
    publication = publication_of(node, identifier)
    reasons = {refusal["cid"]: refusal["reason"] for refusal in publication["refused"]}
    if str(replica) not in publication["order"] or str(replica) in reasons:
        reason = reasons.get(str(replica), "it is not among those that the node knows")
        raise CommandError(f"the node does not accept the publish {replica}: {reason}")


@click.command("resolve", cls=DagCommand)
@click.argument("did")
@click.option("-v", "--verbose", is_flag=True, help="Show the publishes in order, too.")
@node_options
@json_option
def resolve(did: str, verbose: bool, node: Connection, as_json: bool) -> None:
    """Print the root CID that the identifier DID resolves to, as far as the node knows.

    Exit code 1 if it does not resolve (yet): a publish counts once the node knows that its origin
    contains its link.

    \b
    Example:
      recon-node dag resolve did:key:z6Mk...
    """
    publication = publication_of(node, Identifier.parse(did))
    if as_json:
        print_json(publication)
    else:
        for line in _described(publication, verbose):
            echo(line)
    if publication["link"] is None:
        raise SystemExit(1)


@click.command("grant", cls=DagCommand)
@click.argument("audience", metavar="DID")
@expires_option("forever")
@key_option
@json_option
def grant(audience: str, expires: int | None, key_file: Path | None, as_json: bool) -> None:
    """Print a UCAN that permits DID to publish under this key's identifier.

    \b
    Example:
      recon-node dag grant did:key:z6Mk... --expires 90d > grant.ucan
    """
    key = open_key(key_file)
    public_key(audience)
    owner = ed25519_did(bytes(key.verify_key))
    ucan = issue_ucan(key, audience, [UcanCapability(owner, ABILITY)], expires)
    facts = {"ucan": ucan, "issuer": owner, "audience": audience, "expires": expires}
    print_result(facts, ucan, as_json=as_json)


@click.command("key", cls=DagCommand)
@key_option
@json_option
def show_key(key_file: Path | None, as_json: bool) -> None:
    """Print the did:key of the signing key: the identifier that it publishes under.

    \b
    Example:
      recon-node dag key
    """
    did = ed25519_did(bytes(open_key(key_file).verify_key))
    print_result({"did": did}, did, as_json=as_json)


def _described(publication: Published, verbose: bool) -> Iterator[str]:
    if publication["link"] is not None:
        yield publication["link"]
    elif publication["pending"] is not None:
        yield (
            f"{publication['id']} does not resolve to {publication['pending']['link']} yet: the "
            "node does not have enough of the DAG to check the publish"
        )
    elif not verbose:
        yield f"nothing is published under {publication['id']}, as far as this node knows"
    if verbose:
        yield f"origin {publication['origin']}"
        if publication["pending"] is not None:
            yield "pending: {link}, origin {origin}".format(**publication["pending"])
        yield from (f"{place}. {cid}" for place, cid in enumerate(publication["order"], 1))
        yield from (f"missing: {cid}" for cid in publication["waiting_for"])
        yield from ("refused: {cid}: {reason}".format(**entry) for entry in publication["refused"])
        yield f"{counted(publication['ignored'], 'other event')} ignored"


def _read_proof(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return read_small(Path(text[1:]), MAX_TOKEN_SIZE).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{text[1:]}: {reason_of(error)}") from None
