"""Hints for a query that finds nothing: mistakes that are valid SQL.

CIDs and StreamIDs are bytes in the tables, but people write them as text. Comparing bytes with text
is valid SQL, but they are never equal; so is reading JSON from bytes, but it finds nothing.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ipld import CID, CidError

_NAME: Final = r'(?:"?\w+"?\s*\.\s*)?("?(?:event_cid|stream_cid)"?|dimensions\s*\[[^\]]*\])'
_COMPARED: Final = (
    rf"(?<![\w.\"]){_NAME}\s*(?:==?|<>|!=)\s*'(\w+)'",
    rf"(?<![\w.\"]){_NAME}\s+(?:not\s+)?in\s*\(\s*'(\w+)'",
    rf"'(?P<text>\w+)'\s*(?:==?|<>|!=)\s*{_NAME}",
)
_JSON_IN_BYTES: Final = re.compile(r"\bdata\"?\s*->>?\s*('[^']*')", re.IGNORECASE)
# The query converts the column itself.
_DECODED: Final = re.compile(r"\bdecode\s*\(|\bas\s+\"?data\b", re.IGNORECASE)


class Findings:
    """Observes the rows of a result with so many columns while they are read."""

    def __init__(self, columns: int) -> None:
        self._rows = 0
        self._something = False
        self._empty = set(range(columns))

    def noted(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Pass the rows on."""
        for row in rows:
            self._rows += 1
            if self._empty:
                self._empty = {i for i in self._empty if row[i] is None}
            if not self._something:
                self._something = any(value is not None and value != 0 for value in row)
            yield row

    @property
    def nothing(self) -> bool:
        """Whether there was no row, or only one of NULLs and zeros, such as a count or a sum."""
        return self._rows == 0 or (self._rows == 1 and not self._something)

    @property
    def no_values(self) -> bool:
        """Whether there was no row, or a column was always NULL."""
        return self._rows == 0 or bool(self._empty)


def hints(sql: str, found: Findings) -> Sequence[str]:
    """Return the hints for a query with these findings."""
    texts = _bytes_as_text(sql) if found.nothing else []
    json = _JSON_IN_BYTES.search(sql)
    if json and found.no_values and not _DECODED.search(sql):
        texts.append(f"data is bytes: use decode(data)->{json[1]}")
    return texts


def _bytes_as_text(sql: str) -> list[str]:
    """Find binary columns that are compared with CIDs and StreamIDs as text."""
    told = []
    for pattern in _COMPARED:
        for found in re.finditer(pattern, sql, re.IGNORECASE):
            text = found["text"] if "text" in found.re.groupindex else found[2]
            name = found[2] if "text" in found.re.groupindex else found[1]
            if function := _function(text, name):
                told.append(f"{name} is bytes, not text: compare it with {function}('{text}')")
    return list(dict.fromkeys(told))


def _function(text: str, name: str) -> str | None:
    """Return the function that turns text into a column's bytes; None if it is not an id."""
    try:
        StreamId.parse(text)
    except StreamIdError:
        pass
    else:
        return "from_stream_id" if name.startswith("dimensions") else "stream_cid_of"
    try:
        CID.parse(text)
    except CidError:
        return None
    return "from_cid"
