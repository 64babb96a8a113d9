"""What goes wrong on this floor. No message holds a URL beyond its host: URLs hold API keys."""

from __future__ import annotations


class ChainError(Exception):
    """The chain side cannot work as it is set up. The message is for people."""


class NoAnswerError(Exception):
    """A question that got no answer. It says nothing about the event, and passes."""


class EndpointError(NoAnswerError):
    """The endpoint does not answer, or not as one: no question would get an answer now."""


class AnswerError(NoAnswerError):
    """The endpoint works, but has no usable answer to this question."""


class CoolingError(NoAnswerError):
    """Nobody was asked: all endpoints have failed lately and are left alone for a while."""

    def __init__(self, message: str, until: float) -> None:
        super().__init__(message)
        self.until = until
        """On trio's clock."""
