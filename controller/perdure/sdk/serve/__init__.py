"""Starts and manages services: the functions of `perdure serve` for scripts.

    import perdure.sdk as perdure

    started = perdure.serve.up(perdure.Task.from_yaml("service.yaml"), "mymodel")
    print(started["endpoint"], started["token"])
    perdure.serve.wait_ready("mymodel")
    perdure.serve.down("mymodel")

Every function takes `client` and raises as in `jobs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk import jobs
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import ApiError, Client, user_name
from perdure.sdk.files.downloads import folder_name, replacing, whole_number
from perdure.sdk.serve import certificate, types
from perdure.sdk.spec.problems import Problem, TaskError

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag
    from perdure.sdk.task import Task

POLL_S = 0.3
PROXY_TIMEOUT_S = 15.0
"""How long `wait_ready` waits for the proxy of a service that has a ready replica."""
FIELD = "service"

Mode = Literal["rolling", "blue_green"]
"""How a new version replaces the present one."""


class ServiceNotFound(ApiError):
    """The service does not exist."""


class ReplicaNotFound(Exception):
    """The service has no such replica."""


class ServiceNotReady(Exception):
    """The service does not become ready; the text says why."""


def up(
    task: Task | Dag,
    service_name: str | None = None,
    *,
    auth: bool = True,
    client: Client | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> types.StartedService:
    """Start the service that a task describes. Returns at once, before a replica is ready.

    `auth`: callers need the token of the result, as `Authorization: Bearer TOKEN`.
    """
    tls = _tls_files(task)
    return _submit(task, "/services", {"name": service_name, "auth": auth, "tls": tls}, client, on_message)


def update(
    task: Task | Dag,
    service_name: str,
    *,
    mode: Mode = "rolling",
    client: Client | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> types.StartedService:
    """Replace the replicas of a service by those of another task. Returns at once. The token and the port stay.

    The endpoint gets the certificate of the other task's `service.tls`, or none of its own.
    """
    body = {"mode": mode, "tls": _tls_files(task)}
    return _submit(task, f"/services/{quote(service_name, safe='')}/update", body, client, on_message)


def status(service_names: str | Iterable[str] | None = None, *, client: Client | None = None) -> list[types.Service]:
    """The services that are not down, or those of these names; patterns with `*`, `?` and `[a-z]` are allowed."""
    names = [service_names] if isinstance(service_names, str) else service_names
    if names is not None and not (names := list(names)):
        return []
    return (client or _client()).call(types.ServiceList, "GET", "/services", query={"name": names})["services"]


def get(service_name: str, *, all_replicas: bool = False, client: Client | None = None) -> types.Service:
    """A service, also one that is down. Raises ServiceNotFound.

    `all_replicas`: also those that were over long ago, as far as they are kept.
    """
    query = {"all_replicas": int(all_replicas) or None}
    answer: types.Service = _call(client, types.Service, "GET", service_name, "", query=query)
    return answer


def token(service_name: str, *, client: Client | None = None) -> types.ServiceToken:
    """The endpoint of a service and the token that its callers send. Raises ServiceNotFound."""
    answer: types.ServiceToken = _call(client, types.ServiceToken, "GET", service_name, "/token")
    return answer


def wait_ready(service_name: str, *, client: Client | None = None) -> types.Service:
    """Wait until a replica is ready and the endpoint answers. Raises ServiceNotReady if the service cannot start or is
    down, or if its proxy cannot be started."""
    client = client or _client()
    polls_without_proxy = 0
    while True:
        service = get(service_name, client=client)
        if service["status"] == "READY":
            return service
        if service["status"] in ("FAILED", "SHUTTING_DOWN", "DOWN"):
            why = f": {service['message']}" if service["message"] else ""
            raise ServiceNotReady(f"the service {service_name} is {service['status']}{why}")
        # A replica is ready and the service is not: its proxy does not run. One that has just died is started again.
        has_proxy = not service["ready_replicas"] or service["status"] != "NO_REPLICA"
        polls_without_proxy = 0 if has_proxy else polls_without_proxy + 1
        if polls_without_proxy * POLL_S >= PROXY_TIMEOUT_S:
            raise ServiceNotReady(f"nothing answers at the endpoint of {service_name}: {service['message']}")
        Event().wait(POLL_S)


def down(service_name: str, *, client: Client | None = None, wait: bool = True) -> None:
    """End a service, and wait until none of its machines is left. The logs of its replicas stay readable."""
    client = client or _client()
    service = _call(client, types.Service, "POST", service_name, "/down", body={})
    while wait and service["status"] != "DOWN":
        Event().wait(POLL_S)
        service = client.call(types.Service, "GET", f"/service-ids/{service['service_id']}")


def terminate_replica(service_name: str, replica_id: int, *, client: Client | None = None) -> None:
    """End one replica. Another one takes its place if the service needs it."""
    _call(client, types.Service, "POST", service_name, f"/replicas/{replica_id}/terminate", body={})


def tail_logs(
    service_name: str,
    replica_id: int,
    *,
    follow: bool = True,
    tail: int | None = None,
    output_stream: IO[bytes] | IO[str] | None = None,
    client: Client | None = None,
) -> int:
    """Write the log of a replica; with `follow`, until it ends. Returns 0, or 102 if there is no such replica."""
    client = client or _client()
    job_id = job_of(service_name, replica_id, client=client)
    if job_id is None:
        return EXIT_NOT_FOUND
    jobs.tail_logs(job_id, follow=follow, tail=tail, output_stream=output_stream, client=client)
    return 0


def download_logs(
    service_name: str,
    replica_ids: Iterable[int] | None = None,
    *,
    local_dir: str | os.PathLike[str] = jobs.DOWNLOAD_DIR,
    client: Client | None = None,
) -> Path:
    """Write the logs so far to files: `replica-N.log` of each replica, also of those that are over, and
    `load-balancer.log`, which begins with a note if earlier lines are left out. Returns their folder,
    `<local_dir>/service-<service ID>-<name>`.

    `replica_ids`: only the logs of these replicas. Replaces each file of an earlier download once the new one is
    complete. Raises ServiceNotFound; ReplicaNotFound, also for a log that is no longer kept of these replicas, after it
    has written the others; OSError for a folder that cannot be written.
    """
    client = client or _client()
    service = get(service_name, all_replicas=True, client=client)
    chosen = None if replica_ids is None else set(replica_ids)
    job_ids = {one["number"]: one["job_id"] for one in service["replicas"] if chosen is None or one["number"] in chosen}
    if unknown := sorted((chosen or set()) - job_ids.keys()):
        raise ReplicaNotFound(f"{service_name} has no replica {unknown[0]}")
    folder = Path(local_dir).expanduser() / f"service-{folder_name(service['service_id'], service['name'])}"
    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        number
        for number, job_id in job_ids.items()
        if job_id is not None  # else it has never had a machine
        and not _download(client, job_id, folder / f"replica-{whole_number(number)}.log")
    ]
    if missing and chosen is not None:
        raise ReplicaNotFound(f"the log of replica {missing[0]} of {service_name} is no longer kept")
    if chosen is None:
        text = proxy_log(service_name, tail=types.MAX_PROXY_LINES, client=client)
        if text.count("\n") >= types.MAX_PROXY_LINES:
            text = f"# The last {types.MAX_PROXY_LINES} lines: earlier ones are left out.\n{text}"
        with replacing(folder / "load-balancer.log") as file:
            file.write(text.encode())
    return folder


def _download(client: Client, job_id: int, path: Path) -> bool:
    """Write the log of a job to a file. False if it is no longer kept."""
    try:
        with client.logs(job_id, follow=False) as stream, replacing(path) as file:
            for chunk in stream:
                file.write(chunk)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def proxy_log(service_name: str, *, tail: int | None = None, client: Client | None = None) -> str:
    """The last lines of the log of a service's proxy. Raises ServiceNotFound."""
    answer: types.ProxyLog = _call(client, types.ProxyLog, "GET", service_name, "/proxy-log", query={"tail": tail})
    return answer["text"]


