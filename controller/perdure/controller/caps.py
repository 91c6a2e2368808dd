"""How many machines and jobs there may be at a time: what is counted, and what has to wait until there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from perdure.controller.bounds import Bounds
from perdure.controller.keyring import AttemptKey
from perdure.controller.lanes import Launch


@dataclass(frozen=True)
class Standing:
    """What the database knows. `machines`: of each attempt whose machines exist or may, its cloud and how many.
    `users`: by job, of the jobs that have machines, or have had some and get new ones. `asked`: of the attempts asked
    for, those whose launch is not answered yet."""

    machines: dict[AttemptKey, tuple[str, int]] = field(default_factory=dict)
    users: dict[int, str] = field(default_factory=dict)
    asked: frozenset[AttemptKey] = frozenset()


@dataclass
class _Begun:
    launch: Launch
    cloud: str
    at: int


class Caps:
    """Counts what stands, and what this daemon launches meanwhile. Nothing may begin before `update` was called once.

    Never counts too little of what this daemon does; what other controllers launch is seen at the next `update`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._standing: Standing | None = None
        self._begun: dict[AttemptKey, _Begun] = {}
        self._updates = 0
        self._machines: Counter[str] = Counter()
        self._jobs: dict[str, set[int]] = {}

    @property
    def begun(self) -> Collection[AttemptKey]:
        """Launches that are counted here until the database is seen to know of them."""
        return self._begun.keys()

    def mark(self) -> int:
        """To be taken before the database is read, for `update`."""
        self._updates += 1
        return self._updates

    def update(self, standing: Standing, mark: int) -> None:
        """Take up what the database knew after `mark` was taken."""
        self._standing = standing
        for key, begun in list(self._begun.items()):
            is_known = key in standing.machines or key not in standing.asked
            if begun.at < mark and is_known:
                del self._begun[key]
        self._count()

    def why_not(self, cloud: str, launch: Launch) -> str | None:
        """Why `launch` has to wait; None where it may begin."""
        return self.why_user_waits(launch) or self.why_cloud_is_full(cloud, launch)

    def why_user_waits(self, launch: Launch) -> str | None:
        most = self._bounds.most_running_per_user
        if most is None or launch.is_begun or not launch.machines or launch.key in self._begun:
            return None
        jobs = self._jobs.get(launch.user, set())
        if launch.key[0] in jobs or (self._standing is not None and len(jobs) < most):
            return None
        return f"{launch.user or 'its user'} has {most} jobs running (limits.most_running_per_user)"

    def why_cloud_is_full(self, cloud: str, launch: Launch) -> str | None:
        most = self._bounds.most_machines.get(cloud)
        if most is None or launch.key in self._begun or not 0 < launch.machines <= most:
            return None  # what never fits is for the caller to refuse
        if self._standing is not None and self._machines[cloud] + launch.machines <= most:
            return None
        return f"{cloud} has {self._machines[cloud]} of {most} machines ({cloud}.most_machines)"

    def begin(self, cloud: str, launch: Launch) -> None:
        """`launch` is asked for from now on."""
        if launch.machines and launch.key not in self._begun:
            self._begun[launch.key] = _Begun(launch, cloud, self._updates)
            self._add(launch.key, launch.user, cloud, launch.machines)

    def failed(self, launch: Launch) -> None:
        """`launch` was refused, and no machine is left of it."""
        if self._begun.pop(launch.key, None) is not None:
            self._count()

    def _count(self) -> None:
        self._machines.clear()
        self._jobs.clear()
        standing = self._standing or Standing()
        for job_id, user in standing.users.items():
            self._jobs.setdefault(user, set()).add(job_id)
        for cloud, machines in standing.machines.values():
            self._machines[cloud] += machines
        for key, begun in self._begun.items():
            if key not in standing.machines:
                self._add(key, begun.launch.user, begun.cloud, begun.launch.machines)

    def _add(self, key: AttemptKey, user: str, cloud: str, machines: int) -> None:
        self._machines[cloud] += machines
        self._jobs.setdefault(user, set()).add(key[0])
