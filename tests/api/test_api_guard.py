"""The token, the rate, and web pages of other origins."""

import json

import pytest
import trio
from api_samples import KEY, MODEL, api_of
from openapi_check import DOCUMENT
from support import vectors
from trio.testing import MockClock

from recon_node.api.app import ENDPOINTS
from recon_node.api.endpoint import Services
from recon_node.api.middleware import client_of
from recon_node.api.settings import Access
from recon_node.ceramic.builder import init_event
from recon_node.ipld import multibase

TOKEN = "0123456789abcdef"
OPEN = {"/", "/docs", "/openapi.json", "/ceramic/liveness"}
OPEN |= {"/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/static/folder/file"}
OPEN_BY_POST = {"/api/v0/requests"}  # it asks for the token by itself, if it is not a known client
READ_BY_POST = {"/ceramic/version", "/ceramic/feed/arrow"}
READ_BY_POST |= {f"/api/v0/{path}" for path in ("id", "version", "swarm/peers")}
READ_BY_POST |= {
    f"/api/v0/{path}" for path in ("block/get", "block/stat", "dag/get", "dag/resolve")
}
REQUESTS = vectors.load("api_requests")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token_for", ["writes", "all"])
async def test_which_requests_need_the_token(services: Services, token_for: str) -> None:
    async with api_of(services, access=Access(token=TOKEN, token_for=token_for)) as api:
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


WRONG = (
    "",
    "Bearer",
    "Bearer ",
    f"Basic {TOKEN}",
    TOKEN,
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
)


async def test_a_wrong_token_is_refused_and_nothing_is_done(services, store, sample):
    body = {"data": sample[0]["car"]}
    async with api_of(services, access=Access(token=TOKEN)) as api:
        for wrong in WRONG:
            headers = {"authorization": wrong}
            answer = await api.post("/ceramic/events", json=body, headers=headers)
            assert (answer.status_code, store.head) == (401, 0), wrong
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        right = {"authorization": f"bearer  {TOKEN}"}
        answer = await api.post("/ceramic/events", json=body, headers=right)
        assert (answer.status_code, store.head) == (204, 1)


async def test_who_asks_too_often_waits(services: Services, autojump_clock: MockClock) -> None:
    access = Access(rate_limit=2.0)
    async with api_of(services, "192.0.2.1", access=access) as api:
        codes = [(await api.get("/ceramic/version")).status_code for _ in range(6)]
        assert codes == [200, 200, 200, 200, 429, 429]
        refused = await api.get("/ceramic/version")
        assert refused.headers["retry-after"] == "1"
        await trio.sleep(float(refused.headers["retry-after"]))
        codes = [(await api.get("/ceramic/version")).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
    async with api_of(services, access=access) as api:  # this machine's own programs
        assert {(await api.get("/ceramic/version")).status_code for _ in range(20)} == {200}


@pytest.mark.parametrize(("host", "client"), REQUESTS["clients"])
def test_who_a_client_is(host: str | None, client: str | None) -> None:
    assert client_of(host) == client


async def test_a_web_page_changes_nothing_unless_it_is_the_nodes_own_or_may(services, store):
    """A browser sends such a POST without asking: its content type is one of forms. By DNS
    rebinding, any page's name may lead to the node."""
    for n, (host, origin, allowed, status) in enumerate(REQUESTS["pages"]):
        before = store.head
        headers = {"host": host, "content-type": "text/plain"}
        headers |= {} if origin is None else {"origin": origin}
        async with api_of(services, access=Access(cors_allow_origins=allowed)) as api:
            event = init_event(KEY, MODEL, None, unique=bytes([n]))
            body = json.dumps({"data": multibase.encode(event.car)})
            answer = await api.post("/ceramic/events", content=body, headers=headers)
            assert answer.status_code == status, (host, origin, allowed)
            assert store.head == before + (status == 204)
            answer = await api.get("/ceramic/version", headers=headers)
            assert answer.status_code == 200
            shown_to = answer.headers.get("access-control-allow-origin")
            assert shown_to == (allowed[0] if allowed and status == 204 else None)


async def test_a_browser_s_preflight_needs_no_token(services: Services) -> None:
    origin = "https://app.example"
    access = Access(token=TOKEN, cors_allow_origins=(origin,))
    ask = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    async with api_of(services, access=access) as api:
        answer = await api.options("/ceramic/events", headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        refused = await api.post("/ceramic/events", headers={"origin": origin})
        assert refused.status_code == 401  # and the page can see that
        assert refused.headers["access-control-allow-origin"] == origin
