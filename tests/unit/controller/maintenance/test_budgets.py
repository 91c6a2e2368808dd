"""Budgets of users: what counts, who is told once, and what happens to jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from perdure.controller.maintenance.budgets import BudgetWatch
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.notify_config import NotifyConfig, NotifyRule
from perdure.controller.store.access import audit, budgets, users
from perdure.controller.store.access.audit import AuditFilter
from perdure.controller.store.access.roles import Role
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Attempt, Node, Task, insert_batch
from perdure.controller.store.records.notifications import Notifications
from perdure.controller.store.services import records as service_records

HOUR_S = 3600.0
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
OFFER = {"cloud": "aws", "price_per_hour": 2.0, "on_demand_price_per_hour": 6.0}


@dataclass
class Setting:
    """A database with the user ada, and what was ended."""

    database: Engine
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    cancelled: list[int] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    woken: int = 0

    def user(self, name: str = "ada", **columns: Any) -> None:
        with self.database.begin() as conn:
            users.add(conn, name, Role.USER, NOVEMBER, **columns)

    def job(self, begin: float, end: float | None, *, user: str = "ada", nodes: int = 1, **job: Any) -> int:
        """A job whose machines lived from `begin` to `end`; None: they live, and the job runs."""
        status = {"status": "SUCCEEDED", "state": "ENDED"} if end else {"status": "RUNNING", "state": "RUNNING"}
        with self.database.begin() as conn:
            columns = {"name": "j", "submitted_at": begin, "user": user, "priority": 0, "num_tasks": 1, **job}
            (job_id,) = insert_batch(conn, columns)
            row = {"job_id": job_id, "index": 0, "task_id": f"t{job_id}", "config": {}, "spec": {}, "ended_at": end}
            texts = {"requirements": [], "recovery": {}, "reason": "SUBMITTED", "message": "", "name": "t"}
            conn.execute(insert(Task).values(**row, **status, **texts))
            key = {"job_id": job_id, "task_index": 0, "generation": 1}
            state = {"state": "GONE" if end else "RUNNING", "requested_at": begin, "booted_at": begin, "gone_at": end}
            conn.execute(insert(Attempt).values(**key, **state, offer=OFFER))
            for rank in range(nodes):
                times = {"launched_at": begin, "ended_at": end}
                conn.execute(insert(Node).values(**key, rank=rank, phase="RUNNING", message="", **times))
        return job_id

    def spent(self, name: str = "ada") -> float:
        with self.database.connect() as conn:
            return budgets.spent(conn, [name], self.clock.now())[name]

    def watch(self, *rules: NotifyRule) -> BudgetWatch:
        def cancel(job_ids: Sequence[int], _grace_s: float | None) -> None:
            self.cancelled += job_ids

        def wake() -> None:
            self.woken += 1

        service: Any = SimpleNamespace(stop=lambda name, **_options: self.stopped.append(name))
        notify = NotifyConfig(rules=rules or (NotifyRule(("user.*",), ("ops",)),))
        # Tests look as often as they like.
        serving: Any = SimpleNamespace(down=lambda name, **_options: self.stopped.append(name))
        return BudgetWatch(self.database, self.clock, notify, "c", wake, cancel, service, serving, timer=lambda: 0.0)

    def sent(self) -> list[tuple[str, str]]:
        """(event, message) of what was queued."""
        with self.database.connect() as conn:
            rows = conn.execute(select(Notifications).order_by(Notifications.c.id))
            return [(row.kind, row.body["data"]["message"]) for row in rows]

    def blocked(self) -> list[str]:
        with self.database.connect() as conn:
            return list(budgets.blocked(conn, self.clock.now()))


@pytest.fixture
def setting(database: Engine) -> Setting:
    return Setting(database)


def test_spent__counts_the_hours_of_this_month(setting: Setting) -> None:
    setting.job(NOVEMBER - 10 * HOUR_S, NOVEMBER - 5 * HOUR_S)  # in October
    setting.job(NOVEMBER - 10 * HOUR_S, NOVEMBER + 3 * HOUR_S, nodes=2)  # 3 of its 13 hours
    setting.job(NOON - 4 * HOUR_S, None)
    setting.job(NOON - 4 * HOUR_S, NOON - HOUR_S, user="bob")
    setting.job(NOON - 4 * HOUR_S, None, cluster_id=1, cluster_job=1)  # its host pays
    setting.job(NOON - 1 * HOUR_S, None, cluster_id=1)
    assert setting.spent() == pytest.approx((2 * 3 + 4 + 1) * 2.0)
    assert setting.spent("bob") == pytest.approx(3 * 2.0)
    setting.clock.at = datetime(2026, 12, 1, 1, tzinfo=UTC).timestamp()
    assert setting.spent() == pytest.approx(2 * 1 * 2.0), "a new month, in which both machines have lived for an hour"
    assert setting.spent("nobody") == 0.0


def test_months__end_at_midnight_in_utc() -> None:
    assert budgets.month_of(NOVEMBER) == "2026-11"
    assert budgets.month_of(NOVEMBER - 1) == "2026-10"
    assert budgets.month_start(NOON) == NOVEMBER


def test_budget__is_reported_once_at_80_and_at_100_percent(setting: Setting) -> None:
    setting.user(budget_usd=10.0)
    setting.job(NOON - 3.9 * HOUR_S, None)
    here, there = setting.watch(), setting.watch()
    here.tick()
    assert setting.sent() == []
    setting.clock.advance(0.2 * HOUR_S)
    for watch in (here, there, here):
        watch.tick()
    assert setting.sent() == [("user.budget_warning", "ada has spent 8.20 of 10 USD in 2026-11 (82%)")]
    assert setting.blocked() == []
    setting.clock.advance(1.0 * HOUR_S)
    for watch in (here, there, here):
        watch.tick()
    (_, spent) = setting.sent()
    assert spent[0] == "user.budget_spent"
    assert spent[1].endswith("; new jobs are refused, and running ones go on")
    assert setting.blocked() == ["ada"]
    assert (setting.cancelled, setting.stopped, setting.woken) == ([], [], 2)
    with setting.database.connect() as conn:
        entries = audit.latest(conn, AuditFilter(action="user."))
    assert {entry.action for entry in entries} >= {"user.budget_warning", "user.budget_spent"}


def test_budget__that_is_raised_lets_jobs_begin(setting: Setting) -> None:
    setting.user(budget_usd=1.0)
    setting.job(NOON - HOUR_S, None)
    setting.watch().tick()
    assert setting.blocked() == ["ada"]
    with setting.database.begin() as conn:
        users.change(conn, "ada", budget_usd=100.0)
    setting.watch().tick()
    assert setting.blocked() == []


def test_budget__begins_anew_each_month(setting: Setting) -> None:
    setting.user(budget_usd=1.0)
    setting.job(NOON - HOUR_S, NOON)
    setting.watch().tick()
    assert setting.blocked() == ["ada"]
    setting.clock.at = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert setting.blocked() == []
    setting.watch().tick()
    assert setting.blocked() == []


def test_budget__ends_what_runs_if_it_says_so(setting: Setting) -> None:
    setting.user(budget_usd=1.0, budget_action="end")
    running = setting.job(NOON - HOUR_S, None)
    setting.job(NOON - HOUR_S, None, user="bob")
    setting.job(NOON - HOUR_S, NOON)
    now = NOON - HOUR_S
    with setting.database.begin() as conn:
        for name, user in (("dev", "ada"), ("other", "bob")):
            times = {"created_at": now, "launched_at": now, "active_at": now}
            kept = {"autostop_down": False, "recover": False, "next_job": 1, "config": {}, "starts": 1}
            texts = {"name": name, "active_name": name, "user": user, "wanted": "UP", "cause": "", "resources": ""}
            conn.execute(insert(Cluster).values(**texts, **times, **kept, command=""))
            served = {"name": f"api-of-{user}", "active_name": f"api-of-{user}", "user": user, "wanted": "UP"}
            counted = {"version": 1, "mode": "rolling", "next_replica": 1, "target": 1}
            service_records.insert_service(conn, {**served, **counted, "created_at": now})
    setting.watch().tick()
    setting.watch().tick()
    assert (setting.cancelled, setting.stopped) == ([running], ["dev", "api-of-ada"])
    assert "running ones save their work and end" in setting.sent()[-1][1]


def test_watch__rests_after_adding_up_took_long(setting: Setting) -> None:
    setting.user(budget_usd=1.0)
    setting.job(NOON - HOUR_S, None)
    watch, times = setting.watch(NotifyRule(("job.*",), ("ops",))), iter([100.0, 102.0, 139.0, 140.0, 141.0])
    watch.timer = lambda: next(times)
    watch.tick()
    with setting.database.begin() as conn:
        users.change(conn, "ada", spent_month=None)
    watch.tick()
    assert setting.blocked() == [], "it rests for 40 s after 2 s of work"
    watch.tick()
    assert setting.blocked() == ["ada"]


def test_rules__choose_by_user(setting: Setting) -> None:
    setting.user(budget_usd=1.0)
    setting.job(NOON - HOUR_S, None)
    only_bob = NotifyRule(("user.*",), ("ops",), user="bob")
    of_jobs = NotifyRule(("user.*",), ("ops",), name="train-*")
    setting.watch(only_bob, of_jobs).tick()
    assert setting.sent() == []
    assert setting.blocked() == ["ada"]
