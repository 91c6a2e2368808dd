"""The route for the nodes that users can enter. The streams themselves are WebSockets: see `api.tunnel`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from perdure.controller.api.auth import Runner
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.api.tunnel import names
from perdure.controller.runtime.security.host_keys import derive_host_key
from perdure.sdk.connection import api_types

router = APIRouter(prefix="/api/v1", tags=["nodes"], responses=error_responses(400, 401, 503))

NodeName = Annotated[
    str, Path(max_length=200, description="`job-17`, `job-17-worker1`, `17`; `dev` or `dev-worker1` of a cluster")
]


@router.get("/nodes/{name}", responses=json_response(api_types.NodeAddress) | error_responses(404, 409))
def node(caller: Runner, name: NodeName) -> dict[str, Any]:
    """The node that a name stands for now, which the caller may enter. 409: the job or the cluster has no machine
    now."""
    context = caller.context
    with context.database.connect() as conn:
        named = names.resolve(conn, name, caller.enters)
    (job_id, task_index, generation), rank = named.place
    return {
        "name": named.name,
        "job_id": job_id,
        "task_index": task_index,
        "generation": generation,
        "rank": rank,
        "num_nodes": named.num_nodes,
        "user": names.login_user(named.cloud),
        "host_key": derive_host_key(context.keyring, context.controller_id, named.host).public,
    }
