"""The API's description in OpenAPI 3.1's format, served at /openapi.json.

Paths, parameters and schemas that ceramic-one has, too, carry its names (rust-ceramic,
`api/ceramic.yaml`); what only this node has is marked `x-recon-node: true`. The tests hold every
route of the application and every answer that they get to this document.
"""

from __future__ import annotations

import re
from typing import Final

from recon_node import __version__
from recon_node.api.middleware.access import Access
from recon_node.api.openapi.parts import Json, in_path
from recon_node.api.openapi.paths import PATHS
from recon_node.api.openapi.schemas import SCHEMAS

__all__ = ["DOCUMENT"]


def _with_options(path: str, operations: dict[str, Json]) -> dict[str, Json]:
    """Every path answers OPTIONS, as ceramic-one's do: for browsers, and to tell its methods."""
    names = re.findall(r"{(\w+)}", path)
    options: Json = {
        "summary": "cors",
        "responses": {"200": {"description": "The header Allow has the methods."}},
    }
    if names:
        options["parameters"] = [in_path(name, "As for the other methods.") for name in names]
    return {**operations, "options": options}


def _secured(path: str, operations: dict[str, Json]) -> dict[str, Json]:
    """Which operations need the token, of a node that has one."""
    writes, everything = Access(token="x"), Access(token="x", token_for="all")
    for method, operation in operations.items():
        if writes.asks_token(method.upper(), path):
            operation["security"] = [{}, {"token": []}]
            operation["description"] = "Needs the token, where the node has one."
        elif everything.asks_token(method.upper(), path):
            operation["security"] = [{}, {"token": []}]
    return operations


DOCUMENT: Final[Json] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Recon node API",
        "version": __version__,
        "description": "A Ceramic node: the API of ceramic-one, and what this node adds (+).",
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    },
    "servers": [{"url": "/"}],
    "paths": {
        path: _with_options(path, _secured(path, operations)) for path, operations in PATHS.items()
    },
    "components": {
        "schemas": SCHEMAS,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    },
}
