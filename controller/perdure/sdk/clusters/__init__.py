"""Launches and manages clusters: the functions of `perdure launch`, `exec`, `status` and so on for scripts.

    import perdure.sdk as perdure

    request = perdure.launch(perdure.Task.from_yaml("train.yaml"), cluster_name="dev")
    job_id, _ = perdure.stream_and_get(request)
    perdure.tail_logs("dev", job_id)

As in SkyPilot, a call returns a request whose result `get` or `stream_and_get` returns. What it still waits for is the
cluster. Every function takes `client` and raises as in `jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk import jobs
from perdure.sdk.clusters.requests import Request, done
from perdure.sdk.clusters.requests import get as get
from perdure.sdk.clusters.requests import stream_and_get as stream_and_get
from perdure.sdk.connection import api_types, discovery
from perdure.sdk.connection.client import ApiError, Client, user_name
from perdure.sdk.spec.resource_fields import ACTS_IN_LAUNCH

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag
    from perdure.sdk.task import Task

POLL_S = 0.2
DEFAULT_WAIT_FOR = "jobs_and_ssh"
_LAUNCH = "/clusters"

WaitFor = Literal["jobs_and_ssh", "jobs", "none"]  # what keeps a cluster from being idle


class ClusterNotFound(ApiError):
    """The cluster does not exist."""


class ClusterNotUp(Exception):
    """The cluster did not come up; the text says why."""


@dataclass(frozen=True)
class ClusterHandle:
    """A cluster, as `stream_and_get` returns it beside the id of a job."""

    cluster_name: str
    head_ip: str | None = None
    num_nodes: int = 1


@dataclass(frozen=True)
class Launched:
    """What a launch or an exec has added: `number` is the id of the job on its cluster."""

    cluster_id: int
    cluster_name: str
    number: int | None
    job_id: int | None  # in the whole installation
    warnings: tuple[str, ...] = ()


def launch(
    task: Task | Dag,
    cluster_name: str | None = None,
    *,
    retry_until_up: bool = False,  # noqa: ARG001 - a cluster waits for machines anyway
    idle_minutes_to_autostop: int | None = None,
    wait_for: WaitFor | None = None,
    down: bool = False,
    no_setup: bool = False,
    fast: bool = False,
    recover: bool = False,
    idle_below: float | None = None,
    client: Client | None = None,
) -> Request[tuple[int | None, ClusterHandle]]:
    """Launch a task on a new cluster, or on the one of that name. The result: the job's id there, and the cluster.

    `idle_minutes_to_autostop`, `wait_for`, `idle_below`: as for `autostop`. `down` alone takes it down once its jobs
    have ended.
    `fast`: leave out `setup` on a cluster that exists. `recover`: replace machines that are lost, without a `start`.
    """
    client = client or _client()
    minutes = idle_minutes_to_autostop
    idle_s = 60.0 * minutes if minutes is not None else 0.0 if down else None
    launched = launch_job(
        task,
        cluster_name,
        idle_s=idle_s,
        down=down,
        wait_for=wait_for,
        idle_below=idle_below,
        setup=not (no_setup or (fast and _exists(cluster_name, client))),
        recover=recover,
        client=client,
    )
    return Request(lambda note: (launched.number, wait_up(launched, note, client=client)))


def exec(  # the name in SkyPilot
    task: Task | Dag, cluster_name: str, *, client: Client | None = None
) -> Request[tuple[int | None, ClusterHandle]]:
    """Queue a task on a cluster, without `setup`. The result: the job's id there, and the cluster."""
    launched = exec_job(task, cluster_name, client=client)
    return Request(lambda _: (launched.number, ClusterHandle(launched.cluster_name)))


