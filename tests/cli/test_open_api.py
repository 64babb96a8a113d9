"""A node warns when others can reach its API and nothing asks them for a token."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from recon_node.api import Access, open_listener
from recon_node.node import warn_if_open


@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "0123456789abcdef", False),
    ],
)
async def test_an_api_for_everyone_is_warned_of(host: str, token: str | None, warned: bool) -> None:
    listener = await open_listener(host, 0)
    with capture_logs() as logs:
        warn_if_open(listener, Access(token=token))
    listener.close()
    assert [line["log_level"] for line in logs] == ["warning"] * warned
    assert all("set a token" in line["event"] for line in logs)
