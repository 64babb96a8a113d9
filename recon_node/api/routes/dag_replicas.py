"""GET /ceramic/dag/{cid}/replicas: the log of a DAG, for who wants to look into it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import bad_request
from recon_node.api.routes.dag import dags_of, root_of, unavailable
from recon_node.api.threads import in_thread
from recon_node.dag import DagError
from recon_node.dag.protocol.replica import Replica
from recon_node.ipld import CID, multibase

MAX_BYTES: Final = 4 * 1024 * 1024
"""Of the blocks of a DAG's replicas; a client gets those of a longer log as events."""


async def get_replicas(request: Request) -> Response:
    """The appends and joins of a DAG that are here; whoever can write events can add to them."""
    root = root_of(request)
    try:
        replicas = await dags_of(request).replicas(root, MAX_BYTES)
    except DagError as error:
        raise unavailable(error) from None
    if replicas is None:
        raise bad_request(
            f"the replicas of the DAG have more than {MAX_BYTES} bytes, too many for one answer: "
            "read them as events, with the sort key dag"
        )
    return await in_thread(partial(_render, root, replicas))


def _render(root: CID, replicas: Mapping[CID, Replica]) -> Response:
    told = [
        {"cid": str(cid), "data": multibase.encode(each.block)} for cid, each in replicas.items()
    ]
    return JSONResponse({"root": str(root), "replicas": told})
