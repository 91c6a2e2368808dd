"""Routes for services: up, update, list, show, task, token, down, ending a replica, and the log of the proxy.

`submit.serve.services` does what they ask; the log of a replica is that of its job (`routes.logs`).
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Reader, Runner
from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard.task_yaml import dump_task
from perdure.controller.api.routes.jobs import Key, RequestBody
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.api.serve.services import Services
from perdure.controller.store.queries import globs
from perdure.controller.store.queries.globs import BadGlob
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.services import events, records
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.serve.kept_secrets import (
    refers_to_credentials,
    refuse_placeholder,
    with_kept_secrets,
    without_secrets,
)
from perdure.controller.submit.serve.services import StartedService, no_such_service
from perdure.recovery.market.services.plan import UpdateMode
from perdure.sdk.serve import types

router = APIRouter(prefix="/api/v1", tags=["services"], responses=error_responses(400, 401, 503))

_MAX_NUMBER = 2**31 - 1
_MISDIRECTED = 421
_MAX_TLS_CHARS = 100_000
_MAX_SECRETS, _MAX_NAME_CHARS = 1000, 1000
Name = Annotated[str, Path(max_length=200, description="the service's name")]
Number = Annotated[int, Path(ge=1, le=_MAX_NUMBER, description="the replica's number")]
Pem = Annotated[str, Field(max_length=_MAX_TLS_CHARS)]


class TlsBody(RequestBody):
    """The texts of the files of `service.tls`."""

    key: Pem = ""
    cert: Pem = ""


class UpBody(RequestBody):
    name: str | None = Field(None, max_length=200)
    task: dict[str, Any]
    user: str = Field("", max_length=200)
    key: Key = Field(min_length=1)
    auth: bool = True
    tls: TlsBody = TlsBody()


class UpdateBody(RequestBody):
    task: dict[str, Any]
    user: str = Field("", max_length=200)
    key: Key = Field(min_length=1)
    mode: Annotated[UpdateMode, Field(strict=False)] = UpdateMode.ROLLING
    tls: TlsBody = TlsBody()
    kept_secrets: list[Annotated[str, Field(max_length=_MAX_NAME_CHARS)]] = Field([], max_length=_MAX_SECRETS)


@router.post(
    "/services", status_code=201, responses=json_response(types.StartedService, status=201) | error_responses(409, 429)
)
def up(caller: Runner, body: UpBody) -> dict[str, Any]:
    """Start a service. Repeating it with `key` does it once. `auth`: callers need a token."""
    refuse_placeholder(body.task)
    record(caller, "service.up", f"service {body.name or ''}".strip())
    requests, by, key = _services(caller.context).requests, caller.requester(body.user), caller.key_for(body.key) or ""
    started = requests.up(body.name, body.task, by, key, with_token=body.auth, tls=body.tls.model_dump())
    return _started(caller.context, started)


@router.post(
    "/services/{name}/update",
    status_code=201,
    responses=json_response(types.StartedService, status=201) | error_responses(404, 409, 429),
)
def update(caller: Runner, name: Name, body: UpdateBody) -> dict[str, Any]:
    """Make a new version of a service, which replaces the present one. Repeating it with `key` does it once.

    `kept_secrets`: the names of secrets of the present version that the new one has with the same values, unless its
    task gives others. `${workdir.url}` in the git URL of `workdir` stands for the present version's user and password.
    """
    _record(caller, "service.update", name)
    requests, by, key = _services(caller.context).requests, caller.requester(body.user), caller.key_for(body.key) or ""
    task = body.task
    if body.kept_secrets or refers_to_credentials(task):
        service = requests.get(name, by.of)
        task = with_kept_secrets(task, requests.newest_config(service), body.kept_secrets, owner=service.user, by=by)
    return _started(caller.context, requests.update(name, task, by, key, body.mode, body.tls.model_dump()))


@router.get("/services", responses=json_response(types.ServiceList))
def list_services(caller: Reader, name: Annotated[list[str] | None, Query(max_length=1000)] = None) -> dict[str, Any]:
    """The services that are not down, oldest first. `name`: whole names or patterns; repeatable."""
    now = caller.context.clock.now()
    with caller.context.database.connect() as conn:
        own = [row for row in records.active(conn) if caller.sees in (None, row.user)]
        rows = [row for row in own if not name or _matches(row.name, name)]
        return {"now": iso(now), "services": _services(caller.context).listing.describe(conn, rows, now)}


@router.get("/services/{name}", responses=json_response(types.Service) | error_responses(404))
def show(caller: Reader, name: Name, *, all_replicas: bool = False) -> dict[str, Any]:
    """A service, also the newest one of that name that is down. `all_replicas`: also those that were over long ago."""
    return _describe(caller, _visible(caller, name), all_replicas=all_replicas)


@router.get("/service-ids/{service_id}", responses=json_response(types.Service) | error_responses(404))
def show_by_id(caller: Reader, service_id: Annotated[int, Path(ge=0, le=_MAX_NUMBER)]) -> dict[str, Any]:
    """A service by its id."""
    return _describe(caller, service_id)


@router.get("/services/{name}/spec", responses=json_response(types.ServiceSpec) | error_responses(404))
def spec(caller: Reader, name: Name) -> dict[str, Any]:
    """The task of the newest version, as YAML. Values of secrets are left out; `secrets` has their names."""
    service_id = _visible(caller, name)
    with caller.context.database.connect() as conn:
        row = records.get(conn, service_id)
    if row is None:
        raise no_such_service(name)
    shown, names = without_secrets(_services(caller.context).requests.newest_config(row))
    return {"version": row.version, "yaml": dump_task(shown), "secrets": names}


@router.get("/services/{name}/token", responses=json_response(types.ServiceToken) | error_responses(404))
def token(caller: Runner, name: Name) -> dict[str, Any]:
    """The endpoint of a service, and what its callers send as `Authorization: Bearer TOKEN`: whoever has it can use the
    service, so seeing the service is not enough."""
    return _access(caller.context, _record(caller, "service.token", name))


@router.post("/services/{name}/down", responses=json_response(types.Service) | error_responses(404))
def down(caller: Runner, name: Name) -> dict[str, Any]:
    """End a service and its replicas. Their logs stay readable."""
    _record(caller, "service.down", name, gone=True)
    return _describe(caller, _services(caller.context).requests.down(name, caller.changes))


@router.post(
    "/services/{name}/replicas/{number}/terminate", responses=json_response(types.Service) | error_responses(404)
)
def terminate_replica(caller: Runner, name: Name, number: Number) -> dict[str, Any]:
    """End one replica, once it has answered its requests. Another one takes its place if the service needs it."""
    service_id = _record(caller, "service.terminate_replica", name, replica=number)
    _services(caller.context).requests.terminate_replica(name, number, caller.changes)
    return _describe(caller, service_id)


@router.get("/services/{name}/timeline", responses=json_response(types.ServiceTimeline) | error_responses(404))
def timeline(
    caller: Reader, name: Name, limit: Annotated[int, Query(ge=1, le=events.MAX_KEPT)] = 100
) -> dict[str, Any]:
    """What has happened to a service, oldest first: the newest entries."""
    service_id = _visible(caller, name)
    with caller.context.database.connect() as conn:
        rows = events.newest(conn, service_id, limit)
    entries = [
        {"at": iso(r.at), "kind": r.kind, "version": r.version, "replica": r.replica, "message": r.message}
        for r in rows
    ]
    return {"entries": entries}


@router.get("/services/{name}/proxy-log", responses=json_response(types.ProxyLog) | error_responses(404, 421))
def proxy_log(
    caller: Reader, name: Name, tail: Annotated[int, Query(ge=1, le=types.MAX_PROXY_LINES)] = 1000
) -> dict[str, Any]:
    """The last lines of the log of a service's proxy. It has no headers and no queries of requests."""
    service_id = _visible(caller, name)
    _require_here(caller.context, name, service_id)
    path = _services(caller.context).proxies.log_path(service_id)
    if not path.exists():
        return {"text": ""}
    with path.open("rb") as file:
        return {"text": b"".join(deque(file, maxlen=tail)).decode("utf-8", "replace")}


