"""The web pages: the node's own at / and the API's documentation at /docs.

They load nothing from other servers. The page at / is an application of small modules in `static/`,
which browsers load as they are. Its Content-Security-Policy allows these files and nothing inline;
that of /docs names the hashes of its own style and script, and allows Swagger UI, which is part of
this package. Browsers keep what they have loaded, and ask with its ETag whether it has changed.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from importlib import resources
from pathlib import PurePath
from typing import Final, Literal, TypeVar, get_args, get_type_hints

from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Endpoint, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Parameters

NOT_MODIFIED: Final = Answer("The client has the current version.", status=304)
_PAGE: Final = Answer("HTML.", str, media_type="text/html")
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""The media types of the page's files."""
_OWN_FILES: Final = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'"
_NOTHING_ELSE: Final = (
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
"""In Accept-Encoding, unless its weight says that it is not acceptable (RFC 9110, 12.5.3)."""

P = TypeVar("P", bound=Parameters)


class Content:
    """What a path serves, the same to everyone. With `compressed`, `body` is compressed by gzip."""

    def __init__(
        self, body: bytes, media_type: str, policy: str | None = None, *, compressed: bool = False
    ) -> None:
        self._body = body
        self._media_type = media_type
        self._compressed = compressed
        self._etag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        self._headers = {
            "cache-control": "no-cache",
            "etag": self._etag,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }
        if policy is not None:
            self._headers["content-security-policy"] = policy
        if compressed:
            self._headers["vary"] = "accept-encoding"

    def reply(self, asked: Mapping[str, str]) -> Response:
        """Answer a request with these headers; without the body, if the client has it."""
        known = asked.get("if-none-match", "")
        if self._etag in known or known.strip() == "*":
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=self._headers)
        headers, body = dict(self._headers), self._body
        if self._compressed:
            if _GZIP.search(asked.get("accept-encoding", "")):
                headers["content-encoding"] = "gzip"
            else:
                body = gzip.decompress(body)
        return Response(body, media_type=self._media_type, headers=headers)


async def serve_page(call: Call[P], load: Callable[[], Content]) -> Response:
    """Answer with the content that `load` returns; it runs in a worker thread."""
    return await call.services.in_thread(lambda: load().reply(call.request.headers))


@endpoint("GET", "/", _PAGE, NOT_MODIFIED, own=True, need="open")
async def get_page(call: Call[Parameters]) -> Response:
    """See the node as a page."""
    return await serve_page(call, _index)


class StaticPath(Parameters, frozen=True):
    """Which file of the page."""

    folder: Literal["app", "views", "vendor"]
    """app, views or vendor."""
    file: str
    """Its name."""


@endpoint(
    "GET",
    "/static/{folder}/{file}",
    *(Answer("The file.", str, media_type=media_type) for media_type in _TYPES.values()),
    NOT_MODIFIED,
    errors=(404,),
    own=True,
    need="open",
)
async def get_static(call: Call[StaticPath]) -> Response:
    """Load a part of the page /."""
    name = f"{call.parameters.folder}/{call.parameters.file}"
    return await serve_page(call, partial(_static, name))


@endpoint("GET", "/docs", _PAGE, NOT_MODIFIED, own=True, need="open")
async def get_docs(call: Call[Parameters]) -> Response:
    """Read this document as a page, and try the API."""
    return await serve_page(call, _docs)


def _swagger_ui(name: str, media_type: str) -> Endpoint:
    """The endpoint of a file of Swagger UI."""

    async def get_file(call: Call[Parameters]) -> Response:
        """Load a part of the page /docs."""
        load = partial(_compressed_file, f"swagger-ui/{name}.gz", media_type)
        return await serve_page(call, load)

    answer = Answer("The file.", str, media_type=media_type)
    path = f"/docs/{name}"
    return endpoint("GET", path, answer, NOT_MODIFIED, own=True, need="open")(get_file)


SWAGGER_UI: Final = (
    _swagger_ui("swagger-ui.css", "text/css"),
    _swagger_ui("swagger-ui-bundle.js", "text/javascript"),
)


@cache
def _index() -> Content:
    """The page at /, which names all modules, so that they are loaded at once."""
    names = sorted(name for name in _static_files() if name.endswith(".js"))
    links = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in names)
    html = _read("static", "index.html").replace(b"<!-- modules -->", links.encode())
    return Content(html, "text/html", f"{_OWN_FILES}; {_NOTHING_ELSE}")


@cache
def _static_files() -> frozenset[str]:
    """What is served of the folder `static`, as folder and name."""
    root = resources.files("recon_node.api").joinpath("static")
    return frozenset(
        f"{folder}/{file.name}"
        for folder in get_args(get_type_hints(StaticPath)["folder"])
        for file in root.joinpath(folder).iterdir()
        if PurePath(file.name).suffix in _TYPES
    )


@cache
def _load_static(name: str) -> Content:
    body = gzip.compress(_read("static", *name.split("/")), mtime=0)
    return Content(body, _TYPES[PurePath(name).suffix], compressed=True)


def _static(name: str) -> Content:
    if name not in _static_files():
        raise ApiError(HTTPStatus.NOT_FOUND, f"the page has no file {name[:100]!r}")
    return _load_static(name)


@cache
def _docs() -> Content:
    """The page /docs; it may load scripts, styles and data: images, too."""
    html = _read("html", "docs.html")
    own = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(part).digest()).decode()}'"
            for part in re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), html, re.DOTALL)
        )
        for tag in ("style", "script")
    }
    policy = (
        f"default-src 'none'; style-src {own['style']} 'self'; script-src {own['script']} 'self'; "
        f"img-src data:; {_NOTHING_ELSE}"
    )
    return Content(html, "text/html", policy)


@cache
def _compressed_file(name: str, media_type: str) -> Content:
    return Content(_read("html", *name.split("/")), media_type, compressed=True)


def _read(*path: str) -> bytes:
    return resources.files("recon_node.api").joinpath(*path).read_bytes()