def timeline(
    service_name: str, *, limit: int | None = None, client: Client | None = None
) -> list[types.ServiceTimelineEntry]:
    """What has happened to a service, oldest first: the newest entries. Raises ServiceNotFound."""
    query = {"limit": limit}
    answer: types.ServiceTimeline = _call(client, types.ServiceTimeline, "GET", service_name, "/timeline", query=query)
    return answer["entries"]


def job_of(service_name: str, replica_id: int, *, client: Client | None = None) -> int | None:
    """The job that a replica is; None if there is no such replica, or its job is not submitted yet."""
    answer = get(service_name, all_replicas=True, client=client)["replicas"]
    return next((one["job_id"] for one in answer if one["number"] == replica_id), None)


def _submit(
    task: Task | Dag, path: str, body: dict[str, Any], client: Client | None, on_message: Callable[[str], None]
) -> types.StartedService:
    client = client or _client()
    with jobs.prepare(task, kept=(FIELD,)) as prepared:
        from perdure.sdk.files.uploads import no_progress

        if len(prepared.packed.tasks) != 1:
            raise ValueError("a service is a single task")
        prepared.send(client, on_message=on_message, progress=no_progress)
        body = {**body, "task": prepared.packed.tasks[0], "user": user_name(), "key": jobs.new_key()}
        result = client.call(types.StartedService, "POST", path, body=body)
    local = [line for line in prepared.warnings if "resources.ports" not in line]
    result["warnings"] = list(dict.fromkeys((*local, *result["warnings"])))
    return result


def _tls_files(task: Task | Dag) -> dict[str, str]:
    """The texts of the files of `service.tls`. Raises TaskError if they cannot be read, or cannot be served."""
    tasks: Collection[Task] = getattr(task, "tasks", [task])
    for one in tasks:
        given = (one.to_yaml_config().get(FIELD) or {}).get("tls")
        if given and "acme" not in given:
            return _read_tls(one, given)
    return {}


def _read_tls(task: Task, given: Mapping[str, str]) -> dict[str, str]:
    """Raises TaskError."""
    texts = {}
    for field, path in given.items():
        problem = None
        try:
            texts[field] = Path(path).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            problem = Problem("", f"{path!r}: {error.strerror or error}", f"relative paths start at {os.getcwd()}")
        except ValueError:
            problem = Problem("", f"{path!r} is not text", "give the file in PEM")
        if problem is not None:
            raise TaskError([task.placed((FIELD, "tls", field), problem, path)])
    try:
        certificate.check(texts[certificate.KEY], texts[certificate.CERT])
    except certificate.InvalidCertificate as error:
        path = given[error.field]
        problem = Problem("", f"{path!r}: {error.message}", error.fix)
        raise TaskError([task.placed((FIELD, "tls", error.field), problem, path)]) from error
    return {"key": texts[certificate.KEY], "cert": texts[certificate.CERT]}


def _call(client: Client | None, kind: type[Any], method: str, name: str, path: str, **call: Any) -> Any:
    try:
        return (client or _client()).call(kind, method, f"/services/{quote(name, safe='')}{path}", **call)
    except ApiError as error:
        if error.status != 404 or error.where != "name":
            raise
        raise ServiceNotFound(
            f"Service {name!r} does not exist", status=404, fix="see `perdure serve status`"
        ) from error


def _client() -> Client:
    return Client(discovery.ensure())
