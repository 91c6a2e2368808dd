"""Turns the actions of a step into intents: a frozen request, and a token that makes repeating it safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from perdure.controller.clouds.machine_options import machine_options
from perdure.controller.runtime.security.incarnations import NO_INCARNATIONS, Incarnations
from perdure.controller.store import codec
from perdure.controller.store.clusters import cluster_disks, cluster_ports
from perdure.controller.store.records import intents
from perdure.controller.store.records.buckets import removable
from perdure.controller.store.records.clusters import DOWN
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from perdure.controller.store.records.job_claims import older_controllers
from perdure.controller.store.tables import JobRow, TaskRow
from perdure.recovery import actions
from perdure.recovery.job import JobView
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase

Job = JobRow.__table__  # type: ignore[attr-defined]
Task = TaskRow.__table__  # type: ignore[attr-defined]

_TASKS = (
    select(Task.c.job_id, Task.c.index.label("task_index"), Task.c.spec, Job.c.name, Job.c.user, Job.c.priority)
    .add_columns(Job.c.cluster_id)
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.job_id.in_(bindparam("job_ids", expanding=True)))
)
_Outside = actions.Launch | actions.Terminate | actions.PrepareStorage
_OUTSIDE = (actions.Launch, actions.Terminate, actions.PrepareStorage)


@dataclass(frozen=True)
class IntentBuilder:
    """Records intents in the transaction of the decision that asks for them."""

    controller: str  # the id of this installation, which every machine is tagged with
    incarnations: Incarnations = NO_INCARNATIONS
    opens_ports: Collection[str] = frozenset()  # the clouds that open ports to the internet
    stoppable: Collection[str] = frozenset()  # the clouds that stop and start machines
    keep_disks: bool = False  # whether new machines of clusters are stopped instead of ended

    def record(
        self, conn: Connection, decided: Sequence[tuple[JobView, Sequence[actions.Action]]], now: float
    ) -> dict[int, list[Intent]]:
        """Record an intent for each action on these jobs that changes something outside.

        Returns those not recorded before, by job.
        """
        wanted = [(job, action) for job, its in decided for action in its if isinstance(action, _OUTSIDE)]
        tasks = _read_tasks(conn, {job.id for job, action in wanted if not isinstance(action, actions.Terminate)})
        ending = {job.id for job, action in wanted if isinstance(action, actions.Terminate)} if self.stoppable else ()
        hosts = cluster_disks.hosts(conn, ending)
        recorded: dict[int, list[Intent]] = {}
        for intent in intents.add_all(
            conn, [self._intent(conn, job, action, tasks, hosts, now) for job, action in wanted]
        ):
            recorded.setdefault(intent.job_id, []).append(intent)
        return recorded

    def _intent(
        self,
        conn: Connection,
        job: JobView,
        action: _Outside,
        tasks: Mapping[tuple[int, int], Row[Any]],
        hosts: Mapping[int, Row[Any]],
        now: float,
    ) -> Intent:
        match action:
            case actions.Launch():
                kind, generation = IntentKind.LAUNCH, action.generation
                request = self._launch_request(conn, tasks[job.id, action.task], job, action, now)
            case actions.Terminate():
                kind, generation = IntentKind.TERMINATE, action.generation
                request = self._terminate_request(job, action)
                if job.id in hosts:
                    request |= _keeping_disks(conn, hosts[job.id], job, action)
            case actions.PrepareStorage():
                kind, generation = IntentKind.PREPARE_STORAGE, 0
                request = {"queue": _queue_key(job, tasks[job.id, action.task])}
        token = self.incarnations.launch_token(self.controller, (job.id, action.task, generation))
        return Intent(UNSAVED, job.id, action.task, generation, kind, token, request, now)

    def record_removal(self, conn: Connection, job: JobView, now: float) -> list[Intent]:
        """Record the removal of the buckets that were created for this job and end with it, if there are any."""
        if not removable(conn, job.id):
            return []
        token = self.incarnations.launch_token(self.controller, (job.id, 0, 0))
        return intents.add_all(conn, [Intent(UNSAVED, job.id, 0, 0, IntentKind.REMOVE_STORAGE, token, {}, now)])

    def _launch_request(
        self, conn: Connection, row: Row[Any], job: JobView, action: actions.Launch, now: float
    ) -> dict[str, Any]:
        is_host = row.spec.get("host", False)
        keeps_disks = is_host and action.offer.cloud in self.stoppable
        options = machine_options(row.spec, job.tasks[action.task].requirements, action.offer)
        ports = [str(port) for port in options.pop("ports", ())]
        return {
            "controller": self.controller,
            "offer": codec.encode_offer(action.offer),
            "num_nodes": action.num_nodes,
            "name": f"perdure-{row.name}-{job.id}-{action.task}-{action.generation}",
            "queue": _queue_key(job, row),
            **options,
            **_cloud_settings(row.spec, action.offer.cloud),
            **_mount_modes(row.spec),
            **(self._on_kept_disks(conn, row.cluster_id, job, action, now) if keeps_disks else {}),
            **(self._open_ports(conn, row.cluster_id, action.offer, ports) if is_host and ports else {}),
        }

    def _on_kept_disks(
        self, conn: Connection, cluster_id: int, job: JobView, action: actions.Launch, now: float
    ) -> dict[str, Any]:
        """Of a launch for a cluster: whether its machines may be stopped, and the stopped ones that are to be started.

        A cluster that recovers by itself does so on other machines, unless it has been stopped before. A controller
        of an older version would end stopped machines: while one lives, no others are kept.
        """
        if action.offer.market is not Market.ON_DEMAND:
            return {}
        kept = cluster_disks.of_clusters(conn, [cluster_id]).get(cluster_id, [])
        if len(kept) == action.num_nodes and all(codec.decode_offer(row.offer).key == action.offer.key for row in kept):
            return {"keeps_disks": True, "cluster_id": cluster_id, "resumes": [row.instance_id for row in kept]}
        if not self.keep_disks or job.tasks[action.task].recovery.recovers:
            return {}
        return {} if older_controllers(conn, cluster_disks.SINCE_REVISION, now) else {"keeps_disks": True}

    def _open_ports(self, conn: Connection, cluster_id: int, offer: Offer, ports: Sequence[str]) -> dict[str, Any]:
        """The ports that a launch for a cluster opens. Where, is recorded with it."""
        if offer.cloud not in self.opens_ports:
            return {}
        cluster_ports.add(conn, cluster_id, offer.cloud, offer.region)
        name = cluster_ports.rule_name(self.controller, cluster_id)
        return {"open_ports": {"name": name, "ports": list(ports)}}

    def _terminate_request(self, job: JobView, action: actions.Terminate) -> dict[str, Any]:
        attempt = job.tasks[action.task].attempt(action.generation)
        assert attempt is not None, "an attempt lives until its termination is confirmed"
        request = {"controller": self.controller, "offer": codec.encode_offer(attempt.offer)}
        if attempt.reason is not Reason.BOOT_TIMEOUT:
            return request
        return {**request, "never_called": [n.rank for n in attempt.nodes if n.phase is NodePhase.NOT_CONNECTED]}


def _read_tasks(conn: Connection, job_ids: Collection[int]) -> dict[tuple[int, int], Any]:
    """What requests need to know of the tasks of these jobs, by job and index."""
    rows = conn.execute(_TASKS, {"job_ids": list(job_ids)}) if job_ids else ()
    return {(row.job_id, row.task_index): row for row in rows}


def _cloud_settings(spec: Mapping[str, Any], cloud: str) -> dict[str, Any]:
    """The task's own settings of the cloud, for a cloud that has any."""
    settings = spec.get("cloud_settings", {}).get(cloud)
    return {"settings": settings} if settings else {}


