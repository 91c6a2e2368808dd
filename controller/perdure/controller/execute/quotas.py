"""Counts each cloud's machines and each user's running jobs, and decides which launches their quotas hold back.

The number of calls in flight is limited by `concurrency`, and the number of unfinished jobs by `submit.service`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from perdure.controller.execute.call_order import QueuedLaunch
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.queries.usage import Usage

_UNKNOWN_USAGE = "the usage is not known yet ({})"


@dataclass
class Reservation:
    """A launch that this controller started and the database does not show yet."""

    launch: QueuedLaunch
    cloud: str
    snapshot: int  # the number of the last snapshot before it


class QuotaTracker:
    """Adds up the usage that the database shows and this controller's launches since then.

    This controller's own launches are never undercounted. Launches of other controllers appear at the next `refresh`.
    No launch that a quota limits may begin before the first `refresh`.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._usage: Usage | None = None
        self._reservations: dict[AttemptKey, Reservation] = {}
        self._snapshots = 0
        self._machines: Counter[str] = Counter()
        self._jobs: dict[str, set[int]] = {}

    @property
    def reserved(self) -> Collection[AttemptKey]:
        """Launches that count here until the database shows them."""
        return self._reservations.keys()

    def snapshot(self) -> int:
        """Take a number for `refresh`, before the usage is read."""
        self._snapshots += 1
        return self._snapshots

    def refresh(self, usage: Usage, snapshot: int) -> None:
        """Replace the usage with one that was read after `snapshot` was taken."""
        self._usage = usage
        for key, reservation in list(self._reservations.items()):
            is_shown = key in usage.machines or key not in usage.requested
            if reservation.snapshot < snapshot and is_shown:
                del self._reservations[key]
        self._count()

    def blocked_reason(self, cloud: str, launch: QueuedLaunch) -> str | None:
        """Why `launch` has to wait; None if it may begin."""
        return self.user_blocked_reason(launch) or self.cloud_blocked_reason(cloud, launch)

    def user_blocked_reason(self, launch: QueuedLaunch) -> str | None:
        usage = self._usage or Usage()
        if (spent := usage.blocked.get(launch.user)) is not None and launch.machines and not launch.has_run:
            return spent
        own_limit = usage.max_running.get(launch.user)
        limit = self._quotas.max_running_jobs_per_user if own_limit is None else own_limit
        if limit is None or launch.has_run or not launch.machines or launch.key in self._reservations:
            return None
        jobs = self._jobs.get(launch.user, set())
        if launch.key[0] in jobs:
            return None
        if self._usage is None:
            return _UNKNOWN_USAGE.format("limits.max_running_jobs_per_user")
        if len(jobs) < limit:
            return None
        setting = "limits.max_running_jobs_per_user" if own_limit is None else "perdure users update --max-running-jobs"
        count = f"{launch.user or 'its user'} has machines for {len(jobs)} of {limit} jobs at a time"
        return f"{count} ({setting}); clusters and replicas of services count as jobs"

    def cloud_blocked_reason(self, cloud: str, launch: QueuedLaunch) -> str | None:
        limit = self._quotas.max_machines.get(cloud)
        if limit is None or launch.key in self._reservations or not 0 < launch.machines <= limit:
            return None  # the executor refuses a launch that never fits
        if self._usage is None:
            return _UNKNOWN_USAGE.format(f"{cloud}.max_machines")
        if self._machines[cloud] + launch.machines <= limit:
            return None
        return f"{cloud} has {self._machines[cloud]} of {limit} machines ({cloud}.max_machines)"

    def reserve(self, cloud: str, launch: QueuedLaunch) -> None:
        """Count `launch` from now on."""
        if launch.machines and launch.key not in self._reservations:
            self._reservations[launch.key] = Reservation(launch, cloud, self._snapshots)
            self._add(launch.key, launch.user, cloud, launch.machines)

    def release(self, launch: QueuedLaunch) -> None:
        """`launch` failed and left no machine: stop counting it."""
        if self._reservations.pop(launch.key, None) is not None:
            self._count()

    def _count(self) -> None:
        self._machines.clear()
        self._jobs.clear()
        usage = self._usage or Usage()
        for job_id, user in usage.users.items():
            self._jobs.setdefault(user, set()).add(job_id)
        for cloud, machines in usage.machines.values():
            self._machines[cloud] += machines
        for key, reservation in self._reservations.items():
            if key not in usage.machines:
                self._add(key, reservation.launch.user, reservation.cloud, reservation.launch.machines)

    def _add(self, key: AttemptKey, user: str, cloud: str, machines: int) -> None:
        self._machines[cloud] += machines
        self._jobs.setdefault(user, set()).add(key[0])
