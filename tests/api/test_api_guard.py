"""The token, the rate, and web pages of other origins."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openapi_check import DOCUMENT, check_answer

from recon_node.api import Access, Services, create_app
from recon_node.api.app import ENDPOINTS
from recon_node.api.middleware.guard import client_of
from recon_node.store import Store

Events = list[dict[str, str]]
TOKEN = "0123456789abcdef"
OPEN = {"/", "/docs", "/openapi.json", "/ceramic/liveness"}
OPEN |= {"/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/static/folder/file"}
OPEN_BY_POST = {"/api/v0/requests"}  # it asks for the token by itself, if it is not a known client
READ_BY_POST = {"/ceramic/version", "/ceramic/feed/arrow"} | {
    f"/api/v0/{each}"
    for each in (
        "id",
        "version",
        "swarm/peers",
        "block/get",
        "block/stat",
        "dag/get",
        "dag/resolve",
    )
}


@asynccontextmanager
async def client(
    services: Services, host: str = "127.0.0.1", **access: Any
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(dataclasses.replace(services, access=Access(**access)))
    transport = httpx.ASGITransport(app, client=(host, 1234))
    hooks = {"response": [check_answer]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://node", event_hooks=hooks
    ) as api:
        yield api


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token_for", ["writes", "all"])
async def test_which_requests_need_the_token(services: Services, token_for: str) -> None:
    async with client(services, token=TOKEN, token_for=token_for) as api:
        for endpoint in ENDPOINTS:
            method, template = endpoint.method, endpoint.path
            path = template.replace("{", "").replace("}", "")
            writes = method == "DELETE" or (
                method == "POST" and path not in READ_BY_POST | OPEN_BY_POST
            )
            is_open = path in (OPEN_BY_POST if method == "POST" else OPEN)
            needed = writes or (token_for == "all" and not is_open)
            operation = DOCUMENT["paths"][template][method.lower()]
            assert ("Needs the token" in operation.get("description", "")) == writes
            refused = await api.request(method, path)
            assert (refused.status_code == 401) == needed, (method, path)
            if needed:
                assert refused.headers["www-authenticate"] == 'Bearer realm="recon-node"'
                assert "Authorization: Bearer TOKEN" in refused.text
            assert (await api.request(method, path, headers=bearer(TOKEN))).status_code != 401
            assert (await api.options(path)).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
async def test_a_wrong_token_is_refused_and_nothing_is_done(
    services: Services, store: Store, sample: Events, authorization: str
) -> None:
    async with client(services, token=TOKEN) as api:
        body = {"data": sample[0]["car"]}
        headers = {"authorization": authorization}
        answer = await api.post("/ceramic/events", json=body, headers=headers)
        assert (answer.status_code, store.head) == (401, 0)
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        right = await api.post(
            "/ceramic/events", json=body, headers={"authorization": f"bearer  {TOKEN}"}
        )
        assert (right.status_code, store.head) == (204, 1)


def test_the_token_is_in_no_text_of_the_settings() -> None:
    assert TOKEN not in repr(Access(token=TOKEN))


async def test_who_asks_too_often_waits(services: Services, autojump_clock: Any) -> None:
    import trio

    async with client(services, "192.0.2.1", rate_limit=2.0) as api:
        codes = [(await api.get("/ceramic/version")).status_code for _ in range(6)]
        assert codes == [200, 200, 200, 200, 429, 429]
        refused = await api.get("/ceramic/version")
        assert refused.headers["retry-after"] == "1"
        await trio.sleep(float(refused.headers["retry-after"]))
        codes = [(await api.get("/ceramic/version")).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
    async with client(services, rate_limit=2.0) as api:  # this machine's own programs
        assert {(await api.get("/ceramic/version")).status_code for _ in range(20)} == {200}


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("127.0.0.1", None),
        ("127.8.8.8", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        (None, None),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/56"),
        ("fe80::1%eth0", "fe80::/56"),
        ("unknown", "unknown"),
    ],
)
def test_who_a_client_is(host: str | None, client: str | None) -> None:
    assert client_of(host) == client


@pytest.mark.parametrize("host", ["127.0.0.1:5101", "[::1]:5101", "localhost:5101", "192.0.2.7"])
async def test_the_nodes_own_pages_may_change_it(
    services: Services, sample: Events, host: str
) -> None:
    headers = {"host": host, "origin": f"http://{host}"}
    async with client(services) as api:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]}, headers=headers)
        assert answer.status_code == 204


@pytest.mark.parametrize(
    ("origin", "allowed", "status"),
    [
        ("https://evil.example", (), 403),
        ("null", (), 403),
        ("http://node.evil.example", (), 403),
        ("http://node", (), 403),  # by DNS rebinding any page's name may lead here
        ("http://node", ("http://node",), 204),
        ("http://[", (), 403),
        ("https://app.example", ("https://app.example",), 204),
        ("https://evil.example", ("https://app.example",), 403),
        ("https://any.example", ("*",), 204),
        (None, (), 204),
    ],
)
async def test_a_web_page_changes_nothing_unless_it_may(
    services: Services,
    store: Store,
    sample: Events,
    origin: str | None,
    allowed: tuple[str, ...],
    status: int,
) -> None:
    """A browser sends such a POST without asking: its content type is one of forms."""
    headers = {"content-type": "text/plain"} | ({"origin": origin} if origin else {})
    async with client(services, cors_allow_origins=allowed) as api:
        body = json.dumps({"data": sample[0]["car"]})
        answer = await api.post("/ceramic/events", content=body, headers=headers)
        assert answer.status_code == status
        assert store.head == (status == 204)
        assert (await api.get("/ceramic/version", headers=headers)).status_code == 200


async def test_a_browser_s_preflight_needs_no_token(services: Services) -> None:
    origin = "https://app.example"
    async with client(services, token=TOKEN, cors_allow_origins=(origin,)) as api:
        ask = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        answer = await api.options("/ceramic/events", headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        refused = await api.post("/ceramic/events", headers={"origin": origin})
        assert refused.status_code == 401  # and the page can see that
        assert refused.headers["access-control-allow-origin"] == origin
