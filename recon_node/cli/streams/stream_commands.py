"""`recon-node stream`, and what the commands that write share.

The commands that write are the client (`recon_node.client`) for the shell: events are signed here,
with a key from a file, and the node gets nothing else.
"""

import errno
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from recon_node.base.connection import Connection
from recon_node.base.errors import reason_of
from recon_node.base.files import read_small
from recon_node.base.terminal import (
    FILE,
    Command,
    CommandError,
    echo,
    json_option,
    node_options,
    print_json,
    print_result,
)
from recon_node.cli import import_command
from recon_node.client import (
    Capability,
    Ceramic,
    Conflict,
    Document,
    Key,
    MergeConflictError,
    MergeProposal,
)
from recon_node.ipld import CID, IpldError, dag_json
from recon_node.streams import Expired


def writer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which node, and --key; the command gets a client, `ceramic`."""

    @node_options
    @click.option(
        "--key",
        "key_file",
        type=FILE,
        envvar="RECON_NODE_KEY",
        show_envvar=True,
        required=True,
        metavar="FILE",
        help="The signing key: the stream's controller. `recon-node key new` makes one.",
    )
    @click.option(
        "--capability",
        "capability_file",
        type=FILE,
        envvar="RECON_NODE_CAPABILITY",
        show_envvar=True,
        metavar="FILE",
        help="Lets the key write for an account. `recon-node key sign-in` makes it.",
    )
    @wraps(command)
    def with_client(
        *args: Any, node: Connection, key_file: Path, capability_file: Path | None, **options: Any
    ) -> None:
        key = Key.load(key_file)
        if capability_file is not None:
            key = key.acting_for(Capability.load(capability_file))
        with client_of(node, key) as ceramic:
            command(*args, ceramic=ceramic, **options)

    return with_client


@contextmanager
def client_of(node: Connection, key: Key | None = None) -> Iterator[Ceramic]:
    """Open the client of a node."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            with Ceramic(node.url, key=key, token=node.token) as ceramic:
                yield ceramic
        finally:
            for warning in caught:
                echo(f"Warning: {warning.message}", err=True)


_MAX_JSON: Final = 16 * 1024 * 1024
"""Bytes of JSON that are read, or characters: an event has at most a million."""


class JsonText(click.ParamType[Any]):
    """JSON: the text itself, @FILE, or - for standard input."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the JSON."""
        try:
            return json.loads(_text(value))
        except OSError as error:
            self.fail(f"{value}: {reason_of(error)}", param, ctx)
        except ValueError as error:
            is_text = value != "-" and not value.startswith("@")
            hint = "; to read it from a file, write @FILE" if is_text else ""
            self.fail(f"not JSON: {error}{hint}", param, ctx)
        except RecursionError:
            self.fail("not JSON that can be read: it is nested too deeply", param, ctx)


class JsonObject(JsonText):
    """JSON of an object; else as `JsonText`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the JSON."""
        converted = super().convert(value, param, ctx)
        if not isinstance(converted, dict):
            self.fail("not a JSON object: it should begin with {", param, ctx)
        return converted


def _text(value: str) -> str:
    if value == "-":
        with click.open_file("-", encoding="utf-8") as file:
            text = str(file.read(_MAX_JSON + 1))
        if len(text) > _MAX_JSON:
            raise OSError(errno.EFBIG, f"it has more than {_MAX_JSON} characters")
        return text
    if not value.startswith("@"):
        return value
    return read_small(Path(value[1:]), _MAX_JSON).decode()


class CidText(click.ParamType[CID]):
    """A CID."""

    name = "cid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CID:
        """Read the CID."""
        try:
            return value if isinstance(value, CID) else CID.parse(value)
        except IpldError as error:
            self.fail(str(error), param, ctx)


def _at_option(text: str) -> Callable[[Command], Command]:
    return click.option("--at", type=CidText(), metavar="CID", help=text)


_ELSEWHERE: Final = {
    "anchor": ("anchor", "anchor_stream"),
    "list": ("streams.model_commands", "list_streams"),
    "show": ("streams.stream_drawing", "show_stream"),
}
"""Commands that need what the others do without: tables, pictures, trio."""


