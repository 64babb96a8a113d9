"""How other nodes show who they are when they request anchors.

They sign a JSON Web Token by the key of their did:key, as js-ceramic and ceramic-one do for
Ceramic's anchor service: `{url, nonce, digest}`, where `digest` is 0x and the sha2-256 of the
request's body in hexadecimal. A token that somebody repeats requests the same anchor again, which
changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from typing import Any

from recon_node.ceramic.auth.did import public_key


class AnchorClientError(Exception):
    """A request was not signed by a known node. The message is user-facing."""


def check_client(authorization: str | None, body: bytes, clients: Collection[str]) -> str:
    """Return the did:key that signed a request.

    Args:
        authorization: the header of that name.
        body: of the request.
        clients: who may send requests.

    Raises:
        ClientError: it was not signed, or by somebody else.
    """
    scheme, _, token = (authorization or "").partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3:
        raise AnchorClientError("the request must be signed: `Authorization: Bearer` and a JWT")
    try:
        header, claims, signature = map(_decoded, parts)
        fields, said = _object(header), _object(claims)
        did = str(fields["kid"]).partition("#")[0]
        if did not in clients:
            raise AnchorClientError(f"{did[:100]} is not among anchor_clients")
        if not public_key(did).verify(".".join(parts[:2]).encode(), signature):
            raise AnchorClientError(f"the JWT is not signed by {did}")
    except AnchorClientError:
        raise
    except Exception as error:  # what strangers send can be wrong in every way
        raise AnchorClientError(f"the JWT of the request is not valid: {error!r:.200}") from None
    if said.get("digest") != "0x" + hashlib.sha256(body).hexdigest():
        raise AnchorClientError("the JWT's digest is not that of the request's body")
    return did


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value
