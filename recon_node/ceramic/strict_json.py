"""JSON from strangers: read alike by every node, wherever in the program it is read.

What `json.loads` makes of a text depends on more than the text: how deep it may be nested on how
deep the call stack is at that moment, how long a number may be on the environment. If one process
took an event for good that another one cannot read, nodes would not agree on what there is. So
the bounds are set here, far below those.

Source: RFC 8259, and I-JSON (RFC 7493): no name stands twice in an object.
"""

import json
from typing import Any, Final, NoReturn

MAX_CONTAINERS: Final = 100
"""Opening brackets in a text, those in strings included: real ones have one or two."""


def loads(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; all numbers become `float`.

    Raises:
        ValueError: it is none, an object names a field twice, or it has too many brackets.
    """
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS} objects and arrays")
    return json.loads(
        data.decode(),
        object_pairs_hook=_without_duplicates,
        parse_int=float,  # of any length
        parse_constant=_refuse_constant,
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands in it twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
