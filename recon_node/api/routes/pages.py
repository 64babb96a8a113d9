"""The pages for people: the node's status at / and the API's documentation at /docs.

Each is one file without anything from elsewhere. A Content-Security-Policy names the hashes of its
own style and script, so that nothing else can run in it; both get all they show from this node.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from recon_node.api.openapi import DOCUMENT


def _policy(html: str) -> str:
    hashes = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
            for body in re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        )
        for tag in ("style", "script")
    }
    return (
        f"default-src 'none'; style-src {hashes['style']}; script-src {hashes['script']}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Page:
    """An HTML file of this package with its headers."""

    def __init__(self, name: str) -> None:
        self._html = resources.files("recon_node.api").joinpath("html", name).read_text("utf-8")
        self._headers = {
            "content-security-policy": _policy(self._html),
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    def response(self) -> Response:
        """The page as an answer."""
        return HTMLResponse(self._html, headers=self._headers)


_STATUS = Page("status.html")
_DOCS = Page("docs.html")


async def get_status_page(request: Request) -> Response:
    """A page that shows what the node holds, its peers and its latest syncs."""
    return _STATUS.response()


async def get_docs(request: Request) -> Response:
    """A page that shows /openapi.json to people."""
    return _DOCS.response()


async def get_openapi(request: Request) -> Response:
    """The description of this API in OpenAPI's format."""
    return JSONResponse(DOCUMENT)