def _services(context: ApiContext) -> Services:
    assert context.services is not None
    return context.services


def _visible(caller: Caller, name: str) -> int:
    """The id of a service that the caller may see, also of one that is down. Raises RequestRejected (404)."""
    with caller.context.database.connect() as conn:
        row = records.find(conn, name, gone=True, user=caller.sees)
    if row is None:
        raise no_such_service(name)
    return int(row.id)


def _require_here(context: ApiContext, name: str, service_id: int) -> None:
    """Raises RequestRejected (421) if another controller runs the proxy of a service, and has its log."""
    with context.database.connect() as conn:
        row = records.get(conn, service_id)
        owner = _services(context).sharing.address_of(conn, row) if row is not None else ""
    if owner:
        message = f"the log of the proxy of {name} is on another controller, {owner}"
        fix = "call again: the load balancer must be able to choose another controller for every connection"
        raise RequestRejected(message, where="name", fix=fix, status=_MISDIRECTED)


def _record(caller: Caller, action: str, name: str, *, gone: bool = False, **detail: Any) -> int:
    """Record in the audit log what the caller is about to do with a service of theirs. Returns its id.

    Raises RequestRejected (404).
    """
    with caller.context.database.connect() as conn:
        row = records.find(conn, name, gone=gone, user=caller.changes)
    if row is None:
        caller.context.access.deny(caller.actor, action, f"service {name}", "no service of this user")
        raise no_such_service(name)
    record(caller, action, f"service {name}", **detail)
    return int(row.id)


def _describe(caller: Caller, service_id: int, *, all_replicas: bool = False) -> dict[str, Any]:
    context = caller.context
    with context.database.connect() as conn:
        row = records.get(conn, service_id)
        if row is None or caller.sees not in (None, row.user):
            raise no_such_service(str(service_id))
        now, listing = context.clock.now(), _services(context).listing
        return listing.describe(conn, [row], now, all_replicas=all_replicas)[0]


def _started(context: ApiContext, started: StartedService) -> dict[str, Any]:
    of_caller = {"service_id": started.service_id, "name": started.name, "version": started.version}
    return {**of_caller, "warnings": list(started.warnings), **_access(context, started.service_id)}


def _access(context: ApiContext, service_id: int) -> dict[str, str]:
    services = _services(context)
    with context.database.connect() as conn:
        row = records.get(conn, service_id)
        section = records.version(conn, service_id, row.version).section if row is not None else {}
        endpoint = services.listing.url_of(conn, row, section) if row is not None else None
    if row is None or endpoint is None:
        raise RequestRejected("the service is down", where="name", fix="see `perdure serve status`", status=404)
    return {"endpoint": endpoint, "token": services.requests.endpoint_of(row).token}


def _matches(name: str, patterns: list[str]) -> bool:
    try:
        return globs.matches_any(name, patterns)
    except BadGlob as error:
        raise RequestRejected(str(error), where="name", fix=error.fix) from error
