"""Attacks by events whose meaning takes more work or memory than their bytes."""

from __future__ import annotations

import time
from typing import Any, Final

from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field, chained, document_id, make_model
from benchmarks.attack.measuring import MIB
from recon_node.ceramic import Event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from recon_node.streams import select_tip
from recon_node.streams.graph import EventShape

_DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
_MAX_ANSWER: Final = 64 * MIB
_ANY_MEMBERS: Final = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "patternProperties": {"": {}},
}


def repeated_fields(count: int = 3000) -> tuple[list[Event], str]:
    """A model of the relation `set` that names one field many times, and a long document of it."""
    key = SigningKey.generate()
    relation = {"type": "set", "fields": ["a"] * count}
    model, model_id = make_model(key, accountRelation=relation)
    init = deterministic_init_event(controller_of(key), model_id, unique=b"x")
    patch = [{"op": "add", "path": "/a", "value": "y" * 900_000}]
    return [model, init, data_event(key, init, [init.cid], patch)], document_id(init)


def dear_schema(count: int = 3900) -> tuple[list[Event], str]:
    """A schema of as many dear checks of one text as it can hold, a long text, and small updates,
    each of which has it checked again."""
    key = SigningKey.generate()
    text = {"anyOf": [*[{"format": "idn-hostname"}] * count, True]}
    schema = {
        "$schema": _DRAFT_7,
        "type": "object",
        "properties": {"a": text, "b": {}},
        "additionalProperties": False,
    }
    model, model_id = make_model(key, schema=schema)
    init = init_event(key, model_id, {"a": "1." * 450_000, "b": 0}, unique=b"u")
    patches = ({"op": "replace", "path": "/b", "value": number} for number in range(20))
    return [model, *chained(key, init, patches)], document_id(init)


def dear_numbers(count: int = 2000) -> tuple[list[Event], str]:
    """A schema that divides and compares fractions of 300 digits, and asks for unique integers that
    are alike as floats; and small updates, each of which has all of them checked again."""
    key = SigningKey.generate()
    tiny = [{"not": {keyword: 5e-324}} for keyword in ("multipleOf", "const")] * 20
    schema = {
        "type": "object",
        "properties": {
            "a": {"items": {"allOf": tiny}},
            "b": {},
            "c": {"uniqueItems": True},
        },
        "additionalProperties": False,
    }
    model, model_id = make_model(key, schema=schema)
    content = {
        "a": [1.7e308 / number for number in range(1, count)],
        "b": 0,
        "c": [2**64 - number for number in range(1, 10 * count)],
    }
    init = init_event(key, model_id, content, unique=b"u")
    patches = ({"op": "add", "path": f"/{'abc'[n % 3]}/-", "value": n} for n in range(20))
    return [model, *chained(key, init, patches)], document_id(init)


def many_conflicts(members: int = 6000, name: int = 240_000) -> tuple[list[Event], str]:
    """Two branches that conflict in many members below one long name."""
    key = SigningKey.generate()
    model, model_id = make_model(key, schema=_ANY_MEMBERS)
    long = "n" * name
    content = {long: {f"{member:x}": 0 for member in range(members)}}
    init = init_event(key, model_id, content, unique=b"u")
    branches = []
    for value in (1, 2):
        members_now = {f"{member:x}": value for member in range(members)}
        patch = [{"op": "replace", "path": f"/{long}", "value": members_now}]
        branches.append(data_event(key, init, [init.cid], patch))
    return [model, init, *branches], document_id(init)


def _ask(here: Field, *paths: str) -> None:
    """Ask for what costs the node work, and note how large and how late the answer is."""
    for path in paths:
        started = time.monotonic()
        answer = here.get(path, timeout=120)
        lasted = time.monotonic() - started
        what = path.partition("?")[0].rpartition("/")[2][:14]
        here.at_most(f"answer of {what}", lasted, 20.0)
        size = len(answer.content)
        here.expect(f"{what} within 64 MiB", True, size <= _MAX_ANSWER)
        here.expect(f"{what} without an error", True, answer.status_code < 500)


def _read(here: Field, made: tuple[list[Event], str], *ends: str) -> None:
    events, stream = made
    with here.attacked():
        here.add(events)
        here.await_event(events[-1])
        _ask(here, *(f"/ceramic/streams/{stream}{end}" for end in ("", *ends)))


@attack(short=True)
def repeated_unique_fields(here: Field) -> None:
    """A text of 0.9 MB joined 3,000 times for one `GET` of a state takes 5 GB."""
    _read(here, repeated_fields())


@attack(short=True)
def dear_schemas(here: Field) -> None:
    """3,900 checks of a text of 0.9 MB, at each update of 540 bytes, hold the interpreter."""
    _read(here, dear_schema(), "/picture")


@attack()
def dear_fractions(here: Field) -> None:
    """To compare fractions exactly takes a hundred times as long as to compare integers."""
    _read(here, dear_numbers(), "/picture")


@attack(short=True)
def merges(here: Field) -> None:
    """Each of 6,000 conflicts repeats a name of 240 kB in a proposal to merge."""
    _read(here, many_conflicts(), "/merge", "/picture")


@attack()
def long_names(here: Field) -> None:
    """Lists repeat the names of models, and 40 of 0.9 MB make answers of 72 MB."""
    key = SigningKey.generate()
    with here.attacked():
        for number in range(40):
            model, model_id = make_model(key, name="n" * 900_000 + str(number))
            document = init_event(key, model_id, {"a": "x"}, unique=b"u")
            here.add([model, document])
        here.await_event(document)
        _ask(
            here,
            "/ceramic/models?limit=1000",
            "/ceramic/streams?limit=1000",
            "/ceramic/search?q=nnnnnnnnnnnn",
            "/metrics",
        )


@attack()
def shapes_of_streams(here: Field) -> None:
    """The choice of a tip takes quadratic time in some shape of 20,000 events."""
    for name, shape in _shapes(20_000).items():
        started = time.process_time()
        select_tip(shape)
        here.at_most(f"tip of {name} (CPU)", time.process_time() - started, 2.0)


def _shapes(count: int) -> dict[str, list[EventShape[Any]]]:
    def event(number: int, kind: str, prev: tuple[int, ...] = (), at: int | None = None) -> Any:
        return EventShape(number, kind, prev, at)  # type: ignore[arg-type]

    init = event(0, "init")
    star = [init, *(event(number, "data", (0,)) for number in range(1, count))]
    comb = [init]
    for number in range(1, count):
        comb.append(event(number, "data", (number - 1 if number % 2 else max(0, number - 2),)))
    ladder = [init, event(1, "data", (0,)), event(2, "data", (0,))]
    while len(ladder) < count:
        at = len(ladder)
        ladder += [
            event(at, "data", (at - 1, at - 2)),
            event(at + 1, "data", (at - 2, at - 1)),
        ]
    trunk = count - 4400
    fan = [init, *(event(number, "data", (number - 1,)) for number in range(1, trunk))]
    branches = range(trunk, trunk + 2048)
    fan += [event(number, "data", (trunk - 1,)) for number in branches]
    fan += [
        event(trunk + 2048 + at, "time", (branch,), 1000 + at) for at, branch in enumerate(branches)
    ]
    end = len(fan)
    fan += [event(end + at, "data", tuple(branches[at * 256 : at * 256 + 256])) for at in range(8)]
    fan.append(event(len(fan), "data", tuple(range(end, end + 8))))
    return {"a star": star, "a comb": comb, "a ladder": ladder, "an anchored fan": fan}
