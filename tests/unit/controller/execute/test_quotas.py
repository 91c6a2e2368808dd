"""Launches that wait for machines and for running jobs of their user."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.execute.call_order import AdmissionDecision, CloudQueue, QueuedLaunch
from perdure.controller.execute.quotas import QuotaTracker
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.store.queries.usage import Usage
from support.helpers.launches import launch, launches


@dataclass
class Cloud:
    """A cloud queue under quotas, and what the database would show of it."""

    quotas: Quotas
    queue: CloudQueue[QueuedLaunch] = field(default_factory=lambda: CloudQueue(8))
    pending: dict[QueuedLaunch, int] = field(default_factory=dict)
    launched: set[QueuedLaunch] = field(default_factory=set)
    begun: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracker = QuotaTracker(self.quotas)
        self.refresh()

    def admit(self, one: QueuedLaunch, _item: QueuedLaunch) -> AdmissionDecision:
        if self.tracker.user_blocked_reason(one):
            return AdmissionDecision.SKIP_USER
        if self.tracker.cloud_blocked_reason("aws", one):
            return AdmissionDecision.BLOCK_CLOUD
        return AdmissionDecision.ADMIT

    def refresh(self) -> None:
        snapshot = self.tracker.snapshot()
        machines = {one.key: ("aws", one.machines) for one in self.launched}
        users = {one.key[0]: one.user for one in self.launched}
        self.tracker.refresh(Usage(machines, users, frozenset(one.key for one in self.pending)), snapshot)
        self.begin()

    def begin(self) -> None:
        while (entry := self.queue.next(self.admit)) is not None:
            number, one, _ = entry
            assert one is not None
            self.tracker.reserve("aws", one)
            self.pending[one] = number
            self.begun.append(one.key[0])
        self.check()

    def check(self) -> None:
        there = [*self.pending, *self.launched]
        fitting = [one for one in there if one.machines <= (self.quotas.max_machines.get("aws") or 99)]
        assert sum(one.machines for one in fitting) <= self.quotas.max_machines.get("aws", 999)
        jobs = Counter(one.user for one in there if not one.has_run and one.machines)
        assert max(jobs.values(), default=0) <= (self.quotas.max_running_jobs_per_user or 999)

    def finish(self, *, is_launched: bool) -> None:
        one = next(iter(self.pending))
        self.queue.on_finished(self.pending.pop(one), is_throttled=False)
        if is_launched and one.machines:
            self.launched.add(one)
        else:
            self.tracker.release(one)
        self.begin()


@given(
    launches,
    st.none() | st.integers(1, 3),
    st.integers(4, 9),
    st.lists(st.sampled_from(["launch", "refuse", "end", "refresh"]), max_size=100),
)
def test_quotas__are_kept_and_no_launch_waits_for_ever(
    queued: list[QueuedLaunch], max_running_jobs: int | None, max_machines: int, moves: list[str]
) -> None:
    cloud = Cloud(Quotas(None, max_running_jobs, {}, {"aws": max_machines}))
    for one in queued:
        cloud.queue.add(one, one)
    cloud.begin()
    for move in [*moves, *["launch", "end", "refresh"] * (len(queued) + 1)]:
        if move == "refresh":
            cloud.refresh()
        elif move == "end" and cloud.launched:
            cloud.launched.remove(min(cloud.launched, key=lambda one: one.key))
        elif move in ("launch", "refuse") and cloud.pending:
            cloud.finish(is_launched=move == "launch")
    assert sorted(cloud.begun) == sorted(one.key[0] for one in queued)


def test_user_quota__delays_no_other_user() -> None:
    cloud = Cloud(Quotas(max_running_jobs_per_user=1))
    for one in (launch(1), launch(2), launch(3, "bob"), launch(4, has_run=True)):
        cloud.queue.add(one, one)
    cloud.begin()
    assert sorted(cloud.begun) == [3, 4], "a job that has run before counts already"
    assert "limits.max_running_jobs_per_user" in (cloud.tracker.blocked_reason("aws", launch(1)) or "")


def test_cloud_quota__keeps_the_order() -> None:
    cloud = Cloud(Quotas(max_machines={"aws": 4}))
    for one in (launch(1, machines=2), launch(2, machines=3), launch(3, "bob", -1)):
        cloud.queue.add(one, one)
    cloud.begin()
    assert cloud.begun == [1], "a narrow launch does not overtake a wide one, which would starve"
    assert "2 of 4 machines (aws.max_machines)" in (cloud.tracker.blocked_reason("aws", launch(2, machines=3)) or "")


def test_quotas__block_every_launch_before_the_first_refresh() -> None:
    tracker = QuotaTracker(Quotas(max_running_jobs_per_user=1, max_machines={"aws": 4}))
    assert tracker.cloud_blocked_reason("aws", launch(1)) == "the usage is not known yet (aws.max_machines)"
    reason = tracker.user_blocked_reason(launch(1))
    assert reason == "the usage is not known yet (limits.max_running_jobs_per_user)"
    assert tracker.blocked_reason("aws", launch(1, machines=0)) is None, "buckets need no machine"


def test_user__with_a_limit_of_their_own() -> None:
    tracker = QuotaTracker(Quotas(max_running_jobs_per_user=1))
    usage = Usage({}, {1: "ada", 2: "bob", 3: "bob"}, max_running={"ada": 2, "eve": 0})
    tracker.refresh(usage, tracker.snapshot())
    reasons = {user: tracker.user_blocked_reason(QueuedLaunch((9, 0, 1), user)) for user in ("ada", "bob", "eve")}
    rule = "clusters and replicas of services count as jobs"
    assert reasons == {
        "ada": None,
        "bob": f"bob has machines for 2 of 1 jobs at a time (limits.max_running_jobs_per_user); {rule}",
        "eve": f"eve has machines for 0 of 0 jobs at a time (perdure users update --max-running-jobs); {rule}",
    }


def test_user__whose_budget_is_spent_recovers_and_begins_nothing() -> None:
    tracker = QuotaTracker(Quotas())
    tracker.refresh(Usage(blocked={"ada": "the budget is spent"}), tracker.snapshot())

    def reason(user: str, *, has_run: bool) -> str | None:
        return tracker.user_blocked_reason(QueuedLaunch((1, 0, 1), user, has_run=has_run))

    assert reason("ada", has_run=False) == "the budget is spent"
    assert reason("ada", has_run=True) is None
    assert reason("bob", has_run=False) is None
    tracker.refresh(Usage(), tracker.snapshot())
    assert reason("ada", has_run=False) is None
