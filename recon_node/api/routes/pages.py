"""The web pages: the node's status at / and the API's documentation at /docs.

They load nothing from other servers. The Content-Security-Policy of each names the hashes of its
own style and script, so that nothing else can run in it; /docs also loads Swagger UI, which is part
of this package. Browsers keep what they have loaded, and ask with its ETag whether it has changed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from importlib import resources
from typing import Final

from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Endpoint, endpoint
from recon_node.api.models import Parameters

NOT_MODIFIED: Final = Answer("The client has the current version.", status=304)
_PAGE: Final = Answer("HTML.", str, media_type="text/html")


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

    def reply(self, asked: Mapping[str, str]) -> Response:
        """Answer a request with these headers; without the body, if the client has it."""
        if self._etag in asked.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=self._headers)
        if not self._compressed:
            return Response(self._body, media_type=self._media_type, headers=self._headers)
        headers = {**self._headers, "vary": "accept-encoding"}
        body = self._body
        if "gzip" in asked.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, media_type=self._media_type, headers=headers)


async def serve_page(call: Call[Parameters], load: Callable[[], Content]) -> Response:
    """Answer with the content that `load` returns; it runs in a worker thread."""
    return await call.services.in_thread(lambda: load().reply(call.request.headers))


@endpoint("GET", "/", _PAGE, NOT_MODIFIED, own=True, need="open")
async def get_status_page(call: Call[Parameters]) -> Response:
    """See the node's status as a page."""
    return await serve_page(call, partial(_page, "status.html"))


@endpoint("GET", "/docs", _PAGE, NOT_MODIFIED, own=True, need="open")
async def get_docs(call: Call[Parameters]) -> Response:
    """Read this document as a page, and try the API."""
    return await serve_page(call, partial(_page, "docs.html", files=True))


def _swagger_ui(name: str, media_type: str) -> Endpoint:
    """The endpoint of a file of Swagger UI."""

    async def get_file(call: Call[Parameters]) -> Response:
        """Load a part of the page /docs."""
        return await serve_page(
            call, partial(_compressed_file, f"swagger-ui/{name}.gz", media_type)
        )

    answer = Answer("The file.", str, media_type=media_type)
    path = f"/docs/{name}"
    return endpoint("GET", path, answer, NOT_MODIFIED, own=True, need="open")(get_file)


SWAGGER_UI: Final = (
    _swagger_ui("swagger-ui.css", "text/css"),
    _swagger_ui("swagger-ui-bundle.js", "text/javascript"),
)


@cache
def _page(name: str, *, files: bool = False) -> Content:
    """Load a page of this package; with `files`, it may load scripts, styles and data: images."""
    html = _read(name)
    own = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(part).digest()).decode()}'"
            for part in re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), html, re.DOTALL)
        )
        for tag in ("style", "script")
    }
    more, images = (" 'self'", "img-src data:; ") if files else ("", "")
    policy = (
        f"default-src 'none'; style-src {own['style']}{more}; script-src {own['script']}{more}; "
        f"{images}connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Content(html, "text/html", policy)


@cache
def _compressed_file(name: str, media_type: str) -> Content:
    return Content(_read(name), media_type, compressed=True)


def _read(name: str) -> bytes:
    return resources.files("recon_node.api").joinpath("html", name).read_bytes()
