"""What jobs have cost, what they would have cost on-demand, and the work that preemptions have cost. Read-only.

A task that has ended never changes, so what ended in a past hour is added up once and kept in memory. A request reads
the hours that are missing, newest first, for a limited time; what it returns says how far back it reaches.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, and_, bindparam, case, func, select

from perdure.controller.store.queries.counts import MARGIN_S
from perdure.controller.store.records.clusters import SHOWN_NAME
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task
from perdure.recovery.statuses import TERMINAL, Status

HOUR_S = 3600.0
BUDGET_S = 0.15
"""For how long a request reads hours that are missing."""
LIVE_TTL_S = 30.0
"""How long the costs of unfinished tasks are kept while no job changes: ten thousand take a tenth of a second."""
LIVE_RATIO = 50.0
"""While jobs change, they are kept for so many times as long as it took to read them."""
TOP_JOBS = 20
_MAX_LEDGERS = 100

_NOW: BindParameter[float] = bindparam("now")
_BEGUN = func.coalesce(Node.c.launched_at, Attempt.c.booted_at)
_ENDED_AT = func.coalesce(Node.c.ended_at, Attempt.c.gone_at, _NOW)
_HOURS = case((_ENDED_AT > _BEGUN, (_ENDED_AT - _BEGUN) / HOUR_S), else_=0.0)
_PRICE = Attempt.c.offer["price_per_hour"].as_float()
_ON_DEMAND = Attempt.c.offer["on_demand_price_per_hour"].as_float()
_CLOUD = Attempt.c.offer["cloud"].as_string()
_OF_TASK = and_(Attempt.c.job_id == Task.c.job_id, Attempt.c.task_index == Task.c.index)
_OF_ATTEMPT = and_(*(Node.c[name] == Attempt.c[name] for name in ("job_id", "task_index", "generation")))
# The jobs of a cluster run on machines that its host pays for.
_HAS_MACHINES = Job.c.cluster_job.is_(None)
_COSTS = (
    select(Task.c.job_id, SHOWN_NAME.label("name"), Job.c.user, _CLOUD.label("cloud"))
    .add_columns(func.sum(_HOURS * _PRICE).label("cost"), func.sum(_HOURS * _ON_DEMAND).label("on_demand"))
    .select_from(Task)
    .join(Job, Job.c.id == Task.c.job_id)
    .join(Attempt, _OF_TASK)
    .join(Node, _OF_ATTEMPT)
    .where(_HAS_MACHINES)
    .group_by(Task.c.job_id, Job.c.id, _CLOUD)
)
_LAST_RUN = select(func.max(Attempt.c.running_at)).where(_OF_TASK).scalar_subquery()
_LOSSES = (
    select(Task.c.job_id, Job.c.user, Task.c.run_seconds, Task.c.run_since, Task.c.resumed_s, Task.c.num_nodes)
    .add_columns(Task.c.ended_at, Task.c.last_offer, _LAST_RUN.label("last_run_at"))
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.recovery_count > 0, Task.c.saved_s.is_not(None), _HAS_MACHINES)
)
# The statuses are listed so that the indexes, which begin with them, are used.
_IS_LIVE = Task.c.status.in_([s.value for s in Status if s not in TERMINAL])
_HAS_ENDED = and_(
    Task.c.status.in_(sorted(s.value for s in TERMINAL)),
    Task.c.ended_at > bindparam("after"),
    Task.c.ended_at <= bindparam("until"),
)


@dataclass
class Amounts:
    """Money is USD. `lost_s`: work of one machine that had to be done again; `lost_usd`: what it had cost."""

    cost_usd: float = 0.0
    on_demand_usd: float = 0.0
    lost_s: float = 0.0
    lost_usd: float = 0.0

    def add(self, other: Amounts) -> None:
        self.cost_usd += other.cost_usd
        self.on_demand_usd += other.on_demand_usd
        self.lost_s += other.lost_s
        self.lost_usd += other.lost_usd


@dataclass
class Spending:
    """Amounts of some tasks, added up in several ways. `jobs`: only those that cost most, by id."""

    by_user: dict[str, Amounts] = field(default_factory=lambda: defaultdict(Amounts))
    by_cloud: dict[str, Amounts] = field(default_factory=lambda: defaultdict(Amounts))
    jobs: dict[int, Amounts] = field(default_factory=lambda: defaultdict(Amounts))
    names: dict[int, str] = field(default_factory=dict)

    @property
    def total(self) -> Amounts:
        total = Amounts()
        for amounts in self.by_user.values():
            total.add(amounts)
        return total

    def add(self, other: Spending) -> None:
        for mine, others in ((self.by_user, other.by_user), (self.by_cloud, other.by_cloud), (self.jobs, other.jobs)):
            _add_all(mine, others)
        self.names.update(other.names)

    def keep_top_jobs(self) -> None:
        """Drop all but the most expensive jobs."""
        top = sorted(self.jobs, key=lambda job_id: -self.jobs[job_id].cost_usd)[:TOP_JOBS]
        self.jobs = defaultdict(Amounts, {job_id: self.jobs[job_id] for job_id in top})
        self.names = {job_id: self.names[job_id] for job_id in top if job_id in self.names}


@dataclass(frozen=True)
class SpendingReport:
    """`hours`: by the hour in which the tasks ended, as its end in epoch seconds. `since`: how far back it reaches."""

    since: float
    is_complete: bool  # whether it reaches as far back as requested
    is_current: bool  # whether no job has changed since `unfinished` was read
    hours: Mapping[float, Spending]
    recent: Spending  # ended in the current hour, or so recently that it may not be complete
    unfinished: Spending


@dataclass(frozen=True)
class _Unfinished:
    """What unfinished tasks had cost when it was read."""

    read_at: float
    took_s: float
    revision: int
    spent: Spending


class SpendingLedger:
    """Adds up for one daemon: the jobs of everybody, or of one user. Safe to use from any thread."""

    def __init__(self, timer: Callable[[], float] = monotonic, user: str | None = None) -> None:
        self._user = user
        self._hours: dict[float, Spending] = {}
        self._unfinished: _Unfinished | None = None
        self._lock = threading.Lock()
        self._timer = timer

    def report(self, conn: Connection, since: float, now: float, revision: int = 0) -> SpendingReport:
        """What tasks have cost that ended after `since`, rounded down to an hour, and those that have not ended.

        `revision`: a number that is different after every change of a job, from before the connection's first read.
        """
        with self._lock:  # of several requests, one reads
            oldest = since // HOUR_S * HOUR_S
            newest = (now - MARGIN_S) // HOUR_S * HOUR_S
            give_up_at = self._timer() + BUDGET_S
            hours: dict[float, Spending] = {}
            end = newest
            while end > oldest:
                if end not in self._hours:
                    if self._timer() > give_up_at:
                        break
                    self._hours[end] = self._read(conn, _HAS_ENDED, now, after=end - HOUR_S, until=end)
                hours[end] = self._hours[end]
                end -= HOUR_S
            self._hours = {at: spent for at, spent in self._hours.items() if at > now - 366 * 86_400.0}
            recent = self._read(conn, _HAS_ENDED, now, after=newest, until=now)
            unfinished = self._read_unfinished(conn, now, revision)
            is_current = unfinished.revision == revision
            return SpendingReport(end, end <= oldest, is_current, hours, recent, unfinished.spent)

    def _read_unfinished(self, conn: Connection, now: float, revision: int) -> _Unfinished:
        kept, begun_at = self._unfinished, self._timer()
        if kept is not None:
            kept_s = LIVE_TTL_S if kept.revision == revision else min(LIVE_TTL_S, LIVE_RATIO * kept.took_s)
            if begun_at < kept.read_at + kept_s:
                return kept
        spent = self._read(conn, _IS_LIVE, now)
        self._unfinished = _Unfinished(begun_at, self._timer() - begun_at, revision, spent)
        return self._unfinished

    def _read(self, conn: Connection, which: ColumnElement[bool], now: float, **bounds: float) -> Spending:
        return _read(conn, which if self._user is None else which & (Job.c.user == self._user), now, **bounds)


class SpendingLedgers:
    """The ledger of everybody, and of each user who asked for theirs."""

    def __init__(self) -> None:
        self._ledgers: dict[str | None, SpendingLedger] = {None: SpendingLedger()}

    def of(self, user: str | None) -> SpendingLedger:
        """The ledger of a user; None: of everybody."""
        if user not in self._ledgers and len(self._ledgers) > _MAX_LEDGERS:
            self._ledgers = {None: self._ledgers[None]}
        return self._ledgers.setdefault(user, SpendingLedger(user=user))


def lost_work(conn: Connection, job_id: int, now: float) -> Amounts | None:
    """The work of a job that had to be done again, as `SpendingReport` counts it; None if a task that has recovered
    reports no checkpoints."""
    of_job = Task.c.job_id == job_id
    unknown = select(func.count()).where(of_job, Task.c.recovery_count > 0, Task.c.saved_s.is_(None))
    if conn.execute(unknown).scalar_one():
        return None
    total = Amounts()
    for row in conn.execute(_LOSSES.where(of_job)):
        total.add(_lost(row, now)[1])
    return total


def _read(conn: Connection, which: ColumnElement[bool], now: float, **bounds: float) -> Spending:
    spending = Spending()
    for row in conn.execute(_COSTS.where(which), {"now": now, **bounds}):
        amounts = Amounts(row.cost or 0.0, row.on_demand or 0.0)
        spending.names[row.job_id] = row.name
        _count(spending, row.job_id, row.user, row.cloud, amounts)
    for row in conn.execute(_LOSSES.where(which), bounds):
        cloud, amounts = _lost(row, now)
        _count(spending, row.job_id, row.user, cloud, amounts)
    spending.keep_top_jobs()
    return spending


def _lost(row: Any, now: float) -> tuple[str, Amounts]:
    """The time that a task has run, less what it had done when its last run began, and less that run."""
    ran_s = row.run_seconds + (now - row.run_since if row.run_since is not None else 0.0)
    last_s = (row.ended_at if row.ended_at is not None else now) - (row.last_run_at or now)
    lost_s = max(0.0, ran_s - row.resumed_s - last_s) * row.num_nodes
    offer = row.last_offer or {}
    return str(offer.get("cloud", "")), Amounts(
        lost_s=lost_s, lost_usd=lost_s / HOUR_S * float(offer.get("price_per_hour", 0.0))
    )


def _count(spending: Spending, job_id: int, user: str, cloud: str, amounts: Amounts) -> None:
    for amounts_of, key in ((spending.by_user, user), (spending.by_cloud, cloud), (spending.jobs, job_id)):
        amounts_of[key].add(amounts)  # type: ignore[index]


def _add_all(mine: dict[Any, Amounts], others: Mapping[Any, Amounts]) -> None:
    for key, amounts in others.items():
        mine[key].add(amounts)


def add_up(parts: Iterable[Spending]) -> Spending:
    """The sum of several spendings, with the most expensive jobs of all."""
    total = Spending()
    for part in parts:
        total.add(part)
    total.keep_top_jobs()
    return total
