"""The classic SSB feed: the tangle of one author, a chain with every link signed.

Theory of operation (SIP "Tangles", "Classic feed"; the Scuttlebutt Protocol Guide, "Feeds"). The
message with sequence 1 is the root; each later one names the message before it. An author signs the
JSON text of a message without the signature, indented by two spaces as by JavaScript's
`JSON.stringify(value, null, 2)`. The message's id is the sha2-256 of the text with the signature,
of which each UTF-16 code unit contributes its low byte (a quirk of the first implementation that
all others must share).

The feed of a set of messages is the longest unambiguous prefix of the chain: it ends before the
first gap, and before the first sequence number for which the author signed two messages (a fork).

A message is what JavaScript reads from its JSON and writes again: keys that look like array indexes
come first, numbers are doubles, those beyond them (and NaN) are null, and half a surrogate pair is
escaped. The rules are those of the reference, ssb-validate (github.com/ssbc/ssb-validate), which
looks at the timestamp of the first message alone; but a `previous` in an array, which JavaScript
takes for equal to the text, is refused. Networks of their own sign with a key (an HMAC) that both
writer and reader must know.
"""

import base64
import binascii
import hmac
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, Final

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from recon_node.ipld.dag_json import number_text

_KEY_SUFFIX: Final = ".ed25519"
_SIGNATURE_SUFFIX: Final = ".sig.ed25519"
_FIELDS: Final = ("previous", "author", "sequence", "timestamp", "hash", "content", "signature")
# Early clients swapped these two; both orders are valid.
_FIELDS_SWAPPED: Final = ("previous", "sequence", "author", *_FIELDS[3:])
Value = dict[str, Any]
"""A message as JSON decodes it: the order of its keys matters."""

_MAX_UNITS: Final = 8192
"""UTF-16 code units of a message's text."""
_UNIT: Final = 2
"""Bytes of a UTF-16 code unit."""
_INDENT: Final = "  "
_KEY_SIZE: Final = 32
"""Bytes of a public key, and of the key of a network of its own."""
_BASE64: Final = (
    "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/](?:[AQgw]==|[A-Za-z0-9+/][AEIMQUYcgkosw048]=))?"
)
"""Canonical base64."""
_PRIVATE: Final = re.compile(_BASE64 + r"\.box[^\n\r\u2028\u2029]*")
"""The content of a message that only its recipients can read."""
_TYPE_UNITS: Final = range(3, 53)
"""UTF-16 code units of a content's type."""
_SEQUENCES: Final = 2**31
_INDEX: Final = re.compile("0|[1-9][0-9]{0,9}")
_LARGEST_INDEX: Final = 2**32 - 2
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class FeedRule(Enum):
    """The rule that keeps a message out of its author's feed."""

    FIELDS = "a message has the fields " + ", ".join(_FIELDS) + ", each of its type"
    SIZE = f"the text of a message has at most {_MAX_UNITS} UTF-16 code units"
    CONTENT = (
        "the content of a message is base64 with '.box' behind it, or an object with a type of "
        f"{_TYPE_UNITS[0]} to {_TYPE_UNITS[-1]} UTF-16 code units"
    )
    SIGNATURE = "a message must be signed by the author of the feed"
    PREVIOUS = "a message names the message before it as previous; the first one has no previous"
    FORK = "an author signs one message for each sequence number"
    GAP = "all messages before it must be here"


@dataclass(frozen=True, slots=True)
class ClassicFeed:
    """The ids of a feed's messages in order, and why other messages of the author are left out."""

    author: str
    order: tuple[str, ...]
    excluded: Mapping[str, FeedRule]

    @property
    def tip(self) -> str | None:
        """The latest message: `previous` of the next one."""
        return self.order[-1] if self.order else None


def classic_feed(
    messages: Iterable[Value], author: str, network_key: bytes | None = None
) -> ClassicFeed:
    """Extract the feed of an author ("@...=.ed25519") from any messages, decoded from JSON.

    `network_key` is the key (32 bytes) of a network whose messages are signed under an HMAC.

    Raises:
        ValueError: `author` is not an Ed25519 identity.
    """
    key = _verify_key(author)
    excluded: dict[str, FeedRule] = {}
    by_sequence: defaultdict[int, dict[str, Value]] = defaultdict(dict)
    for message in messages:
        if message.get("author") != author:
            continue
        fault, id_ = _fault(message, key, network_key), message_id(message)
        if fault is None:
            by_sequence[message["sequence"]][id_] = message
        else:
            excluded[id_] = fault
    order: list[str] = []
    for sequence in sorted(by_sequence):
        fault = _misplaced(by_sequence[sequence], sequence, order)
        if fault is None:
            order.extend(by_sequence[sequence])
        else:
            excluded.update(dict.fromkeys(by_sequence[sequence], fault))
    return ClassicFeed(author, tuple(order), excluded)


def message_id(message: Value) -> str:
    """Return the id of a message: "%...=.sha256"."""
    low_bytes = _text(message).encode("utf-16-le", "surrogatepass")[::_UNIT]
    return f"%{base64.b64encode(sha256(low_bytes).digest()).decode()}.sha256"


