"""Strict DAG-CBOR: one encoding for each value, so that a hash names a value.

Source: https://ipld.io/specs/codecs/dag-cbor/spec/. The work is done by `cbrrr` (about 1 µs a
block), with `CID` as its checking link type. When it refuses a block, the `dag-cbor` package
reads the same bytes again, 50 times slower, only to say what is wrong and where; it never admits
anything.

Values: None, bool, int (-2^64 to 2^64 - 1), float (finite), str, bytes, list, dict with str
keys, and `CID` for links.
"""

import re
from itertools import chain
from typing import Any, Final

import cbrrr

from recon_node.ipld.cid import CID, cid_of
from recon_node.ipld.errors import CidError, DagCborError

MAX_DEPTH: Final = 127
"""Levels of nesting, as for ceramic-one (the `serde_ipld_dagcbor` crate). A deeply nested block
costs nothing to make, but whatever walks it recursively (`==`, `repr`, JSON) would crash."""

MAX_EXPLAINED: Final = 16 * 1024
"""Bytes of a refused block that is read again for a better error, which is slow."""
MAX_EXPLANATION: Final = 300
"""Characters of that error."""

_NOT_CONTAINERS: Final = bytes(byte for byte in range(256) if byte >> 5 not in (4, 5))


def encode(value: Any) -> bytes:
    """Encode `value` as DAG-CBOR.

    Raises:
        DagCborError: it holds something that DAG-CBOR cannot represent.
    """
    try:
        return cbrrr.encode_dag_cbor(value, cid_type=CID)
    except (TypeError, ValueError, MemoryError) as error:
        raise DagCborError(f"cannot be written as DAG-CBOR: {error}") from None


def decode(data: bytes, *, is_shallow: bool = False) -> Any:
    """Decode one DAG-CBOR block; links become `CID`.

    `is_shallow` says that it is known not to be nested deeper than `MAX_DEPTH`.

    Raises:
        DagCborError: not strict DAG-CBOR, bytes left over, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value = cbrrr.decode_dag_cbor(data, cid_ctor=cid_of)
    except CidError as error:
        raise DagCborError(f"not strict DAG-CBOR, a link in it is broken: {error}") from None
    except (ValueError, MemoryError) as error:
        raise DagCborError(f"not strict DAG-CBOR: {_explain(data, error)}") from None
    # Every level needs a byte of its own that opens a list or map: with few of them, it is shallow.
    if is_shallow or len(data) <= MAX_DEPTH:
        return value
    if len(data.translate(None, _NOT_CONTAINERS)) > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise DagCborError(f"nested deeper than {MAX_DEPTH} levels")
        maps = [item for item in level if type(item) is dict]
        lists = [item for item in level if type(item) is list]
        level = [*chain.from_iterable(map(dict.values, maps)), *chain.from_iterable(lists)]
        depth += 1


def _explain(data: bytes, error: Exception) -> str:
    if len(data) > MAX_EXPLAINED:
        return str(error)
    try:
        import dag_cbor as reference  # slow to import, and only refused blocks need it
    except ModuleNotFoundError:  # the client alone
        return str(error)

    try:
        reference.decode(data)
    except RecursionError:
        return str(error)
    except Exception as explained:  # its errors have no common base but this
        return _on_one_line(str(explained))
    return str(error)


def _on_one_line(explanation: str) -> str:
    """The reference's drawing of bytes and arrows as one sentence."""
    lines = [line.strip(" \\") for line in explanation.splitlines()]
    words = [line for line in lines if line and not line.startswith(("At byte #", "^"))]
    positions = re.findall(r"At byte #(\d+)", explanation)
    return " ".join(words)[:MAX_EXPLANATION] + (f" (at byte {positions[-1]})" if positions else "")
