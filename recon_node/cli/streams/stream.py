"""`recon-node stream` and `recon-node model`.

The commands that write are the client (`recon_node.client`) for the shell: events are signed here,
with a key from a file, and the node gets nothing else.
"""

from __future__ import annotations

import errno
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict

import click
from msgspec import Meta

from recon_node.base.connection import Connection
from recon_node.base.files import read_bounded
from recon_node.base.terminal import Command, echo, json_option, print_json, print_result
from recon_node.cli.anchor import anchor_stream
from recon_node.cli.command import (
    FILE,
    CommandError,
    make_console,
    make_table,
    node_options,
    number_option,
    pages,
    understood,
    write_file,
)
from recon_node.cli.drawing import Drawing, drawing_options, show_picture
from recon_node.client import (
    Capability,
    Ceramic,
    Conflict,
    Document,
    Key,
    MergeConflictError,
    MergeProposal,
)
from recon_node.client.definitions import with_defaults
from recon_node.ipld import CID, IpldError
from recon_node.streams import EventShape, Expired
from recon_node.streams.document_schema import as_dag_json
from recon_node.streams.picture import HeldEvent, Progress, StreamPicture, stream_picture


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
            self.fail(f"{value}: {error.strerror or error}", param, ctx)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
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
    return read_bounded(Path(value[1:]), _MAX_JSON).decode()


class CidText(click.ParamType[CID]):
    """A CID."""

    name = "cid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CID:
        """Read the CID."""
        try:
            return value if isinstance(value, CID) else CID.parse(value)
        except IpldError as error:
            self.fail(f"{value!r} is not a CID: {error}", param, ctx)


def _at_option(text: str) -> Callable[[Command], Command]:
    return click.option("--at", type=CidText(), metavar="CID", help=text)


limit_option = number_option("--limit", 20, "N", "List the latest N; 0 lists all.", least=0)


class _Stream(TypedDict):
    id: str
    controller: str
    sort_value: str
    name: str | None
    model_name: str | None
    events: int


class _Model(TypedDict):
    id: str
    name: str | None
    streams: int
    events: int


@click.command("list")
@click.option("--model", metavar="STREAM_ID", help="Only documents of this model.")
@click.option("--controller", metavar="DID", help="Only streams of this controller.")
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=TEXT",
    help="Only documents whose field holds this, such as a StreamID; needs --model.",
)
@click.option(
    "--indexed",
    is_flag=True,
    help="Only documents that their authors have not hidden (shouldIndex); needs --model.",
)
@limit_option
@node_options
@json_option
def list_streams(
    model: str | None,
    controller: str | None,
    where: tuple[str, ...],
    indexed: bool,
    limit: int,
    node: Connection,
    as_json: bool,
) -> None:
    """List the streams of a node, those that arrived last first.

    With --where or --indexed, the node looks into the documents of the model, which takes longer
    the more there are.

    \b
    Examples: all, the documents of a model, those that relate to a document
      recon-node stream list
      recon-node stream list --model kjzl6hvfrbw6c... --limit 0 --json
      recon-node stream list --model kjzl6hvfrbw6c... --where post=kjzl6kcym7w8y...
    """
    query = {"model": model, "controller": controller, "where": list(where)}
    query["indexed"] = "true" if indexed else None
    query = {name: value for name, value in query.items() if value not in (None, [])}
    listed, total = pages(node, "/ceramic/streams", "streams", query, limit)
    if as_json:
        print_json(listed)
        return
    streams = understood(node, listed, list[_Stream])
    table = make_table("stream", "model", "controller", "events", numbers=("events",))
    for stream in streams:
        kind = stream["name"] or stream["model_name"] or stream["sort_value"]
        table.add_row(stream["id"], kind, stream["controller"], f"{stream['events']:,}")
    if where or indexed:
        _print_list(table, len(streams), len(streams), "such documents")
    else:
        _print_list(table, len(streams), total, "streams")