def launch_job(
    task: Task | Dag,
    cluster_name: str | None = None,
    *,
    idle_s: float | None = None,
    down: bool = False,
    wait_for: WaitFor | None = None,
    idle_below: float | None = None,
    setup: bool = True,
    job: bool = True,
    recover: bool = False,
    limit_s: float | None = None,
    command: str = "",
    ignore: Collection[str] = (),
    client: Client | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> Launched:
    """`launch` without waiting for the cluster. `limit_s`: end the job after running for so long."""
    body = {"setup": setup, "job": job, "idle_s": idle_s, "down": down, "recover": recover, "command": command}
    body |= _what_is_idle(wait_for, idle_below)
    return _submit(
        task, _LAUNCH, {"name": cluster_name, "limit_s": limit_s, **body}, ignore, client or _client(), on_message
    )


def exec_job(
    task: Task | Dag,
    cluster_name: str,
    *,
    limit_s: float | None = None,
    ignore: Collection[str] = (),
    client: Client | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> Launched:
    """`exec`, as a plain result."""
    path = f"/clusters/{quote(cluster_name, safe='')}/jobs"
    return _submit(task, path, {"limit_s": limit_s}, ignore, client or _client(), on_message)


def _submit(
    task: Task | Dag,
    path: str,
    body: dict[str, Any],
    ignore: Collection[str],
    client: Client,
    on_message: Callable[[str], None],
) -> Launched:
    with jobs.prepare(task, ignore=ignore) as prepared:
        from perdure.sdk.files.uploads import no_progress

        if len(prepared.packed.tasks) != 1:
            raise ValueError("a cluster runs single tasks: launch a pipeline with jobs.launch")
        prepared.send(client, on_message=on_message, progress=no_progress)
        body = {**body, "task": prepared.packed.tasks[0], "user": user_name(), "key": jobs.new_key()}
        result = client.call(api_types.OnCluster, "POST", path, body=body)
        texts = dict.fromkeys((*prepared.warnings, *result["warnings"]))
    warnings = tuple(text for text in texts if path != _LAUNCH or ACTS_IN_LAUNCH not in text)
    return Launched(result["cluster_id"], result["name"], result["number"], result["job_id"], warnings)


def wait_up(launched: Launched, note: Callable[[str], None], *, client: Client | None = None) -> ClusterHandle:
    """Wait until the cluster is up. `note` receives a line when its state changes. Raises ClusterNotUp."""
    client, seen = client or _client(), ""
    while True:
        cluster = client.call(api_types.Cluster, "GET", f"/cluster-ids/{launched.cluster_id}")
        if cluster["status"] == "UP":
            return ClusterHandle(cluster["name"], cluster["head_ip"], cluster["num_nodes"])
        if cluster["status"] != "INIT":
            why = f": {cluster['message']}" if cluster["message"] else ""
            raise ClusterNotUp(f"the cluster {cluster['name']} is {cluster['status']}{why}")
        line = f"Launching {cluster['resources']} in {cluster['infra']}" if cluster["infra"] != "-" else ""
        if line and line != seen:
            note(line)
            seen = line
        Event().wait(POLL_S)


def status(
    cluster_names: str | Sequence[str] | None = None,
    refresh: object = None,  # noqa: ARG001 - statuses are always up to date
    all_users: bool = True,
    *,
    client: Client | None = None,
) -> Request[list[api_types.Cluster]]:
    """The clusters that are not down; patterns with `*`, `?` and `[a-z]` are allowed. Not `all_users`: one's own."""
    names = [cluster_names] if isinstance(cluster_names, str) else cluster_names
    return done([one for one in clusters(names, client=client) if all_users or one["user"] == user_name()])


def clusters(names: Iterable[str] | None = None, *, client: Client | None = None) -> list[api_types.Cluster]:
    """`status`, as a plain result. None: all of them; an empty list: none."""
    if names is not None and not (names := list(names)):
        return []
    query = {"name": names}
    return (client or _client()).call(api_types.ClusterList, "GET", "/clusters", query=query)["clusters"]


def endpoints(cluster: str, port: int | str | None = None, *, client: Client | None = None) -> Request[dict[str, str]]:
    """Port → address:port, of the ports that the cluster has opened to the internet. `port`: only that one."""
    opened = _call(client, api_types.ClusterEndpoints, "GET", cluster, "/endpoints")["endpoints"]
    return done({name: at for name, at in opened.items() if port is None or name == str(port)})


def queue(
    cluster_name: str, skip_finished: bool = False, all_users: bool = True, *, client: Client | None = None
) -> Request[list[api_types.ClusterJob]]:
    """The jobs of a cluster, newest first, also after it is down. Not `all_users`: only one's own."""
    every = cluster_queue(cluster_name, client=client)["jobs"]
    kept = [job for job in every if not (skip_finished and job["has_ended"])]
    return done([job for job in kept if all_users or job["user"] == user_name()])


def cluster_queue(
    cluster_name: str, numbers: Collection[int] | None = None, *, client: Client | None = None
) -> api_types.ClusterQueue:
    """A cluster with its jobs, or with those of these numbers. Raises ClusterNotFound."""
    query = {"number": sorted(numbers or ()) or None}
    answer: api_types.ClusterQueue = _call(client, api_types.ClusterQueue, "GET", cluster_name, "/jobs", query=query)
    if numbers is not None and not numbers:  # a query cannot express an empty list
        answer["jobs"] = []
    return answer


def job_status(
    cluster_name: str, job_ids: Sequence[int] | None = None, *, client: Client | None = None
) -> Request[dict[int, str]]:
    """The status of each of these jobs; without `job_ids`, of the newest one."""
    newest_first = cluster_queue(cluster_name, job_ids, client=client)["jobs"]
    return done({job["number"]: job["status"] for job in newest_first[: 1 if job_ids is None else None]})


def cancel(
    cluster_name: str,
    all: bool = False,  # the name in SkyPilot
    all_users: bool = False,
    job_ids: Sequence[int] | None = None,
    *,
    client: Client | None = None,
) -> Request[api_types.CancelledJobs]:
    """Cancel jobs by id, all of them, or by default the newest one that runs. No IDs (`[]`): none. They may save
    their work."""
    body = {"numbers": None if job_ids is None else list(job_ids), "all": all or all_users}
    return done(_call(client, api_types.CancelledJobs, "POST", cluster_name, "/cancel", body=body))


def wait_ended(cluster_name: str, numbers: Collection[int], *, client: Client | None = None) -> None:
    """Wait until these jobs of a cluster have ended."""
    client = client or _client()
    while not all(job["has_ended"] for job in cluster_queue(cluster_name, numbers, client=client)["jobs"]):
        Event().wait(POLL_S)


def stop(cluster_name: str, *, client: Client | None = None) -> Request[None]:
    """End the machines of a cluster. Its queue stays; jobs that run save their work and wait to start again."""
    client = client or _client()
    cluster = _call(client, api_types.Cluster, "POST", cluster_name, "/stop", body={})
    return Request(lambda _: _wait_settled(cluster, client))


def start(
    cluster_name: str,
    idle_minutes_to_autostop: int | None = None,
    wait_for: WaitFor | None = None,
    retry_until_up: bool = False,  # noqa: ARG001 - a cluster waits for machines anyway
    down: bool = False,
    *,
    discard_disks: bool = False,
    client: Client | None = None,
) -> Request[ClusterHandle]:
    """Launch machines for a cluster that is stopped, or has lost them. `discard_disks`: not those that it has kept."""
    client = client or _client()
    body = {"discard_disks": True} if discard_disks else {}
    cluster = _call(client, api_types.Cluster, "POST", cluster_name, "/start", body=body)
    if idle_minutes_to_autostop is not None:
        autostop(cluster_name, idle_minutes_to_autostop, wait_for, down=down, client=client)
    started = Launched(cluster["cluster_id"], cluster_name, None, None)
    return Request(lambda note: wait_up(started, note, client=client))


def down(
    cluster_name: str,
    purge: bool = False,  # noqa: ARG001 - termination is never given up
    *,
    client: Client | None = None,
) -> Request[None]:
    """End a cluster: its jobs are cancelled, and its machines end. Its queue and logs stay readable."""
    client = client or _client()
    cluster = _call(client, api_types.Cluster, "POST", cluster_name, "/down", body={})
    return Request(lambda _: _wait_settled(cluster, client))


def autostop(
    cluster_name: str,
    idle_minutes: float,
    wait_for: WaitFor | None = None,
    down: bool = False,
    *,
    idle_below: float | None = None,
    client: Client | None = None,
) -> Request[None]:
    """Stop a cluster, or take it `down`, once it was idle for `idle_minutes`. Below 0: never.

    `wait_for`: with `jobs_and_ssh`, the default, a cluster is idle while it has no job and nobody uses its machines by
    ssh, `jobs exec` or a forwarded port; with `jobs`, while it has no job. `none` counts from launch, start or call.
    `idle_below`: jobs keep the cluster only while a machine uses so many percent of its CPUs or of a GPU.
    """
    idle_s = None if idle_minutes < 0 else 60.0 * idle_minutes
    body = {"idle_s": idle_s, "down": down, **_what_is_idle(wait_for, idle_below)}
    _call(client, api_types.Cluster, "POST", cluster_name, "/autostop", body=body)
    return done(None)


def tail_logs(
    cluster_name: str,
    job_id: int | None = None,
    follow: bool = True,
    tail: int = 0,
    output_stream: IO[bytes] | IO[str] | None = None,
    *,
    client: Client | None = None,
) -> int:
    """Write the log of a job, by default the newest, to `output_stream` (stdout by default).

    With `follow`, until the job ends. Returns its exit code: 0 succeeded, 100 failed, 101 not finished, 102 no such
    job, 103 cancelled. The logs of a cluster that is down stay readable.
    """
    client = client or _client()
    job = find_job(cluster_name, job_id, client=client)
    if job is None:
        return EXIT_NOT_FOUND
    return jobs.tail_logs(job["job_id"], follow=follow, tail=tail or None, output_stream=output_stream, client=client)


def download_logs(
    cluster_name: str,
    job_ids: Sequence[int] | None = None,
    *,
    local_dir: str | Path = jobs.DOWNLOAD_DIR,
    client: Client | None = None,
) -> dict[int, str]:
    """Write the logs of these jobs (by default of the newest) to files. Returns the folder of each."""
    client = client or _client()
    newest_first = cluster_queue(cluster_name, job_ids, client=client)["jobs"]
    chosen = newest_first[:1] if job_ids is None else newest_first
    return {
        job["number"]: str(jobs.download_logs(job["job_id"], local_dir=Path(local_dir) / cluster_name, client=client))
        for job in chosen
    }


def find_job(
    cluster_name: str, number: int | None = None, *, client: Client | None = None
) -> api_types.ClusterJob | None:
    """A job of a cluster by its number, or the newest; None if there is none."""
    newest_first = cluster_queue(cluster_name, None if number is None else (number,), client=client)["jobs"]
    return newest_first[0] if newest_first else None


def _what_is_idle(wait_for: WaitFor | None, idle_below: float | None) -> dict[str, Any]:
    """Of the body of a call. An older controller does not know a floor, so that none is sent unless there is one."""
    floor = {} if idle_below is None else {"idle_below": idle_below / 100}
    return {"wait_for": wait_for or DEFAULT_WAIT_FOR, **floor}


def _wait_settled(cluster: api_types.Cluster, client: Client) -> None:
    """Wait until the machines of a cluster that is stopped or down have ended."""
    while not client.call(api_types.Cluster, "GET", f"/cluster-ids/{cluster['cluster_id']}")["is_settled"]:
        Event().wait(POLL_S)


def _exists(cluster_name: str | None, client: Client) -> bool:
    return cluster_name is not None and bool(clusters([cluster_name], client=client))


def _call(client: Client | None, kind: type[Any], method: str, cluster: str, path: str, **call: Any) -> Any:
    try:
        return (client or _client()).call(kind, method, f"/clusters/{quote(cluster, safe='')}{path}", **call)
    except ApiError as error:
        if error.status != 404:
            raise
        raise ClusterNotFound(f"Cluster {cluster!r} does not exist", status=404, fix="see `perdure status`") from error


def _client() -> Client:
    return Client(discovery.ensure())