def _mount_modes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """How the task mounts buckets, if it does."""
    modes = sorted({mount["mode"] for mount in spec.get("mounts", ())} - {"COPY"})
    return {"mount_modes": modes} if modes else {}


def _keeping_disks(conn: Connection, host: Row[Any], job: JobView, action: actions.Terminate) -> dict[str, Any]:
    """Of the end of a cluster's machines: that they are only stopped, if their disks may have data of the user."""
    launched = cluster_disks.launch_request(conn, job.id, action.generation)
    has_content = job.tasks[action.task].has_run or "resumes" in launched
    if host.wanted == DOWN or not launched.get("keeps_disks") or not has_content:
        return {}
    options = {name: launched.get(name) for name in ("disk_gib", "disk_tier", "resumes")}
    attempt = job.tasks[action.task].attempt(action.generation)
    # Machines that were started again have data, also if they have never called.
    is_silent = attempt is not None and all(node.phase is NodePhase.NOT_CONNECTED for node in attempt.nodes)
    return {"keeps_disks": True, "cluster_id": host.cluster_id, "is_silent": is_silent, **options}


def _queue_key(job: JobView, submitter: Row[Any]) -> dict[str, Any]:
    """What orders this intent among those of other jobs: fields of `call_order.QueuedLaunch`."""
    return {"user": submitter.user, "priority": submitter.priority, "has_run": any(task.has_run for task in job.tasks)}
