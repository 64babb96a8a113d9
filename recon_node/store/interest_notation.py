"""How interests are written, and which ones no event can match.

The notation of settings and commands is a StreamID, or fields with blanks between them::

    kjzl6hvfrbw6c...                                  a model's StreamID: its documents
    kjzl6kcym7w8y...                                  a document's StreamID: this stream alone
    model=kjzl6hvfrbw6c... controller=did:key:z6Mk... the documents of a model and a controller
    stream=k...                                       one stream, of a model or a document
    dag=k...                                          another sort key whose values are bytes
    family=blog                                       and one whose values are text

A stream is a range of keys only together with its sort value and controller. They may be left out
if the init event of the stream is here, which names them: see `Interests.complete`.
"""

from __future__ import annotations

from recon_node.ceramic import METAMODEL, StreamId, StreamIdError, StreamType
from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.header import DEFAULT_SORT_KEY, sort_value_of
from recon_node.ipld import IpldError
from recon_node.store.errors import InvalidInterestError
from recon_node.store.values import Interest


def parse_interest(text: str) -> Interest | StreamId:
    """Read an interest; see the module's text for the notation.

    Returns:
        The interest; a StreamId if only a stream is given, without its model and controller.

    Raises:
        InvalidInterestError: it cannot be read, or does not name a range of keys.
    """
    fields = text.split()
    if len(fields) == 1 and "=" not in text:
        return _parse_stream_id(text)
    named: dict[str, str] = {}
    for field in fields:
        name, separator, value = field.partition("=")
        if not separator or not name or not value:
            raise InvalidInterestError(f"{field[:100]!r} in an interest is not NAME=VALUE")
        if name in named:
            raise InvalidInterestError(f"an interest cannot have two fields {name!r}")
        named[name] = value
    return _from_fields(named)


def format_interest(interest: Interest) -> str:
    """Return the interest as text that `parse_interest` reads."""
    text = f"{interest.sort_key}={interest.sort_value}"
    if interest.controller is not None:
        text += f" controller={interest.controller}"
    if interest.stream_id is not None:
        text += f" stream={interest.stream_id}"
    return text


def is_of_a_document(interest: Interest) -> bool:
    """Return whether its model is really a document, so that no event can ever match."""
    if interest.sort_key != DEFAULT_SORT_KEY:
        return False
    try:
        return StreamId.parse(interest.sort_value).type == StreamType.MODEL_INSTANCE
    except StreamIdError:
        return False


def check_interest(interest: Interest) -> None:
    """Refuse an interest that no event can match.

    Raises:
        InvalidInterestError: its model is a document or no StreamID at all, or its controller is
            not a DID.
    """
    if interest.controller is not None and not is_did(interest.controller):
        raise InvalidInterestError(
            f"the controller {interest.controller[:100]!r} is not a DID such as did:key:z6Mk..."
        )
    if is_of_a_document(interest):
        raise InvalidInterestError(
            f"{interest.sort_value} is the StreamID of a document, not of a model: give the "
            "document's model instead, or the StreamID as the stream that is wanted "
            f"(`recon-node interests add {interest.sort_value}`, or `streamId` alone in the API)"
        )
    if interest.sort_key == DEFAULT_SORT_KEY:
        _check_model(interest.sort_value)


def _check_model(text: str) -> None:
    try:
        StreamId.parse(text)
    except StreamIdError as error:
        raise InvalidInterestError(
            f"the model of an interest is given by its StreamID, but {error}"
        ) from None


def _parse_stream_id(text: str) -> Interest | StreamId:
    """Return what a StreamID alone means: the documents of a model, or one document."""
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError as error:
        raise InvalidInterestError(
            f"{str(error).rstrip('.')}. An interest is a StreamID, or NAME=VALUE fields such as "
            "`model=STREAM_ID controller=DID`"
        ) from None
    if stream_id.type == StreamType.MODEL or stream_id == METAMODEL:
        return Interest(DEFAULT_SORT_KEY, str(stream_id))
    if stream_id.type in (StreamType.MODEL_INSTANCE, StreamType.TILE):
        return stream_id
    raise InvalidInterestError(
        f"{text} is the StreamID of neither a model (stream type {StreamType.MODEL:d}) nor a "
        f"document (stream type {StreamType.MODEL_INSTANCE:d}), but of stream type {stream_id.type}"
    )


def _from_fields(named: dict[str, str]) -> Interest | StreamId:
    controller, stream = named.pop("controller", None), named.pop("stream", None)
    try:
        stream_id = None if stream is None else StreamId.parse(stream)
        if stream_id is not None and not named and controller is None:
            return stream_id
        if len(named) != 1:
            raise InvalidInterestError(
                "an interest needs exactly one sort key with its value, usually "
                "model=STREAM_ID: keys are ordered by it first, so that a controller alone is not "
                "a range of keys"
            )
        [(sort_key, value)] = named.items()
        return Interest(sort_key, _sort_value(sort_key, value), controller, stream_id)
    except (StreamIdError, IpldError) as error:
        raise InvalidInterestError(str(error)) from None


def _sort_value(sort_key: str, text: str) -> str:
    """Return the sort value as EventIDs hash it, however it was written."""
    if sort_key == DEFAULT_SORT_KEY:
        return str(StreamId.parse(text))
    return sort_value_of(sort_key, text)
