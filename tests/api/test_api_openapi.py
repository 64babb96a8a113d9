"""The OpenAPI document says what the application does, no more and no less."""

import re
import runpy
from pathlib import Path

import httpx
import openapi_check
import pytest
from api_samples import Api
from jsonschema_rs import ValidationError
from openapi_check import DOCUMENT
from openapi_spec_validator import validate
from support import vectors

import recon_node.api
from recon_node.api.app import ENDPOINTS

ROOT = Path(__file__).parents[2]
HTML = Path(recon_node.api.__file__).parent / "html"


def test_it_is_valid_openapi() -> None:
    validate(DOCUMENT)


async def test_every_route_is_described_and_nothing_else_is(api: Api) -> None:
    assert (await api.get("/openapi.json")).json() == DOCUMENT
    described = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "options"
    }
    assert described == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    for path, operations in DOCUMENT["paths"].items():
        answer = await api.options(path.replace("{", "").replace("}", ""))
        methods = {method.upper() for method in operations}
        assert set(answer.headers["allow"].split(", ")) == methods, path


def test_the_guide_has_a_table_of_all_requests() -> None:
    reference = runpy.run_path(str(ROOT / "config" / "api_reference.py"))
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert reference["filled_in"](page) == page, "run config/api_reference.py"


CERAMIC_ONE = vectors.load("ceramic_one_api")
"""What rust-ceramic describes: in api/ceramic.yaml (version 0.47.2) the methods of paths below
/ceramic and the parameters of some; in kubo-rpc.yaml (0.58.0) those of POSTs below /api/v0."""


def test_it_has_all_that_ceramic_one_s_has() -> None:
    """All but /debug/heap, which is about the memory of a program in Rust."""
    ours = {
        re.sub(r"{\w+}", "{}", path.removeprefix("/ceramic")): operations
        for path, operations in DOCUMENT["paths"].items()
        if path.startswith("/ceramic")
    }
    for path, methods in CERAMIC_ONE["paths"].items():
        assert {*methods, "options"} <= set(ours[path]), path
        names = {
            parameter["name"]
            for operation in ours[path].values()
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        }
        assert set(CERAMIC_ONE["query"].get(path, ())) <= names, path


OF_ANCHORS = ("/api/v0/requests", "/api/v0/service-info", "/api/v0/streams")
"""Paths of Ceramic's anchor service and of js-ceramic."""


def test_it_has_kubo_s_paths_that_ceramic_one_has() -> None:
    ours = {
        path.removeprefix("/api/v0"): operations["post"]
        for path, operations in DOCUMENT["paths"].items()
        if path.startswith("/api/v0/") and not path.startswith(OF_ANCHORS)
    }
    names = {
        path: {parameter["name"] for parameter in operation.get("parameters", ())}
        for path, operation in ours.items()
    }
    assert names == {path: set(names) for path, names in CERAMIC_ONE["kubo"].items()}


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_need_nothing_from_elsewhere(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"(?:https?:)?//\w", answer.text)
    assert not re.findall(r"<(?:img|iframe)\b|@import|url\(|\bstyle=|\bon\w+=", answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src ")
    hashes = len(re.findall(r"<(?:script|style)>", answer.text))
    assert (policy.count("sha256-"), hashes) == ((0, 0) if path == "/" else (2, 2))
    assert "unsafe" not in policy
    sources = {source for rule in policy.split("; ") for source in rule.split()[1:]}
    others = {source for source in sources if not source.startswith("'sha256-")}
    assert others <= {"'none'", "'self'", "data:"}


def test_docs_ask_for_paths_that_there_are() -> None:
    page = (HTML / "docs.html").read_text()
    paths = re.findall(r"(?:href|src|ask|fetch)(?:=|\()\"(/[\w./-]*)\"", page)
    assert paths
    assert set(paths) <= set(DOCUMENT["paths"])


async def test_an_answer_that_is_not_described_is_noticed(api: Api) -> None:
    """What the other tests of the API rely on: their client checks every answer."""
    answer = await api.get("/ceramic/version")
    for changed in (
        httpx.Response(202, request=answer.request, json=answer.json()),
        httpx.Response(200, request=answer.request, text="1.0"),
    ):
        with pytest.raises(AssertionError):
            await openapi_check.check_answer(changed)
    with pytest.raises(ValidationError, match='"version" is a required property'):
        await openapi_check.check_answer(httpx.Response(200, request=answer.request, json={}))
