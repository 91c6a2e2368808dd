"""What users do with clusters: launch, exec, stop, start, down, autostop, cancel.

Each is idempotent, and each leaves a state from which the rest follows after a crash: the row of the cluster says what
is wanted, and `maintenance.cluster_upkeep` completes what was begun. Bad input raises RequestRejected.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import IntegrityError

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.clusters import cluster_disks, cluster_homes, idle_rules
from perdure.controller.store.clusters.idle_rules import IdleRule
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import STOPPED, UP, ClusterHost
from perdure.controller.submit.cluster.cluster_tasks import (
    OnCluster,
    accelerator_of,
    demand_of,
    job_config,
    job_key,
    lacking,
    masked_host_config,
    short_resources,
    unchanged_warnings,
    with_secrets,
)
from perdure.controller.submit.cluster.discarded_disks import require_unused
from perdure.controller.submit.cluster.requests import (
    LaunchOptions,
    OfCluster,
    name_is_taken,
    no_such_cluster,
    parse_one_task,
    with_autostop,
)
from perdure.controller.submit.errors import RequestRejected, Superseded
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.service import Accepted, Submission, is_stopped
from perdure.sdk import Task

_NAME = re.compile(r"[a-zA-Z](?:[-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_MAX_NAME_CHARS = 63
_MACHINE = re.compile(r"job-[0-9]+|.*-worker[0-9]+")  # `api.tunnel.names`

# What changes when a cluster is started, stopped or used, when a job is added, or when autostop is set.
_OF_USE = ("wanted", "starts", "autostop_s", "autostop_down", "active_at", "next_job")

Accept = Callable[[Submission], Accepted]
"""Stores a submission and hands its job to the reconciler."""
Cancel = Callable[[Sequence[int], float | None], None]
"""Cancels jobs by their ids, with this many seconds to save (None: the default)."""


@dataclass(frozen=True)
class ClusterService:
    """Clusters of one installation. Every method raises RequestRejected, and what the database raises."""

    database: Engine
    clock: Clock
    keyring: Keyring
    accept: Accept
    cancel: Cancel
    job_added: Callable[[int, int], None]  # (job id, cluster id): for the queue
    save_s: float = 900.0  # how long machines that end may save their homes, and upload what cached mounts hold

    # --- launch and exec ----------------------------------------------------------------------------------

    def launch(
        self, name: str | None, config: Mapping[str, Any], by: Requester, key: str, options: LaunchOptions
    ) -> OfCluster:
        """Create or start the cluster `name`, and queue the job of the task. Repeating it with `key` does it once."""
        task, cluster = parse_one_task(config), self._used_by(key)
        warnings: tuple[str, ...] = ()
        if cluster is None:  # otherwise its job was added before, whatever has happened since
            cluster, warnings = self._launch_machines(name, config, task, by, key, options)
        if not options.with_job or not (config.get("run") or (options.with_setup and config.get("setup"))):
            return OfCluster(cluster.id, cluster.name, warnings=warnings)
        demand = demand_of(task, is_launch=True)
        place = OnCluster(cluster.id, cluster.name, is_job=True, demand=demand, limit_s=options.limit_s)
        added = self._add_job(job_config(config, with_setup=options.with_setup), task, by, key, place, cluster.user)
        return replace(added, warnings=(*warnings, *added.warnings))

    def exec(self, name: str, config: Mapping[str, Any], by: Requester, key: str, limit_s: float | None) -> OfCluster:
        """Queue a job without `setup` on a cluster that is up. Repeating it with `key` does it once."""
        task, cluster = parse_one_task(config), self._used_by(key)
        if cluster is None:
            cluster = self.get(name, by.of)
            if cluster.wanted != UP:
                raise is_stopped(name)
            self._require_room(cluster, task)
        demand = demand_of(task, is_launch=False)
        place = OnCluster(cluster.id, cluster.name, is_job=True, demand=demand, limit_s=limit_s, needs_up=True)
        return self._add_job(job_config(config, with_setup=False), task, by, key, place, cluster.user)

    def _used_by(self, key: str) -> Row[Any] | None:
        """The cluster to which a request with this key has added a job; None if there is none."""
        with self.database.connect() as conn:
            return clusters.with_job(conn, job_key(key))

    def _launch_machines(
        self, name: str | None, config: Mapping[str, Any], task: Task, by: Requester, key: str, options: LaunchOptions
    ) -> tuple[Row[Any], tuple[str, ...]]:
        """Create or start the cluster. Returns it, and warnings: of a new one those of its machines."""
        warnings: tuple[str, ...] = ()
        options = with_autostop(options, task)
        with self.database.connect() as conn:
            cluster = clusters.find_by_key(conn, key) or (clusters.find(conn, name) if name else None)
        if cluster is None:
            cluster = self._create(name, config, task, by.user, key, options)
        elif by.of not in (None, cluster.user):
            raise name_is_taken(cluster.name)
        elif cluster.idempotency_key != key:
            self._require_room(cluster, task)
            warnings = unchanged_warnings(cluster.name, cluster.config, config)
            self._set_autostop(cluster, options)
            self._want_up(cluster.id)
        of_machines = self.ensure_host(cluster.id, by)
        failpoint("cluster.launched")
        return cluster, of_machines if cluster.idempotency_key == key else warnings

    def _create(
        self, name: str | None, config: Mapping[str, Any], task: Task, user: str, key: str, options: LaunchOptions
    ) -> Row[Any]:
        name = name or f"sky-{secrets.token_hex(2)}-{re.sub('[^a-z0-9]', '', user.lower()) or 'user'}"
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
            fix = f"use at most {_MAX_NAME_CHARS} letters, digits, `-`, `_` and `.`; begin with a letter"
            raise RequestRejected(f"{name!r} cannot be the name of a cluster", where="name", fix=fix)
        if _MACHINE.fullmatch(name):
            fix = "use a name that is neither job-N nor ends in -workerN"
            raise RequestRejected(f"{name!r} names a machine, not a cluster", where="name", fix=fix)
        (machines, sealed), now = masked_host_config(config), self.clock.now()
        columns = {
            "name": name,
            "active_name": name,
            "user": user,
            "wanted": UP,
            "created_at": now,
            "launched_at": now,
            "active_at": now,
            "autostop_s": options.autostop_s,
            "autostop_down": options.autostop_down,
            "recover": options.recover,
            "config": machines,
            "secrets": self.keyring.seal(sealed) if sealed else None,
            "resources": short_resources(task),
            "command": options.command,
            "idempotency_key": key,
            "cause": "",
            "next_job": 1,
            "starts": 1,
        }
        try:
            with self.database.begin() as conn:
                idle_rules.store(conn, clusters.insert_cluster(conn, columns), options.idle)
            failpoint("cluster.created")
        except IntegrityError as error:  # another request has created it a moment ago
            with self.database.connect() as conn:
                own = clusters.find_by_key(conn, key)
            if own is not None:  # the same one, whose connection broke
                return own
            raise RequestRejected(
                f"the cluster {name} is being launched by another request", fix="try again", status=409
            ) from error
        return self.get(name)

    def ensure_host(self, cluster_id: int, by: Requester | None = None, *, discards: bool = False) -> tuple[str, ...]:
        """Submit the job that holds the machines of a cluster that is wanted, unless it was submitted before. `by`:
        who requests it; None: the controller itself. `discards`: the kept disks. While the machines are still being
        stopped, the upkeep does it later. Returns warnings.

        Raises RequestRejected if no cloud can have such machines; then a new cluster is down again, and one that was
        started is stopped again.
        """
        with self.database.connect() as conn:
            cluster = clusters.get(conn, cluster_id)
            if cluster is None or cluster.wanted != UP:
                return ()
            key = clusters.host_key(cluster_id, cluster.starts)
            if cluster_disks.is_ending(conn, cluster_id, key):
                return ()
            kept = None if discards else cluster_disks.of_clusters(conn, [cluster_id]).get(cluster_id)
        config = with_secrets(cluster.config, self.keyring.unseal(cluster.secrets))
        of_start = {
            "recovers": cluster.recover,
            "starts": cluster.starts,
            "kept_offer": kept[0].offer if kept else None,
        }
        place = OnCluster(cluster_id, cluster.name, is_job=False, discards_disks=discards, **of_start)
        try:
            of, trusted = (by.of, by.may_run_callbacks) if by else (None, True)
            host = Submission(
                cluster.name, [config], cluster.user, key, cluster=place, uploads_of=of, may_run_callbacks=trusted
            )
            accepted = self.accept(host)
        except Superseded:
            return ()  # the request that did it goes on
        except RequestRejected:
            self.give_up(cluster)
            raise
        self.job_added(accepted.job_id, cluster_id)
        return accepted.warnings

    def _add_job(
        self, config: Mapping[str, Any], task: Task, by: Requester, key: str, place: OnCluster, owner: str
    ) -> OfCluster:
        """`owner`: the user of the cluster."""
        job = Submission(
            task.name,
            [config],
            owner if by.for_owner else by.user,
            job_key(key),
            cluster=place,
            actor=by.actor,
            uploads_of=by.of,
            may_run_callbacks=by.may_run_callbacks,
        )
        accepted = self.accept(job)
        self.job_added(accepted.job_id, place.cluster_id)
        with self.database.connect() as conn:
            number = clusters.number_of(conn, accepted.job_id)
        return OfCluster(place.cluster_id, place.name, number, accepted.job_id, accepted.warnings)

    def _require_room(self, cluster: Row[Any], task: Task) -> None:
        """Raises RequestRejected if the cluster's machines can never take the job. Unknown machines may."""
        demand, wanted = demand_of(task, is_launch=False), accelerator_of(task)
        with self.database.connect() as conn:
            host = clusters.hosts(conn, [cluster.id]).get(cluster.id)
        attempt = host.attempts[-1] if host and host.attempts else None
        if attempt is None:
            return
        has = attempt.offer["accelerators"][0] if attempt.offer.get("accelerators") else None
        if why := lacking(has, wanted, attempt.rooms(), demand, task.num_nodes):
            raise RequestRejected(
                f"the cluster {cluster.name} ({cluster.resources}) cannot run this task: {why}",
                where="resources",
                fix="ask for less, use a new cluster name, or take the cluster down first",
                status=409,
            )

    # --- stop, start, down, autostop, cancel --------------------------------------------------------------

    # `of`: the user whose clusters may be changed; None: those of everybody. Another's is as one that does not exist.

    def get(self, name: str, of: str | None = None) -> Row[Any]:
        """The cluster of that name that is not down."""
        with self.database.connect() as conn:
            cluster = clusters.find(conn, name)
        if cluster is None or of not in (None, cluster.user):
            raise no_such_cluster(name)
        return cluster

    def stop(self, name: str, *, cause: str = "", of: str | None = None) -> None:
        """End the machines of a cluster. Its queue stays, and running jobs wait to start again."""
        self.stop_cluster(self.get(name, of).id, cause=cause)

    def stop_cluster(self, cluster_id: int, *, cause: str = "", seen: Row[Any] | None = None) -> None:
        """`stop` by id. Changes nothing if the cluster is down, or was used or changed since it was `seen`."""
        with self.database.begin() as conn:
            is_wanted = _is_as(conn, seen) and clusters.change(conn, cluster_id, wanted=STOPPED, cause=cause)
            host = _host(conn, cluster_id)
            saves = cluster_homes.wanted_of(conn, cluster_id) or cluster_homes.has_cached_mounts(conn, cluster_id)
        failpoint("cluster.stopped")
        if is_wanted:
            self._end_host(host, self.save_s if saves else None)

    def start(self, name: str, of: str | None = None, *, discards_disks: bool = False) -> OfCluster:
        """Launch machines for a cluster that is stopped or has lost them. `discards_disks`: not those that it kept."""
        cluster = self.get(name, of)
        if discards_disks:
            require_unused(self.database, cluster)
        self._want_up(cluster.id)
        self.ensure_host(cluster.id, discards=discards_disks)
        return OfCluster(cluster.id, cluster.name)

    def _want_up(self, cluster_id: int) -> None:
        """Want machines: other ones, if the cluster does not have some or is about to. Not if it is down."""
        with self.database.begin() as conn:
            cluster, now = clusters.lock(conn, cluster_id), self.clock.now()
            if cluster is not None and not _is_held(cluster, _host(conn, cluster_id)):
                starts = cluster.starts + 1
                clusters.change(conn, cluster_id, wanted=UP, cause="", starts=starts, active_at=now, launched_at=now)
        failpoint("cluster.started")

    def down(self, name: str, *, cause: str = "", of: str | None = None) -> int:
        """End a cluster with its queue. Its jobs are cancelled; their logs stay readable under its name.

        Repeating it changes nothing. Returns the id of the cluster.
        """
        with self.database.connect() as conn:
            cluster = clusters.find(conn, name, gone=True, user=of)
        if cluster is None:
            raise no_such_cluster(name)
        self.down_cluster(cluster.id, cause=cause)
        return int(cluster.id)

    def down_cluster(self, cluster_id: int, *, cause: str = "", seen: Row[Any] | None = None) -> None:
        """`down` by id. Changes nothing if the cluster was used or changed since it was `seen`."""
        with self.database.begin() as conn:
            if not _is_as(conn, seen) or not clusters.take_down(conn, cluster_id, cause):
                return
            idle_rules.store(conn, cluster_id, IdleRule())  # nothing of it is left in the facts
            host, unfinished = _host(conn, cluster_id), clusters.unfinished_jobs(conn, cluster_id)
            uploads = cluster_homes.has_cached_mounts(conn, cluster_id)
        failpoint("cluster.downed")
        if unfinished:
            self.cancel(unfinished, None)
        self._end_host(host, self.save_s if uploads else None)

    def give_up(self, cluster: Row[Any]) -> None:
        """The machines of this start could not be had: a new cluster is down, another one is stopped.

        Changes nothing if the cluster was used or changed since `cluster` was read, or has machines meanwhile.
        """
        with self.database.connect() as conn:
            host = _host(conn, cluster.id)
        if host is not None and host.outcome is None and host.key == clusters.host_key(cluster.id, cluster.starts):
            return
        if cluster.starts == 1:
            self.down_cluster(cluster.id, cause="failed", seen=cluster)
        else:
            self.stop_cluster(cluster.id, cause="failed", seen=cluster)

    def _end_host(self, host: ClusterHost | None, grace_s: float | None = None) -> None:
        """End the machines that a job holds. The jobs on them have the usual time to save; the machines, `grace_s`."""
        if host is not None and not host.cancelled and host.outcome is None:
            self.cancel([host.job_id], grace_s)

    def autostop(self, name: str, seconds: float | None, rule: IdleRule, *, down: bool, of: str | None = None) -> None:
        """Stop the cluster, or take it down, once it was idle for `seconds`; None: never."""
        cluster = self.get(name, of)
        with self.database.begin() as conn:
            now = self.clock.now()
            if clusters.change(conn, cluster.id, autostop_s=seconds, autostop_down=down, active_at=now):
                idle_rules.store(conn, cluster.id, rule)

    def _set_autostop(self, cluster: Row[Any], options: LaunchOptions) -> None:
        changes: dict[str, Any] = {"active_at": self.clock.now()}
        if options.autostop_s is not None:
            changes |= {"autostop_s": options.autostop_s, "autostop_down": options.autostop_down}
        if options.recover:
            changes["recover"] = True
        with self.database.begin() as conn:
            is_changed = clusters.change(conn, cluster.id, **changes)
            if is_changed and options.autostop_s is not None:
                idle_rules.store(conn, cluster.id, options.idle)

    def cancel_jobs(
        self, name: str, numbers: Collection[int] | None, *, everything: bool, of: str | None = None
    ) -> dict[str, list[int]]:
        """Cancel jobs by their numbers (none if there are none), all, or with `numbers` None the newest that runs."""
        cluster = self.get(name, of)
        with self.database.connect() as conn:
            known = clusters.numbered_jobs(conn, cluster.id)
            unfinished = set(clusters.unfinished_jobs(conn, cluster.id))
            running = clusters.running_jobs(conn, cluster.id)
        open_numbers = [number for number, job_id in known.items() if job_id in unfinished]
        if numbers is not None:
            chosen = sorted(set(numbers))
        elif everything:
            chosen = open_numbers
        else:
            chosen = [number for number in open_numbers if known[number] in running][-1:]
        cancelled = [number for number in chosen if number in open_numbers]
        if cancelled:
            self.cancel([known[number] for number in cancelled], None)
        return {
            "cancelled": cancelled,
            "finished": [number for number in chosen if number in known and number not in cancelled],
            "unknown": [number for number in chosen if number not in known],
        }


def _host(conn: Connection, cluster_id: int) -> ClusterHost | None:
    return clusters.hosts(conn, [cluster_id]).get(cluster_id)


def _is_as(conn: Connection, seen: Row[Any] | None) -> bool:
    """Whether nothing has used or changed a cluster since it was `seen`, if it was; until the transaction ends."""
    if seen is None:
        return True
    row = clusters.lock(conn, seen.id)
    return row is not None and all(getattr(row, name) == getattr(seen, name) for name in _OF_USE)


def _is_held(cluster: Row[Any], host: ClusterHost | None) -> bool:
    """Whether machines are wanted, and those of the last start are not lost."""
    if cluster.wanted != UP:
        return False
    is_current = host is not None and host.key == clusters.host_key(cluster.id, cluster.starts)
    return not is_current or host is None or (host.outcome is None and not host.cancelled)
