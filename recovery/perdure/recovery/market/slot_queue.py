"""The queue of a cluster: which of its jobs start now, and on which nodes.

First in, first out, with backfill that never delays the head. A job behind the head starts early only if it ends before
the head's reservation, or leaves room for the head at that time. The reservation is the earliest time at which the head
fits if every running job ends at its limit; a running job without a limit may end at any moment, so it holds up no
reservation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.recovery.frozen import replace

SLOT_CLOUD = "cluster"
"""The `cloud` of the offers that are slots on machines which a cluster already has."""
DEFAULT_CPUS = 0.5
"""What a job takes that requests no CPUs: as in SkyPilot, so that small commands run beside large ones."""

# Shares of a GPU are compared with this tolerance: thirds do not add up to 1.
_EPSILON = 1e-6


@dataclass(frozen=True)
class Demand:
    """What one node of a job takes. `gpus`: whole GPUs, or a share of one below 1."""

    cpus: float = DEFAULT_CPUS
    memory_gib: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True)
class NodeRoom:
    """What is left of one node. `gpus`: the free share of each GPU, 0 to 1."""

    cpus: float
    memory_gib: float
    gpus: tuple[float, ...] = ()

    def fits(self, demand: Demand) -> bool:
        return (
            self.cpus >= demand.cpus - _EPSILON
            and self.memory_gib >= demand.memory_gib - _EPSILON
            and (demand.gpus <= 0 or self._choose_gpus(demand.gpus) is not None)
        )

    def take(self, demand: Demand) -> tuple[NodeRoom, dict[int, float]]:
        """What is left after `demand`, which fits, and the share that it takes of each GPU, by index."""
        shares = (self._choose_gpus(demand.gpus) or {}) if demand.gpus > 0 else {}
        return self.without(demand, shares), shares

    def without(self, demand: Demand, shares: Mapping[int, float]) -> NodeRoom:
        gpus = tuple(free - shares.get(index, 0.0) for index, free in enumerate(self.gpus))
        return NodeRoom(self.cpus - demand.cpus, self.memory_gib - demand.memory_gib, gpus)

    def _choose_gpus(self, wanted: float) -> dict[int, float] | None:
        """The share of each chosen GPU; None if too few are free. A share goes to the fullest GPU with room for it."""
        if wanted < 1 - _EPSILON:
            open_gpus = [(free, index) for index, free in enumerate(self.gpus) if free >= wanted - _EPSILON]
            return {min(open_gpus)[1]: wanted} if open_gpus else None
        count = math.ceil(wanted - _EPSILON)
        whole = [index for index, free in enumerate(self.gpus) if free >= 1 - _EPSILON]
        return dict.fromkeys(whole[:count], 1.0) if len(whole) >= count else None


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits for a slot on each of `num_nodes` nodes."""

    id: int
    demand: Demand
    num_nodes: int = 1
    limit_s: float | None = None  # it is ended after running for so long; None: it may run for ever


@dataclass(frozen=True)
class RunningJob:
    """A job that holds slots: on each node of `slots`, the shares of that node's GPUs."""

    demand: Demand
    slots: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    ends_by: float | None = None  # epoch seconds; None: it has no limit


@dataclass(frozen=True)
class Start:
    """A job that starts now: node → the shares of its GPUs. The job's ranks follow the order of the nodes."""

    job_id: int
    slots: Mapping[int, Mapping[int, float]]


def choose_slots(
    rooms: Mapping[int, NodeRoom], demand: Demand, num_nodes: int
) -> tuple[dict[int, NodeRoom], dict[int, dict[int, float]]] | None:
    """`num_nodes` different nodes with room for `demand`, lowest first: what is left of all, and the chosen slots.

    None if there are too few.
    """
    left, slots = dict(rooms), dict[int, dict[int, float]]()
    for node in sorted(rooms):
        if len(slots) == num_nodes:
            break
        if rooms[node].fits(demand):
            left[node], slots[node] = rooms[node].take(demand)
    return (left, slots) if len(slots) == num_nodes else None


