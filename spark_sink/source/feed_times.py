"""Positions in a node's feed by the time of delivery."""

from dataclasses import dataclass

import httpx

from spark_sink.errors import FeedRefusedError, FeedUnreachableError
from spark_sink.source.feed import Feed, reason_of
from spark_sink.source.transfer import Retry


@dataclass(frozen=True, slots=True)
class FeedTime:
    """The events up to `position` of the log `epoch` were delivered before a time, others later.

    `is_final` tells whether that stays so: no further event will be delivered before the time.
    """

    epoch: str
    position: int
    is_final: bool


def find_time(feed: Feed, moment: int) -> FeedTime:
    """Return up to which position events were delivered before a time in Unix milliseconds.

    Raises:
        FeedUnreachableError: no answer within the feed's `patience`.
        FeedRefusedError: the node did not note when it delivered events around that time, or
            something answers, but not as a feed does.
    """
    retry = Retry(feed.patience)
    while True:
        try:
            return _find_once(feed, moment)
        except FeedUnreachableError as error:
            retry.wait(error)


def _find_once(feed: Feed, moment: int) -> FeedTime:
    response = feed.ask("/ceramic/feed/position", time=moment)
    if response.status_code == httpx.codes.BAD_REQUEST:
        raise FeedRefusedError(f"the node at {feed.url} answered 400: {reason_of(response)}")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise FeedRefusedError(
            f"the node at {feed.url} does not know when it delivered events: use a node and a "
            "pipeline of the same version, or positions in place of times"
        )
    feed.check_status(response)
    try:
        body = response.json()
        return FeedTime(str(body["epoch"]), int(body["position"]), body["final"] is True)
    except (ValueError, KeyError, TypeError):
        raise FeedRefusedError(
            f"{feed.url}/ceramic/feed/position is not of a recon-node: is the URL right?"
        ) from None
