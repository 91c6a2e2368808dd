"""Every route, with the status that each kind of caller gets."""

from __future__ import annotations

from perdure.controller.api.dashboard.pages import PATHS

# The callers: without a token; with a wrong one; a user; a node of a live attempt; a node of another job's attempt; a
# node of an attempt that is gone; a node of an attempt that has been gone for long.
CALLERS = ("nobody", "wrong", "user", "node", "other", "gone", "expired")
ANYBODY = (200,) * 7
USERS = (401, 401, 200, 401, 401, 401, 401)
NODES = (401, 401, 401, 200, 200, 401, 401)
# Statuses of requests for things that do not exist or cannot be done: authentication comes first.
NOT_THERE = (401, 401, 404, 401, 401, 401, 401)
BAD_INPUT = (401, 401, 400, 401, 401, 401, 401)
NOT_NOW = (401, 401, 409, 401, 401, 401, 401)

TABLE: dict[tuple[str, str], tuple[int, ...]] = {
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/metrics"): USERS,
    ("GET", "/api/v1/notifications"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/usage"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/metrics"): USERS,
    ("POST", "/api/v1/notifications/test"): BAD_INPUT,
    # The dashboard's page and files are the same for everybody, and contain no data.
    **{("GET", path): ANYBODY for path in PATHS},
    ("GET", "/assets/{name}"): (404,) * 7,
    ("POST", "/api/v1/session/codes"): (401, 401, 201, 401, 401, 401, 401),
    ("POST", "/api/v1/session"): (401,) * 7,  # the code is wrong; a token does not help
    ("POST", "/api/v1/session/codes/owner"): (401,) * 7,
    ("POST", "/api/v1/session/command-line"): NOT_NOW,  # only a browser signs a command line in
    ("POST", "/api/v1/session/command-line/token"): (401,) * 7,
    ("GET", "/api/v1/session"): USERS,
    ("GET", "/api/v1/session/oidc/name"): ANYBODY,
    ("GET", "/api/v1/session/oidc"): (404,) * 7,  # there is no provider
    ("GET", "/api/v1/session/oidc/callback"): (404,) * 7,
    ("DELETE", "/api/v1/session"): USERS,
    ("GET", "/api/v1/events"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/spec"): USERS,
    ("POST", "/api/v1/tasks"): BAD_INPUT,
    ("GET", "/api/v1/market"): USERS,
    ("GET", "/api/v1/savings"): USERS,
    ("GET", "/api/v1/controllers"): USERS,
    ("GET", "/api/v1/nodes"): USERS,
    ("GET", "/api/v1/whoami"): USERS,
    ("GET", "/api/v1/users"): USERS,
    ("POST", "/api/v1/users"): BAD_INPUT,
    ("PATCH", "/api/v1/users/{name}"): NOT_THERE,
    ("GET", "/api/v1/tokens"): USERS,
    ("POST", "/api/v1/tokens"): BAD_INPUT,
    ("DELETE", "/api/v1/tokens/{token_id}"): NOT_THERE,
    ("GET", "/api/v1/audit"): USERS,
    ("GET", "/api/v1/controller"): USERS,
    ("POST", "/api/v1/controller/stop"): USERS,
    ("PUT", "/api/v1/controller/software"): NOT_NOW,
    ("GET", "/api/v1/controller/logs"): NOT_THERE,
    ("GET", "/api/v1/clouds"): USERS,
    ("GET", "/api/v1/clouds/{name}/findings"): NOT_THERE,
    ("GET", "/api/v1/gpus"): USERS,
    ("POST", "/api/v1/plan"): BAD_INPUT,
    ("POST", "/api/v1/jobs"): BAD_INPUT,
    ("GET", "/api/v1/jobs"): USERS,
    ("GET", "/api/v1/jobs/{job_id}"): USERS,
    ("POST", "/api/v1/jobs/cancel"): BAD_INPUT,
    ("POST", "/api/v1/jobs/{job_id}/preempt"): NOT_THERE,
    ("GET", "/api/v1/nodes/{name}"): NOT_THERE,
    ("WEBSOCKET", "/api/v1/streams"): (401, 401, 101, 401, 401, 401, 401),
    # No node can open a stream that no user has requested of it.
    ("WEBSOCKET", "/agent/v1/streams/{stream_id}"): (401, 401, 401, 404, 404, 404, 401),
    ("GET", "/api/v1/jobs/{job_id}/logs"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/logs/lines"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/logs/summary"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/logs/search"): BAD_INPUT,
    ("GET", "/api/v1/jobs/{job_id}/recent"): USERS,
    ("GET", "/api/v1/jobs/{job_id}/timeline"): USERS,
    ("POST", "/api/v1/clusters"): BAD_INPUT,
    ("GET", "/api/v1/clusters"): USERS,
    ("GET", "/api/v1/cluster-queues"): USERS,
    ("GET", "/api/v1/clusters/{name}/endpoints"): NOT_THERE,
    ("GET", "/api/v1/clusters/{name}/jobs"): NOT_THERE,
    ("POST", "/api/v1/clusters/{name}/jobs"): BAD_INPUT,
    ("POST", "/api/v1/clusters/{name}/cancel"): NOT_THERE,
    ("POST", "/api/v1/clusters/{name}/stop"): NOT_THERE,
    ("POST", "/api/v1/clusters/{name}/start"): BAD_INPUT,
    ("POST", "/api/v1/clusters/{name}/down"): NOT_THERE,
    ("POST", "/api/v1/clusters/{name}/autostop"): BAD_INPUT,
    ("GET", "/api/v1/cluster-ids/{cluster_id}"): BAD_INPUT,
    ("POST", "/api/v1/services"): BAD_INPUT,
    ("GET", "/api/v1/services"): USERS,
    ("GET", "/api/v1/services/{name}"): NOT_THERE,
    ("GET", "/api/v1/service-ids/{service_id}"): BAD_INPUT,
    ("GET", "/api/v1/services/{name}/spec"): NOT_THERE,
    ("GET", "/api/v1/services/{name}/token"): NOT_THERE,
    ("GET", "/api/v1/services/{name}/timeline"): NOT_THERE,
    ("GET", "/api/v1/services/{name}/proxy-log"): NOT_THERE,
    ("POST", "/api/v1/services/{name}/update"): BAD_INPUT,
    ("POST", "/api/v1/services/{name}/down"): NOT_THERE,
    ("POST", "/api/v1/services/{name}/replicas/{number}/terminate"): BAD_INPUT,
    ("GET", "/api/v1/schedules"): USERS,
    ("PUT", "/api/v1/schedules/{name}"): BAD_INPUT,
    ("DELETE", "/api/v1/schedules/{name}"): NOT_THERE,
    ("POST", "/api/v1/schedules/{name}/pause"): NOT_THERE,
    ("POST", "/api/v1/schedules/{name}/resume"): NOT_THERE,
    ("POST", "/api/v1/schedules/{name}/run"): BAD_INPUT,
    ("GET", "/api/v1/sweeps/{sweep_id}"): BAD_INPUT,
    ("POST", "/api/v1/sweeps/{sweep_id}/retry"): BAD_INPUT,
    ("HEAD", "/api/v1/uploads/{digest}"): USERS,
    ("PUT", "/api/v1/uploads/{digest}"): USERS,
    ("GET", "/agent/v1/spec"): NODES,
    ("POST", "/agent/v1/token"): (401,) * 7,  # for the boot token of a machine
    # A node gets the files that its own task refers to, and no others.
    ("POST", "/agent/v1/home"): (401, 401, 401, 204, 204, 401, 401),
    ("GET", "/agent/v1/uploads/{digest}"): (401, 401, 401, 200, 404, 401, 401),
    ("GET", "/agent/v1/artifacts/{digest}"): NODES,
    # A node whose attempt was given up connects and has to stop; an hour after the end its token is invalid.
    ("WEBSOCKET", "/agent/v1/channel"): (401, 401, 401, 101, 101, 101, 401),
}