class _StreamGroup(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        return import_command(*_ELSEWHERE[cmd_name])


@click.group(cls=_StreamGroup, commands={name: click.Command(name) for name in _ELSEWHERE})
def stream() -> None:
    """List, draw, read, create, change, merge and anchor streams."""


@stream.command("get")
@click.argument("stream_id")
@_at_option("Print the content after this event of the stream, not at its tip.")
@node_options
@json_option
def get_stream(stream_id: str, at: CID | None, node: Connection, as_json: bool) -> None:
    """Print the content of the stream STREAM_ID as JSON; --json adds its tip and metadata.

    The content is computed here, from the events that the node has. Of a model it is the
    definition.

    \b
    Examples:
      recon-node stream get kjzl6kcy...
      recon-node stream get kjzl6kcy... --at bagcqcera... --json
    """
    with client_of(node) as ceramic:
        document = ceramic.read(stream_id, at=at)
    if as_json:
        show_document(document, as_json)
    else:
        print_json(dag_json.as_json(document.content))


@stream.command("new")
@click.argument("model")
@click.argument("content", type=JsonObject(), required=False)
@writer_options
@json_option
def new_stream(model: str, content: dict[str, Any] | None, ceramic: Ceramic, as_json: bool) -> None:
    """Create a document of MODEL, a StreamID, and print its StreamID.

    CONTENT is a JSON object, @FILE, or - for standard input. Of a model that allows one document
    per account (or per value of some fields), the document is created once: if it exists, it gets
    this content.

    \b
    Examples:
      recon-node stream new kjzl6hvf... '{"title": "Hello"}' --key my.key
      recon-node stream new kjzl6hvf... @post.json --key my.key
    """
    created = ceramic.create(model, content)
    if not created.sent:
        echo("nothing to change: the document exists with this content:", err=True)
    show_document(created, as_json)


@stream.command("update")
@click.argument("stream_id")
@click.argument("content", type=JsonObject(), required=False)
@click.option(
    "--patch",
    type=JsonText(),
    metavar="JSON",
    help="The change as JSON Patch (RFC 6902), instead of CONTENT; @FILE reads it from a file.",
)
@_at_option("Build on this event of the stream, not on its tip.")
@writer_options
@json_option
def update_stream(
    stream_id: str,
    content: dict[str, Any] | None,
    patch: list[Any] | None,
    at: CID | None,
    ceramic: Ceramic,
    as_json: bool,
) -> None:
    """Change the stream STREAM_ID to CONTENT, and print the CID of the new tip.

    CONTENT is a JSON object, @FILE, or - for standard input. Only what differs is written. Nothing
    is written if nothing differs.

    \b
    Examples:
      recon-node stream update kjzl6kcy... '{"title": "Hello again"}' --key my.key
      recon-node stream update kjzl6kcy... --key my.key \\
        --patch '[{"op": "replace", "path": "/title", "value": "Hello again"}]'
    """
    if (content is None) is (patch is None):
        raise click.UsageError("give either the new CONTENT or a --patch")
    if patch is not None and not isinstance(patch, list):
        raise click.UsageError("a --patch is a JSON array of operations: it should begin with [")
    if patch is not None and not all(isinstance(operation, dict) for operation in patch):
        raise click.UsageError('an operation of a --patch is an object: {"op": ..., "path": ...}')
    updated = ceramic.update(stream_id, content, patch=patch, at=at)
    if not updated.sent:
        echo("nothing to change: the stream has this content; this is its event:", err=True)
    show_document(updated, as_json, tip=True)


@stream.command("merge")
@click.argument("stream_id")
@click.option(
    "--content",
    type=JsonObject(),
    metavar="JSON",
    help="The merged content, instead of the combined content of the branches; @FILE, or -.",
)
@click.option(
    "--prefer",
    type=CidText(),
    metavar="CID",
    help="One of the tips, whose values win where the branches conflict.",
)
@click.option("--dry-run", is_flag=True, help="Print the merge as JSON, and send nothing.")
@writer_options
@json_option
def merge_stream(
    stream_id: str,
    content: dict[str, Any] | None,
    prefer: CID | None,
    dry_run: bool,
    ceramic: Ceramic,
    as_json: bool,
) -> None:
    """Merge the stream STREAM_ID, which has diverged, and print the CID of the merge (CIP-145).

    A stream whose events were anchored after their capability had expired is repaired: the merge
    covers their branch, without its changes.

    What changed on one branch is taken over. If several branches changed the same part in
    different ways, the command shows these conflicts and fails (exit code 1): decide with --prefer
    or --content.

    \b
    Examples:
      recon-node stream merge kjzl6kcy... --key my.key --dry-run
      recon-node stream merge kjzl6kcy... --key my.key --prefer bagcqcera...
    """
    if content is not None and prefer is not None:
        raise click.UsageError("give --content or --prefer, not both")
    if dry_run:
        proposal = ceramic.propose_merge(stream_id, content, prefer=prefer)
        print_json(None if proposal is None else _proposal_facts(proposal))
        return
    try:
        merged = ceramic.merge(stream_id, content, prefer=prefer)
    except MergeConflictError as error:
        _show_repaired(error.proposal.expired)
        raise CommandError(_conflicts_text(error.proposal)) from None
    _show_repaired(merged.repaired)
    if not merged.sent:
        echo("nothing to merge: the stream has not diverged; this is its tip:", err=True)
    show_document(merged, as_json, tip=True)


def _proposal_facts(proposal: MergeProposal) -> dict[str, Any]:
    def values(conflict: Conflict) -> dict[str, Any]:
        return {str(cid): dag_json.as_json(value) for cid, value in conflict.values.items()}

    return {
        "prev": list(map(str, proposal.prevs)),
        "content": dag_json.as_json(proposal.content),
        "patch": dag_json.as_json(proposal.patch),
        "conflicts": [{"path": at.path, "values": values(at)} for at in proposal.conflicts],
        "expired": {str(prev): str(reason) for prev, reason in proposal.expired.items()},
    }


def _show_repaired(expired: Mapping[CID, Expired]) -> None:
    for cid, why in expired.items():
        echo(f"repairs: {why}; --prefer {cid} would take its changes over", err=True)


def _conflicts_text(proposal: MergeProposal) -> str:
    lines = ["the branches changed the same parts in different ways:"]
    for conflict in proposal.conflicts:
        lines.append(f"  {conflict.path}")
        for prev in proposal.prevs:
            value = "(removed)"
            if prev in conflict.values:
                value = json.dumps(dag_json.as_json(conflict.values[prev]), ensure_ascii=False)
            lines.append(f"    {prev}: {value}")
    lines.append("Decide with --prefer CID or --content JSON.")
    return "\n".join(lines)


def show_document(document: Document, as_json: bool, *, tip: bool = False) -> None:
    """Print the StreamID of a document, or the CID of its tip; as JSON, more of it."""
    facts = {
        "id": str(document.id),
        "event": str(document.event),
        "controller": document.controller,
        "content": dag_json.as_json(document.content) if as_json else None,
        "metadata": dict(document.metadata),
        "open_tips": list(map(str, document.open_tips)),
        "sent": list(map(str, document.sent)),
    }
    print_result(facts, str(document.event if tip else document.id), as_json=as_json)
