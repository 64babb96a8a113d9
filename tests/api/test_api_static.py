"""The files of the node's page: all there, nothing from elsewhere, open to everyone."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path, PurePosixPath

import httpx
import pytest
from openapi_check import DOCUMENT

import recon_node.api
from recon_node.api import Access, Services, create_app

STATIC = Path(recon_node.api.__file__).parent / "static"
MODULES = sorted(each.relative_to(STATIC).as_posix() for each in STATIC.rglob("*.js"))
OURS = [name for name in MODULES if not name.startswith("vendor/")]
IMPORT = re.compile(r'^(?:import|export)\b[^"\n=]*\bfrom ?"([^"]+)"', re.MULTILINE)


async def test_the_page_names_all_its_files(api: httpx.AsyncClient) -> None:
    page = await api.get("/")
    named = re.findall(r'(?:href|src)="/static/([^"]+)"', page.text)
    assert {name for name in named if name.endswith(".js")} == set(MODULES)
    for name in named:
        path = f"/static/{name}"
        packed = await api.get(path, headers={"accept-encoding": "gzip"})
        plain = await api.get(path, headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content == (STATIC / name).read_bytes()
        again = await api.get(path, headers={"if-none-match": packed.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_what_is_there(name: str) -> None:
    text = (STATIC / name).read_text()
    for wanted in IMPORT.findall(text):
        assert wanted.startswith(("./", "../")), wanted
        assert (STATIC / PurePosixPath(name).parent / wanted).is_file(), wanted
    assert "sourceMappingURL" not in text


@pytest.mark.parametrize("name", OURS)
def test_our_modules_ask_for_paths_that_there_are(name: str) -> None:
    text = (STATIC / name).read_text()
    assert not re.findall(r"https?://|innerHTML|\beval\b|style=", text)
    paths = [re.sub(r"{\w+}", "x", path) for path in DOCUMENT["paths"]]
    for path in re.findall(r"[\"`](/ceramic/[^\"`?]+)", text):
        asked = re.sub(
            r"\\\${[^}]*}", "[^/]+", re.escape(path).replace("\\{", "{").replace("\\}", "}")
        )
        assert any(re.fullmatch(asked, each) for each in paths), asked


@pytest.mark.parametrize(
    ("path", "status"),
    [("app/nothing.js", 404), ("other/main.js", 400), ("app/..%2f..%2fapp.py", 404)],
)
async def test_nothing_else_is_served(api: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await api.get(f"/static/{path}")
    assert answer.status_code == status
    assert answer.json()["message"]


async def test_they_need_no_token(services: Services) -> None:
    access = Access(token="0123456789abcdef", token_for="all")
    app = create_app(dataclasses.replace(services, access=access))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://node"
    ) as client:
        assert (await client.get("/static/app/main.js")).status_code == 200
        assert (await client.get("/static/app/main.js/more")).status_code == 401
        assert (await client.get("/ceramic/streams")).status_code == 401


def test_licences_are_beside_the_libraries() -> None:
    listed = (STATIC / "vendor" / "README.md").read_text()
    for each in (STATIC / "vendor").iterdir():
        assert each.name == "README.md" or each.name in listed, each.name
