"""The files of the node's page: all there, nothing from elsewhere, open to everyone."""

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from api_samples import Api, api_of
from openapi_check import DOCUMENT

import recon_node.api
from recon_node.api.endpoint import Services
from recon_node.api.settings import Access

STATIC = Path(recon_node.api.__file__).parent / "static"
MODULES = sorted(module.relative_to(STATIC).as_posix() for module in STATIC.rglob("*.js"))
IMPORT = re.compile(r'^(?:import|export)\b[^"\n=]*\bfrom ?"([^"]+)"', re.MULTILINE)


async def test_the_pages_name_all_their_files(api: Api) -> None:
    named = [
        name
        for page in ("/", "/docs")
        for name in re.findall(
            r'(?:href|src)="(/(?:static|docs)/[^"]+)"', (await api.get(page)).text
        )
    ]
    modules = {name.removeprefix("/static/") for name in named if name.startswith("/static/")}
    assert {name for name in modules if name.endswith(".js")} == set(MODULES)
    assert [Path(name).suffix for name in named if name.startswith("/docs/")] == [".css", ".js"]
    for name in named:
        packed = await api.get(name, headers={"accept-encoding": "gzip"})
        plain = await api.get(name, headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content  # httpx decompresses
        if name.startswith("/static/"):
            assert plain.content == (STATIC / name.removeprefix("/static/")).read_bytes()
        else:
            kind = packed.headers["content-type"].partition(";")[0]
            assert kind in ("text/css", "text/javascript")
            assert not re.findall(rb"@import|url\((?!\"?data:)", plain.content[:300_000])
        for known in (packed.headers["etag"], "*"):
            again = await api.get(name, headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["vary"] == "accept-encoding"
    for coding, is_packed in (("br, GZIP;q=0.5", True), ("gzip; q=0.00, br", False)):
        answer = await api.get(named[0], headers={"accept-encoding": coding})
        assert ("content-encoding" in answer.headers) is is_packed


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_and_asks_for_what_is_there(name: str) -> None:
    text = (STATIC / name).read_text()
    for wanted in IMPORT.findall(text):
        assert wanted.startswith(("./", "../")), wanted
        assert (STATIC / PurePosixPath(name).parent / wanted).is_file(), wanted
    assert "sourceMappingURL" not in text
    if name.startswith("vendor/"):
        return
    assert not re.findall(r"https?://|innerHTML|\beval\b|style=", text)
    assert not re.findall(r"(?<!api)`/ceramic/[^`]*\$", text), "an address may be of anything"
    paths = [re.sub(r"{\w+}", "x", path) for path in DOCUMENT["paths"]]
    for path in re.findall(r"[\"`](/ceramic/[^\"`?]+)", text):
        pattern = re.escape(path).replace("\\{", "{").replace("\\}", "}")
        asked = re.sub(r"\\\${[^}]*}", "[^/]+", pattern)
        assert any(re.fullmatch(asked, path) for path in paths), asked


async def test_nothing_else_is_served(api: Api) -> None:
    for path, status in (
        ("app/nothing.js", 404),
        ("other/main.js", 400),
        ("app/..%2f..%2fapp.py", 404),
    ):
        answer = await api.get(f"/static/{path}")
        assert answer.status_code == status, path
        assert answer.json()["message"]


async def test_they_need_no_token(services: Services) -> None:
    access = Access(token="0123456789abcdef", token_for="all")
    async with api_of(services, access=access) as client:
        assert (await client.get("/static/app/main.js")).status_code == 200
        assert (await client.get("/static/app/main.js/more")).status_code == 401


def test_licences_are_beside_the_libraries() -> None:
    listed = (STATIC / "vendor" / "README.md").read_text()
    for library in (STATIC / "vendor").iterdir():
        assert library.name == "README.md" or library.name in listed, library.name
    assert b"Apache License" in (STATIC.parent / "html/swagger-ui/LICENSE").read_bytes()


SHOWING = """
globalThis.location = { hash: "" };
globalThis.addEventListener = () => {};
const { Json } = await import("./app/json.js");
const text = (x) =>
  x?.props ? text(x.props.children) : Array.isArray(x) ? x.map(text).join("") : x || "";
console.log(text(Json({ value: [["a"], ...new Array(1_000_000).fill({ b: null })], label: "x" })));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="it runs the page's modules in Node.js")
def test_of_content_with_millions_of_values_the_beginning_is_shown(tmp_path: Path) -> None:
    """All of them took a browser gigabytes."""
    page = shutil.copytree(STATIC, tmp_path / "page")
    (page / "package.json").write_text('{"type": "module"}')
    (page / "show.js").write_text(SHOWING)
    run = subprocess.run(
        ["node", "show.js"], cwd=page, capture_output=True, text=True, timeout=100, check=True
    )
    assert run.stdout.startswith("[\n  [\n    … (1 more)\n  ],\n  {\n    … (1 more)\n  },\n")
    assert run.stdout.endswith("  },\n  … (990001 more)\n]\n")
