"""What a query that finds nothing may have meant: mistakes that SQL knows nothing of.

CIDs and StreamIDs are bytes in the tables and text in everybody's hands. To compare bytes with text
is no error in SQL, they are only never equal; nor is it one to look for JSON in bytes.
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
# Some other way to text: nothing is known of the column then.
_DECODED: Final = re.compile(r"\bdecode\s*\(|\bas\s+\"?data\b", re.IGNORECASE)


class Findings:
    """What there was in an answer of so many columns, noted while its rows are read."""

    def __init__(self, columns: int) -> None:
        self._rows = 0
        self._something = False
        self._empty = set(range(columns))

    def noted(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The rows."""
        for row in rows:
            self._rows += 1
            if self._empty:
                self._empty = {i for i in self._empty if row[i] is None}
            if not self._something:
                self._something = any(value is not None and value != 0 for value in row)
            yield row

    @property
    def nothing(self) -> bool:
        """There was no row, or one of nothing but NULL and 0: a count, or a sum."""
        return self._rows == 0 or (self._rows == 1 and not self._something)

    @property
    def no_values(self) -> bool:
        """There was no row, or a column without a value in any."""
        return self._rows == 0 or bool(self._empty)


def hints(sql: str, found: Findings) -> Sequence[str]:
    """What to tell, of SQL that found this."""
    told = _bytes_as_text(sql) if found.nothing else []
    json = _JSON_IN_BYTES.search(sql)
    if json and found.no_values and not _DECODED.search(sql):
        told.append(f"data is bytes: decode(data)->{json[1]} looks into them")
    return told


def _bytes_as_text(sql: str) -> list[str]:
    """Columns of bytes that are compared with CIDs and StreamIDs as text."""
    told = []
    for pattern in _COMPARED:
        for found in re.finditer(pattern, sql, re.IGNORECASE):
            text = found["text"] if "text" in found.re.groupindex else found[2]
            name = found[2] if "text" in found.re.groupindex else found[1]
            if function := _function(text, name):
                told.append(f"{name} is bytes, not text: compare it with {function}('{text}')")
    return list(dict.fromkeys(told))


def _function(text: str, name: str) -> str | None:
    """What makes the bytes that a column has of a text; None of one that is no identifier."""
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
