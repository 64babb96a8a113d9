"""What goes wrong on this floor. All of it is bad input, hence `ValueError`."""


class CeramicError(ValueError):
    """Something that is not what Ceramic's rules ask for. The message is for people."""


class NetworkError(CeramicError):
    """Not the name or id of a Ceramic network."""


class StreamIdError(CeramicError):
    """Not a StreamID."""


class EventIdError(CeramicError):
    """Not an EventID of CIP-124."""


class DidError(CeramicError):
    """Not a DID, or not one whose key can be read from it."""


class InvalidEventError(CeramicError):
    """Not a Ceramic event that this node accepts."""


class InvalidSignatureError(InvalidEventError):
    """The event is not signed by whom it must be signed by."""


class UnsupportedSignatureError(InvalidEventError):
    """A kind of signature that this node cannot check, and so does not accept."""


class ChainAnswerError(CeramicError):
    """What a blockchain's provider answered cannot be right; nothing is known of the event."""