@click.command("list")
@limit_option
@node_options
@json_option
def list_models(limit: int, node: Connection, as_json: bool) -> None:
    """List the models of a node, those that arrived last first.

    A model is listed if its own stream is here. A node without interests gets all models of its
    network; one with interests needs one in the metamodel, kh4q0ozorrgaq2mezktnrmdwleo1d, too.

    \b
    Example: the documents of a model
      recon-node model list
      recon-node stream list --model kjzl6hvfrbw6c...
    """
    listed, total = pages(node, "/ceramic/models", "models", {}, limit)
    if as_json:
        print_json(listed)
        return
    models = understood(node, listed, list[_Model])
    table = make_table("model", "name", "streams", "events", numbers=("streams", "events"))
    for model in models:
        counts = (f"{model['streams']:,}", f"{model['events']:,}")
        table.add_row(model["id"], model["name"] or "", *counts)
    _print_list(table, len(models), total, "models")


def _print_list(table: Any, shown: int, total: int, noun: str) -> None:
    """Print a table, and say how many more entries there are."""
    if shown:
        make_console().print(table)
    if not total:
        echo(f"no {noun} here yet", err=True)
    elif total > shown:
        echo(f"{total - shown:,} more: --limit 0 lists all", err=True)


@click.command("get")
@click.argument("stream_id")
@_at_option("As of this event of the stream, not of its tip.")
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
        print_json(as_dag_json(document.content))


@click.command("new")
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
    show_document(ceramic.create(model, content), as_json)


@click.command("update")
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
    show_document(ceramic.update(stream_id, content, patch=patch, at=at), as_json, tip=True)


