"""Completes what users have asked of clusters: autostop, launches that failed, limits of jobs, and what a crash left.

Called every second. It reads the database alone, so any controller may do it, and twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row

from perdure.controller.maintenance.stream_activity import StreamActivity
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.clusters import idle_rules
from perdure.controller.store.clusters.idle_rules import WaitFor
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import cluster_slots, clusters
from perdure.controller.store.records.clusters import DOWN, UP, ClusterHost
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
# A machine counts as used for so long after a session was seen to be open: until the next look, of this daemon or, if
# another one looks first, of that.
_SESSION_LEAD_S = 3.0

BusyJobs = Callable[[Mapping[int, float]], set[int]]
"""Returns those of the jobs whose machines use the share that is given for each, or do not say what they use."""


@dataclass(frozen=True)
class ClusterUpkeep:
    """Watches the clusters of an installation. `busy_jobs`: of the machines that are connected to this controller."""

    database: Engine
    clock: Clock
    service: ClusterService
    busy_jobs: BusyJobs = lambda _floors: set()
    streams: StreamActivity = field(default_factory=StreamActivity)
    _last_ends: dict[int, tuple[int, float]] = field(default_factory=dict)  # cluster → (its `next_job`, its last end)

    def tick(self) -> None:
        """Look at every cluster once. Logs errors and raises none."""
        try:
            self._record_uses()
            with self.database.connect() as conn:
                rows = clusters.unsettled(conn)
                hosts = clusters.hosts(conn, [row.id for row in rows])
                overdue, stray = self._overdue_jobs(conn), clusters.stray_hosts(conn)
                floors = idle_rules.floors(conn)
            if overdue:
                self.service.cancel(overdue, None)
            if stray:
                self.service.cancel(stray, self.service.save_s)
            self._record_busy(rows, hosts, floors)
            for row in rows:
                self._settle(row, hosts.get(row.id))
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))

    def _record_uses(self) -> None:
        """Let every controller know which machines were used through streams of this one."""
        uses = self.streams.take(self.clock.now())
        if not uses:
            return
        with self.database.begin() as conn:
            for job_id, use in uses.items():
                idle_rules.record_session(conn, job_id, use.used_at + (_SESSION_LEAD_S if use.is_entered else 0.0))

    def _record_busy(
        self, rows: Sequence[Row[Any]], hosts: Mapping[int, ClusterHost], floors: Mapping[int, float]
    ) -> None:
        """Let every controller know which of the machines that are connected to this one are busy."""
        wanted = {host.job_id: floors[id] for id, host in hosts.items() if id in floors}
        busy = self.busy_jobs(wanted) if wanted else set()
        now = self.clock.now()
        used = [row for row in rows if (host := hosts.get(row.id)) and host.job_id in busy]
        if recorded := [row.id for row in used if row.active_at < now]:
            with self.database.begin() as conn:
                for cluster_id in recorded:
                    idle_rules.record_use(conn, cluster_id, now + _SESSION_LEAD_S)

    def _settle(self, cluster: Row[Any], host: ClusterHost | None) -> None:
        try:
            if cluster.wanted == UP:
                self._settle_wanted(cluster, host)
            elif cluster.wanted == DOWN:
                self._cancel_left(cluster.id)
        except RequestRejected as error:  # it was changed meanwhile, or no cloud has such machines any more
            log.info("cluster.not_settled", cluster=cluster.name, error=str(error))
        except UNAVAILABLE:
            raise
        except Exception:  # a bug or a lost key: it costs this cluster alone
            log.exception("cluster.not_settled", cluster=cluster.name)

    def _settle_wanted(self, cluster: Row[Any], host: ClusterHost | None) -> None:
        if host is None or host.key != clusters.host_key(cluster.id, cluster.starts):
            self.service.ensure_host(cluster.id)  # a controller died in the middle of a launch or a start
        elif host.outcome is not None:
            self._settle_ended(cluster, host)
        elif (idle_s := self._idle_s(cluster, host)) is not None and idle_s >= cluster.autostop_s:
            log.info("cluster.autostop", cluster=cluster.name, idle_s=round(idle_s), down=cluster.autostop_down)
            self._autostop(cluster)

    def _settle_ended(self, cluster: Row[Any], host: ClusterHost) -> None:
        """The job that held the machines has ended, which nobody asked of the cluster."""
        if host.outcome == Reason.NOT_RECOVERED.value:
            # The user sees PREEMPTED, and decides; unless autostop would have ended it by now, as its own nodes know.
            idle_s = self._unused_s(cluster)
            if cluster.autostop_s is not None and idle_s is not None and idle_s >= cluster.autostop_s:
                self._autostop(cluster)
        elif not host.has_run:
            self.service.give_up(cluster)
        elif host.outcome == Reason.COMPLETED.value:  # its nodes were idle and could not reach a controller
            self._autostop(cluster)
        else:
            log.warning("cluster.lost", cluster=cluster.name, reason=host.outcome, message=host.message)
            self.service.stop_cluster(cluster.id, cause="failed", seen=cluster)

    def _autostop(self, cluster: Row[Any]) -> None:
        if cluster.autostop_down:
            self.service.down_cluster(cluster.id, cause="autostop", seen=cluster)
        else:
            self.service.stop_cluster(cluster.id, cause="autostop", seen=cluster)

    def _idle_s(self, cluster: Row[Any], host: ClusterHost) -> float | None:
        """For how long nothing has used the cluster that autostop waits for.

        None if something does, it is not up, or it has no autostop.
        """
        attempt = host.running
        if cluster.autostop_s is None or attempt is None or attempt.running_at is None:
            return None
        return self._unused_s(cluster, since=attempt.running_at)

    def _unused_s(self, cluster: Row[Any], since: float = 0.0) -> float | None:
        """For how long, at most from `since`, no use of a cluster has delayed its autostop. None while one does."""
        active_at: float = max(cluster.active_at, since)
        with self.database.connect() as conn:
            rule = idle_rules.get(conn, cluster.id)
            if rule.below is not None:
                active_at = max(active_at, clusters.last_job_submitted_at(conn, cluster.id) or 0.0)
            elif rule.wait_for is not WaitFor.NONE:
                if clusters.unfinished_jobs(conn, cluster.id):
                    return None
                active_at = max(active_at, self._last_end(conn, cluster))
        return self.clock.now() - active_at

    def _last_end(self, conn: Connection, cluster: Row[Any]) -> float:
        """When the last job of a cluster ended, all of whose jobs have ended; 0 if it had none.

        Reading all past jobs takes long, and it changes only with the next job.
        """
        next_job, ended_at = self._last_ends.get(cluster.id, (None, 0.0))
        if next_job != cluster.next_job:
            ended_at = clusters.last_job_ended_at(conn, cluster.id) or 0.0
            self._last_ends[cluster.id] = (cluster.next_job, ended_at)
        return ended_at

    def _cancel_left(self, cluster_id: int) -> None:
        """The jobs that were added while the cluster went down."""
        with self.database.connect() as conn:
            left = clusters.uncancelled_jobs(conn, cluster_id)
        if left:
            self.service.cancel(left, None)

    def _overdue_jobs(self, conn: Connection) -> list[int]:
        """The jobs that have run for as long as they may, and do not end by themselves."""
        now = self.clock.now()
        running = {row.job_id for row in cluster_slots.held(conn) if row.stop_at is None}
        ends_by = clusters.ends_by(conn, running, now, without_rule=True)
        return sorted(job_id for job_id, ends_at in ends_by.items() if now >= ends_at)
