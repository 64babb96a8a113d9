"""The OpenAPI document says what the application does, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import openapi_check
import pytest
from jsonschema import ValidationError
from openapi_spec_validator import validate

import recon_node.api
from recon_node.api.app import ENDPOINTS, make_routes
from recon_node.api.openapi import DOCUMENT

HTML = Path(recon_node.api.__file__).parent / "html"


def test_it_is_valid_openapi() -> None:
    validate(DOCUMENT)


def test_every_route_is_described_and_nothing_else_is() -> None:
    described = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "options"
    }
    assert described == {(method, path) for method, path, _ in ENDPOINTS}
    for route in make_routes():
        assert "options" in DOCUMENT["paths"][route.path]
        assert "OPTIONS" in (route.methods or ())


def test_every_parameter_of_a_path_is_described() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
            assert names == re.findall(r"{(\w+)}", path), (method, path)


CERAMIC_ONE = {  # rust-ceramic, api/ceramic.yaml, version 0.47.2, below /ceramic
    "/liveness": {"get"},
    "/version": {"get", "post"},
    "/events": {"post"},
    "/events/{}": {"get"},
    "/streams/{}": {"get"},
    "/interests": {"post"},
    "/interests/{}/{}": {"post"},
    "/config/network": {"get"},
    "/experimental/interests": {"get"},
    "/experimental/events/{}/{}": {"get"},
    "/feed/events": {"get"},
    "/feed/resumeToken": {"get"},
    "/peers": {"get", "post"},
}
QUERY = {
    "/interests/{}/{}": {"controller", "streamId"},
    "/experimental/interests": {"peerId"},
    "/experimental/events/{}/{}": {"controller", "streamId", "offset", "limit"},
    "/feed/events": {"resumeAt", "limit", "includeData"},
    "/peers": {"addresses"},
}


def test_it_has_all_that_ceramic_one_s_has() -> None:
    """All but /debug/heap, which is about the memory of a program in Rust."""
    ours = {
        re.sub(r"{\w+}", "{}", path.removeprefix("/ceramic")): operations
        for path, operations in DOCUMENT["paths"].items()
        if path.startswith("/ceramic")
    }
    for path, methods in CERAMIC_ONE.items():
        assert methods | {"options"} <= set(ours[path]), path
        names = {
            parameter["name"]
            for operation in ours[path].values()
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        }
        assert QUERY.get(path, set()) <= names, path


async def test_it_is_served(api: httpx.AsyncClient) -> None:
    assert (await api.get("/openapi.json")).json() == DOCUMENT


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_need_nothing_from_elsewhere(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"(?:https?:)?//\w", answer.text)
    assert not re.findall(r"<(?:link|img|iframe)\b|@import|url\(|\bstyle=|\bon\w+=", answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", ["status.html", "docs.html"])
def test_pages_ask_for_paths_that_there_are(name: str) -> None:
    paths = re.findall(r"(?:href|ask|fetch)(?:=|\()\"(/[\w./]*)\"", (HTML / name).read_text())
    assert paths
    assert set(paths) <= set(DOCUMENT["paths"])


async def test_an_answer_that_is_not_described_is_noticed(api: httpx.AsyncClient) -> None:
    """What the other tests of the API rely on: their client checks every answer."""
    answer = await api.get("/ceramic/version")
    for changed in (
        httpx.Response(202, request=answer.request, json=answer.json()),
        httpx.Response(200, request=answer.request, text="1.0"),
    ):
        with pytest.raises(AssertionError):
            await openapi_check.check_answer(changed)
    with pytest.raises(ValidationError, match="'version' is a required property"):
        await openapi_check.check_answer(httpx.Response(200, request=answer.request, json={}))