@click.command("merge")
@click.argument("stream_id")
@click.option(
    "--content",
    type=JsonObject(),
    metavar="JSON",
    help="What the merge leads to, instead of what the branches lead to together; @FILE, or -.",
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


@click.command("new")
@click.argument("definition", type=JsonObject())
@writer_options
@json_option
def new_model(definition: dict[str, Any], ceramic: Ceramic, as_json: bool) -> None:
    """Create a model from its DEFINITION, and print its StreamID.

    DEFINITION is a JSON object, @FILE, or - for standard input: version, name, schema,
    accountRelation and so on, see docs/api.md. What is missing and has a default is added: version
    2.0, an account relation of the type list, and no interface.

    \b
    Example:
      recon-node model new --key my.key \\
        '{"name": "Post", "schema": {"properties": {"title": {"type": "string"}}}}'
    """
    show_document(ceramic.create_model(with_defaults(definition)), as_json)


def _proposal_facts(proposal: MergeProposal) -> dict[str, Any]:
    def values(conflict: Conflict) -> dict[str, Any]:
        return {str(cid): as_dag_json(value) for cid, value in conflict.values.items()}

    return {
        "prev": _texts(proposal.prevs),
        "content": as_dag_json(proposal.content),
        "patch": as_dag_json(proposal.patch),
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
                value = json.dumps(as_dag_json(conflict.values[prev]), ensure_ascii=False)
            lines.append(f"    {prev}: {value}")
    lines.append("Decide with --prefer CID or --content JSON.")
    return "\n".join(lines)


def show_document(document: Document, as_json: bool, *, tip: bool = False) -> None:
    """Print the StreamID of a document, or the CID of its tip; as JSON, more of it."""
    facts = {
        "id": str(document.id),
        "event": str(document.event),
        "controller": document.controller,
        "content": as_dag_json(document.content) if as_json else None,
        "metadata": dict(document.metadata),
        "open_tips": _texts(document.open_tips),
    }
    print_result(facts, str(document.event if tip else document.id), as_json=as_json)


@click.group()
def stream() -> None:
    """List, draw, read, create, change, merge and anchor streams."""


for command in (list_streams, get_stream, new_stream, update_stream, merge_stream, anchor_stream):
    stream.add_command(command)


@stream.command("show")
@click.argument("stream_id")
@node_options
@drawing_options
@click.option("--full", is_flag=True, help="Show the full CIDs of events.")
def show(stream_id: str, node: Connection, drawing: Drawing, full: bool) -> None:
    """Draw the events of the stream STREAM_ID that a node has, the newest first.

    STREAM_ID is a StreamID (k...), with or without ceramic:// before it, or the CID of the stream's
    init event. The picture marks the tip (CIP-145), anchored events, and pruned branches; the text
    below it explains how the tip was chosen, and how to merge a stream that has diverged. Events
    that wait for others, or for the lookup of an anchor, are shown but do not count. Neither do
    events whose capability has expired, unless they were anchored before.

    \b
    Examples:
      recon-node stream show kjzl6kcym7w8y7...
      recon-node stream show bagcqcera... --all --limit 0 --svg stream.svg
    """
    bare = stream_id.removeprefix("ceramic://")
    if not bare or "/" in bare:
        raise CommandError(f"{stream_id!r} is not a StreamID (k...) or a CID")
    answer = node.request("GET", f"/ceramic/streams/{bare}/events")
    held = understood(node, answer, _Held)
    try:
        events = list(_held_events(held["events"]))
        drawn = stream_picture(f"Stream {held['id']}", events, int(time.time()), full=full)
    except (IpldError, ValueError) as error:  # `StreamShapeError`, too
        raise CommandError(f"the node's events are not one complete stream: {error}") from None
    show_picture(drawn.picture, drawing, {**answer, **_describe(drawn)})


class _HeldEvent(TypedDict):
    cid: str
    kind: Literal["init", "data", "time"]
    prev: list[str]
    height: int
    state: Progress
    time: int | None
    chain_id: str | None
    expires: int | None
    fault: str | None
    copy_of: str | None
    rank: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")]


class _Held(TypedDict):
    id: str
    events: list[_HeldEvent]


def _held_events(entries: list[_HeldEvent]) -> Iterator[HeldEvent]:
    """Yield the events of the API's JSON, without further copies of a statement."""
    shown = {entry["cid"]: entry["copy_of"] or entry["cid"] for entry in entries}
    for entry in entries:
        if entry["copy_of"] is None:
            prevs = dict.fromkeys(shown.get(prev, prev) for prev in entry["prev"])
            shape = EventShape(
                id=CID.parse(entry["cid"]),
                kind=entry["kind"],
                prevs=tuple(map(CID.parse, prevs)),
                time=entry["time"],
                valid=entry["fault"] is None,
                expires=entry["expires"],
                rank=bytes.fromhex(entry["rank"]),
            )
            yield HeldEvent(shape, entry["height"], entry["state"], entry["chain_id"])


def _describe(drawn: StreamPicture) -> dict[str, Any]:
    tip = drawn.tip
    if tip is None:
        return {"tip": None}
    decisions = [
        {"rule": why.rule.value, "winner": str(why.winner), "rivals": _texts(why.rivals)}
        for why in tip.reasons
    ]
    return {
        "tip": str(tip.event),
        "data_tip": _texts(tip.data_tip),
        "anchored_at": _texts(tip.anchored_at),
        "candidates": _texts(tip.candidates),
        "pruned": _texts(tip.pruned),
        "diverged": tip.diverged,
        "decisions": decisions,
        "merge": _texts(drawn.merge),
    }


def _texts(ids: Iterable[object]) -> list[str]:
    return list(map(str, ids))


@click.group()
def model() -> None:
    """List and create models, and write Python types of their documents."""


@click.command("codegen")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write to this file, instead of standard output.",
)
@node_options
def codegen(models: tuple[str, ...], out: Path | None, node: Connection) -> None:
    """Write Python types of the documents of each MODEL, a StreamID.

    They are TypedDicts, for mypy and pyright; they need only the standard library. The models that
    these relate to, or implement, are written, too. The same models give the same text.

    \b
    Example:
      recon-node model codegen kjzl6hvf... --out blog_models.py
    """
    from recon_node.client.codegen import read_models, typed_dicts

    with client_of(node) as ceramic:
        code = typed_dicts(read_models(ceramic, models))
    if out is None:
        echo(code.removesuffix("\n"), lines=True)
    else:
        write_file(out, code.encode())


for command in (codegen, list_models, new_model):
    model.add_command(command)