def signing_input(message: Value) -> bytes:
    """Return what the author of a message signs: its text without the signature."""
    unsigned = {name: value for name, value in message.items() if name != "signature"}
    return _text(unsigned).encode("utf-8", "surrogatepass")


def parse_network_key(text: str) -> bytes:
    """Read the key of a network of its own: 32 bytes in base64.

    Raises:
        ValueError: it is something else.
    """
    key = _decode(text)
    if len(key) != _KEY_SIZE:
        raise ValueError(f"a key of a network has {_KEY_SIZE} bytes, not {len(key)}")
    return key


def _fault(message: Value, key: VerifyKey, network_key: bytes | None) -> FeedRule | None:
    """What is wrong with a message alone."""
    if not _is_well_formed(message):
        return FeedRule.FIELDS
    if not _is_content(message["content"]):
        return FeedRule.CONTENT
    if _units(_text(message)) > _MAX_UNITS:
        return FeedRule.SIZE
    try:
        signature = _decode(message["signature"].removesuffix(_SIGNATURE_SUFFIX))
        signed = signing_input(message)
        if network_key is not None:
            signed = hmac.digest(network_key, signed, "sha512")[:_KEY_SIZE]
        key.verify(signed, signature)
    except (BadSignatureError, ValueError):
        return FeedRule.SIGNATURE
    return None


def _misplaced(rivals: Mapping[str, Value], sequence: int, order: Sequence[str]) -> FeedRule | None:
    """What is wrong with the messages of one sequence number, after those in `order`."""
    if sequence != len(order) + 1:
        return FeedRule.GAP
    if len(rivals) > 1:
        return FeedRule.FORK
    [message] = rivals.values()
    if message["previous"] != (order[-1] if order else None):
        return FeedRule.PREVIOUS
    return None


def _is_well_formed(message: Value) -> bool:
    if tuple(message) not in (_FIELDS, _FIELDS_SWAPPED):
        return False
    sequence, signature = message["sequence"], message["signature"]
    return (
        isinstance(message["previous"], str | None)
        and type(sequence) in (int, float)
        and -_SEQUENCES <= sequence < _SEQUENCES
        and sequence == math.floor(sequence)  # a whole number, for JavaScript: 1.0 is 1
        and (type(message["timestamp"]) in (int, float) or sequence != 1)
        and message["hash"] == "sha256"
        and isinstance(signature, str)
        and signature.endswith(_SIGNATURE_SUFFIX)
    )


def _is_content(content: Any) -> bool:
    if isinstance(content, str):
        return _PRIVATE.fullmatch(content) is not None
    type_ = content.get("type") if isinstance(content, dict) else None
    return isinstance(type_, str) and _units(type_) in _TYPE_UNITS


def _units(text: str) -> int:
    """The number of a text's UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // _UNIT


def _verify_key(author: str) -> VerifyKey:
    if author.startswith("@") and author.endswith(_KEY_SUFFIX):
        with suppress(ValueError):
            return VerifyKey(_decode(author.removeprefix("@").removesuffix(_KEY_SUFFIX)))
    expected = f"expected '@' + base64 key + '{_KEY_SUFFIX}'"
    raise ValueError(f"{author!r} is not an SSB identity: {expected}")


def _decode(text: str) -> bytes:
    """Decode canonical base64."""
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if base64.b64encode(raw).decode() != text:
        raise ValueError(f"{text[:50]!r} is not canonical base64")
    return raw


def _text(value: Any) -> str:
    """`JSON.stringify(value, null, 2)`; not recursive, since a message may be deeply nested."""
    out: list[str] = []
    # What is left to write, in reverse: text, or a value and its depth.
    left: list[str | tuple[Any, int]] = [(value, 0)]
    while left:
        item = left.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        value, depth = item
        if isinstance(value, dict | list) and value:
            left.extend(reversed(_parts(value, depth)))
        elif type(value) in (int, float):
            out.append(_number(value))
        else:
            out.append(_quoted(value))
    return "".join(out)


def _parts(value: dict[str, Any] | list[Any], depth: int) -> list[str | tuple[Any, int]]:
    """The parts of a map or list that is not empty."""
    is_map = isinstance(value, dict)
    margin = "\n" + _INDENT * (depth + 1)
    parts: list[str | tuple[Any, int]] = ["{" if is_map else "["]
    for number, member in enumerate(_keys(value) if isinstance(value, dict) else value):
        parts.append("," + margin if number else margin)
        if isinstance(value, dict):
            parts += [_quoted(member) + ": ", (value[member], depth + 1)]
        else:
            parts.append((member, depth + 1))
    return [*parts, "\n" + _INDENT * depth, "}" if is_map else "]"]


def _keys(value: dict[str, Any]) -> list[str]:
    """The keys in JavaScript's order."""
    indexes = {key for key in value if _INDEX.fullmatch(key) and int(key) <= _LARGEST_INDEX}
    return [*sorted(indexes, key=int), *(key for key in value if key not in indexes)]


def _number(value: float) -> str:
    try:
        double = float(value)
    except OverflowError:
        double = math.inf
    return number_text(double) if math.isfinite(double) else "null"


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _HALF_PAIR.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