def free_rooms(nodes: Mapping[int, NodeRoom], running: Iterable[RunningJob]) -> dict[int, NodeRoom]:
    """What the running jobs leave of `nodes`, which are given as they are when nothing runs."""
    rooms = dict(nodes)
    for job in running:
        for node, shares in job.slots.items():
            if node in rooms:
                rooms[node] = rooms[node].without(job.demand, shares)
    return rooms


def can_ever_fit(nodes: Mapping[int, NodeRoom], demand: Demand, num_nodes: int) -> bool:
    """Whether a job fits while nothing else runs."""
    return choose_slots(nodes, demand, num_nodes) is not None


def startable(
    nodes: Mapping[int, NodeRoom], running: Sequence[RunningJob], queue: Sequence[QueuedJob], now: float
) -> list[Start]:
    """The jobs of `queue` (in its order) that start now. A job that can never fit holds up no other."""
    rooms = free_rooms(nodes, running)
    busy, starts = list(running), list[Start]()
    too_large = set[tuple[Demand, int]]()  # room is only taken here: what does not fit now fits no later job either
    reservation: _Reservation | None = None  # of the head
    for job in queue:
        if (job.demand, job.num_nodes) in too_large:
            continue
        chosen = choose_slots(rooms, job.demand, job.num_nodes)
        if chosen is None:
            too_large.add((job.demand, job.num_nodes))
            if reservation is None and can_ever_fit(nodes, job.demand, job.num_nodes):
                reservation = _reserve(job, nodes, busy, now)
            continue
        ends_by = None if job.limit_s is None else now + job.limit_s
        started = RunningJob(job.demand, chosen[1], ends_by)
        if reservation is not None:
            if reservation.is_delayed_by(started):
                continue
            reservation = reservation.beside(started)
        rooms = chosen[0]
        busy.append(started)
        starts.append(Start(job.id, chosen[1]))
    return starts


@dataclass(frozen=True)
class _Reservation:
    """When the head of the queue starts at the latest: `at`, and what is free then (`rooms`).

    A job that starts now and has ended by then does not delay it, and one that runs on does if the head does not fit
    beside it. At earlier times there is less room, so nothing else needs to be looked at.
    """

    head: QueuedJob
    at: float
    rooms: Mapping[int, NodeRoom]

    def is_delayed_by(self, job: RunningJob) -> bool:
        """Whether the head would start later if `job` started now. Without a limit, it may run for ever."""
        if job.ends_by is not None and job.ends_by <= self.at:
            return False
        return choose_slots(free_rooms(self.rooms, [job]), self.head.demand, self.head.num_nodes) is None

    def beside(self, job: RunningJob) -> _Reservation:
        """The reservation once `job`, which does not delay it, has started. Without a limit it counts as ended."""
        if job.ends_by is None or job.ends_by <= self.at:
            return self
        return replace(self, rooms=free_rooms(self.rooms, [job]))


def _reserve(head: QueuedJob, nodes: Mapping[int, NodeRoom], busy: Iterable[RunningJob], now: float) -> _Reservation:
    """The earliest time at which `head`, which fits on empty nodes, does so. From the last end of a running job back to
    the first: a running job without a limit may end at any moment, so it ends now."""
    ends = sorted(((max(now, job.ends_by), job) for job in busy if job.ends_by is not None), key=lambda one: -one[0])
    reservation = _Reservation(head, max([now, *(end for end, _ in ends)]), nodes)
    rooms = dict(nodes)
    for index, (end, job) in enumerate(ends):
        if end <= now:
            break
        rooms = free_rooms(rooms, [job])
        earlier = max(now, ends[index + 1][0]) if index + 1 < len(ends) else now
        if earlier == end:
            continue
        if choose_slots(rooms, head.demand, head.num_nodes) is None:
            break
        reservation = _Reservation(head, earlier, rooms)
    return reservation
