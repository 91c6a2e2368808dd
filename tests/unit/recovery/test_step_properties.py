"""What `step` promises whatever happens: random walks of events that come late, twice, out of order and about attempts
long gone, with every promise checked after each event; then a kind world, in which every job must come to its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery import actions, events
from perdure.recovery.attempts import DRAIN_MARGIN_S
from perdure.recovery.directive import Want, directive
from perdure.recovery.history import History, learn
from perdure.recovery.job import AttemptView, JobView, Limits, NodeView, Recovery, TaskView, View
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.policies.cooldown import launch_refusal
from perdure.recovery.policies.registry import STRATEGIES
from perdure.recovery.reasons import MEANINGS, Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from perdure.recovery.step import step
from rule_table import check_no_rule_was_missed

NOW = 1_000_000.0
LIMITS = Limits()
OFFERS = tuple(
    Offer("local", f"local-{zone[:4]}", f"local-{zone}", "cpu2", market, price, 1.0, 2, 8)
    for zone, market, price in [
        ("east-a", Market.SPOT, 0.1),
        ("east-b", Market.SPOT, 0.2),
        ("west-a", Market.SPOT, 0.3),
        ("east-a", Market.ON_DEMAND, 1.0),
        ("west-a", Market.ON_DEMAND, 1.1),
    ]
)


@dataclass
class Walk:
    """A job, the market that it learns of, and what has been asked of the world so far."""

    job: JobView
    now: float = NOW
    wake_at: float | None = NOW
    refusals: list[Refusal] = field(default_factory=list)
    history: History = field(default_factory=History)
    told: list[events.Event] = field(default_factory=list)
    launched: list[tuple[int, int]] = field(default_factory=list)
    terminated: Counter[tuple[int, int]] = field(default_factory=Counter)
    storage_asked: set[int] = field(default_factory=set)
    checks: set[tuple[int, int]] = field(default_factory=set)
    had_leave: set[tuple[int, int]] = field(default_factory=set)

    def tell(self, event: events.Event) -> None:
        before = self.job
        view = View(before, MarketView(OFFERS, tuple(self.refusals), history=self.history))
        answer = step(view, event, self.now)
        assert answer == step(view, event, self.now), "the same question has one answer"
        check_no_rule_was_missed(view, event, self.now)
        self.told.append(event)
        if isinstance(event, events.MachinesSeen):
            self.checks.discard((event.task, event.generation))
        self.job, self.wake_at = answer.job, answer.wake_at
        for action in answer.actions:
            self._remember(action)
        self._check_changes(before, answer.actions)
        self._check_one_workload(before)
        self._check_nobody_is_forgotten()

    def _remember(self, action: actions.Action) -> None:
        match action:
            case actions.Launch(task, generation):
                self.launched.append((task, generation))
            case actions.Terminate(task, generation):
                self.terminated[task, generation] += 1
            case actions.PrepareStorage(task):
                self.storage_asked.add(task)
            case actions.Check(task, generation):
                self.checks.add((task, generation))
            case actions.Refuse(refusal):
                self.refusals.append(refusal)
            case actions.Learn(sighting):
                self.history = learn(self.history, sighting)

    def _check_changes(self, before: JobView, done: tuple[actions.Action, ...]) -> None:
        for old, new in zip(before.tasks, self.job.tasks, strict=True):
            if old.status.is_terminal:
                kept = replace(new, attempts=(), storage_ready=True, wake_at=None, refused_in_a_row=0)
                assert kept == replace(old, attempts=(), storage_ready=True, wake_at=None, refused_in_a_row=0)
            for counter in ("recovery_count", "restarts_on_errors", "next_generation", "run_seconds"):
                assert getattr(new, counter) >= getattr(old, counter), counter
            if (
                old.saved_s is not None or new.saved_s is None
            ):  # the first report corrects what was believed without one
                assert new.durable_s >= old.durable_s
            assert old.started_at in (None, new.started_at)
            assert old.outcome in (None, new.outcome)
            if new.status.is_terminal and not old.status.is_terminal:
                self._check_nothing_runs(new.index, new.attempts)
            assert new.has_run or not old.has_run
            lost = [a for a in done if isinstance(a, actions.Note) and a.kind == "attempt.lost" and a.task == old.index]
            assert len(lost) <= 1
            begun = [a for a in lost if a.data["was"] not in ("REQUESTED", "BOOTING")]
            counted = sum(1 for a in begun if a.reason is not None and MEANINGS[a.reason].is_recovery)
            assert new.recovery_count - old.recovery_count == counted, "only losses are recoveries"
            self._check_launches(old, new, done)

    def _check_launches(self, old: TaskView, new: TaskView, done: tuple[actions.Action, ...]) -> None:
        bought = [a for a in done if isinstance(a, actions.Launch) and a.task == old.index]
        assert [a.generation for a in bought] == list(range(old.next_generation, new.next_generation))
        assert len(bought) <= 1
        if bought:
            assert self.job.cancel is None
            assert not old.status.is_terminal
            assert old.storage_ready or new.storage_ready
            assert all(t.status is Status.SUCCEEDED for t in self.job.tasks[: old.index])
            refused = [r for r in self.refusals if r.until > self.now and not r.from_preemption]
            assert not any(r.covers(bought[0].offer) for r in refused)

    def _check_one_workload(self, before: JobView) -> None:
        for task in self.job.tasks:
            assert sum(a.state is AttemptState.RUNNING for a in task.attempts) <= 1
            self._check_at_most_one_replacement(task)
            generations = [a.generation for a in task.attempts]
            assert generations == sorted(set(generations))
            for attempt in task.attempts:
                was = before.tasks[task.index].attempt(attempt.generation)
                if was is not None and attempt.state is not AttemptState.GONE:
                    assert list(AttemptState).index(attempt.state) >= list(AttemptState).index(was.state)
                    for old, new in zip(was.nodes, attempt.nodes, strict=True):
                        assert list(NodePhase).index(new.phase) >= list(NodePhase).index(old.phase)
                        assert old.gone in (None, new.gone)
                started = attempt.state is AttemptState.RUNNING and (was is None or was.state is not attempt.state)
                if started:
                    self._check_nothing_runs(task.index, tuple(a for a in task.attempts if a is not attempt))
                    assert task.outcome is None
                if attempt.state is AttemptState.RUNNING:
                    self.had_leave.add((task.index, attempt.generation))

    def _check_at_most_one_replacement(self, task: TaskView) -> None:
        wanted = [a for a in task.attempts if a.is_wanted]
        assert len(wanted) <= 2
        if len(wanted) == 2:
            assert task.state is TaskState.RUNNING
            assert task.current == wanted[0]
            assert task.replacement == wanted[1] == task.attempts[-1]
            assert wanted[0].state is AttemptState.RUNNING, "only what runs is being replaced"
            assert wanted[1].state is not AttemptState.RUNNING

    def _check_nothing_runs(self, task: int, attempts: tuple[AttemptView, ...]) -> None:
        had_leave = [a for a in attempts if (task, a.generation) in self.had_leave]
        assert all(n.has_stopped for a in had_leave for n in a.nodes), "an older workload may still run"

    def _check_nobody_is_forgotten(self) -> None:
        if self.job.is_settled:
            assert self.wake_at is None, "a settled job needs nobody"
            return
        assert self.wake_at is None or self.wake_at > self.now, f"woken again and again: {self.job}"
        assert self.wake_at is not None or self._open_questions(), f"nobody will ever look again: {self.job}"
        for task in self.job.tasks:
            for attempt in task.attempts:
                key = (task.index, attempt.generation)
                assert key in self.launched
                assert attempt.terminating == (self.terminated[key] > 0)
                assert self.terminated[key] <= 1
                assert self._is_watched(task.index, attempt), f"nothing will ever move {attempt}"
            if task.state is TaskState.RUNNING:
                assert task.current is not None
                assert task.run_since is not None

    def _open_questions(self) -> bool:
        current = self.job.current_task
        storage = current is not None and current.index in self.storage_asked and not current.storage_ready
        return storage or any(self._awaits_the_world(a) for t in self.job.tasks for a in t.attempts)

    def _awaits_the_world(self, attempt: AttemptView) -> bool:
        """The launch or the end is being worked on, or agents are connected and will speak."""
        if attempt.state is AttemptState.REQUESTED or attempt.terminating:
            return True
        return any(n.connected and not n.has_stopped for n in attempt.nodes)

    def _is_watched(self, task: int, attempt: AttemptView) -> bool:
        """Whether the world or the clock moves it on, the clock in time for whatever is due."""
        if attempt.terminating or attempt.state is AttemptState.REQUESTED:
            return True
        silent = [n.silent_since for n in attempt.nodes if n.silent_since is not None and not n.has_stopped]
        due = [since + LIMITS.silent_s for since in silent if attempt.is_wanted]
        if attempt.state is AttemptState.BOOTING and attempt.booted_at is not None:
            due.append(attempt.booted_at + LIMITS.boot_timeout_s)
        if attempt.state is AttemptState.DRAINING and attempt.drain_until is not None:
            due.append(attempt.drain_until + DRAIN_MARGIN_S)
        if not due:
            looked_up = self.wake_at is not None and (task, attempt.generation) in self.checks
            return looked_up or self._awaits_the_world(attempt)
        return self.wake_at is not None and self.wake_at <= max(self.now, min(due))

    # --- a kind world: answers every open question truthfully ---------------------------------------------------------

    def answer_one(self, *, finishing: bool, n: int = 0) -> bool:
        """Let the world do the `n`-th of the things that are due, if any. Workloads end only if `finishing`."""
        due: list[events.Event] = []
        for task in self.job.tasks:
            if task.index in self.storage_asked and not task.storage_ready and task.state is not TaskState.ENDED:
                due.append(events.StorageReady(task.index))
            due += [e for attempt in task.attempts for e in self._next_of(task, attempt, finishing)]
        if due:
            self.tell(due[n % len(due)])
        return bool(due)

    def _next_of(self, task: TaskView, attempt: AttemptView, finishing: bool) -> list[events.Event]:
        key = (task.index, attempt.generation)
        if attempt.terminating:
            return [events.AttemptGone(*key)]
        if attempt.state is AttemptState.REQUESTED:
            machines = tuple(events.Machine(n.rank, f"i-{n.rank}", "127.0.0.1") for n in attempt.nodes)
            return [events.Launched(*key, machines)]
        checked = [events.MachinesSeen(*key, {n.rank: None for n in attempt.nodes if n.gone is None})]
        reports = [self._report(task, attempt, node, finishing) for node in attempt.nodes if not node.has_stopped]
        return (checked if key in self.checks else []) + [report for report in reports if report is not None]

    def _report(self, task: TaskView, attempt: AttemptView, node: NodeView, finishing: bool) -> events.Event | None:
        key = (task.index, attempt.generation, node.rank)
        match directive(attempt).want:
            case Want.WAIT if node.phase is NodePhase.UNHEARD or not node.connected:
                return events.NodeReported(*key, NodePhase.BOOTED)
            case Want.SETUP if node.phase is not NodePhase.READY or not node.connected:
                return events.NodeReported(*key, NodePhase.READY)
            case Want.RUN if not finishing and (node.phase is not NodePhase.RUNNING or not node.connected):
                return events.NodeReported(*key, NodePhase.RUNNING)
            case Want.RUN if finishing:
                return events.NodeReported(*key, NodePhase.ENDED, exit_code=0)
            case Want.DRAIN:
                return events.NodeReported(*key, NodePhase.ENDED, exit_code=143, interrupted=True)
        return None


@dataclass(frozen=True)
class Move:
    """One thing that happens.

    `task`: counted from the current one; `back`: how many generations ago; `n`: picks among what is possible.
    """

    kind: str
    wait_s: float = 0.0
    task: int = 0
    back: int = 0
    rank: int = 0
    n: int = 0


ANSWERS = ["storage", "launched", "refused", "gone"]
NODES = ["report", "silent", "notice", "seen", "lost", "saved"]
USERS = ["cancel"]
moves = st.builds(
    Move,
    # What usually happens is likelier, so that walks get somewhere.
    kind=st.sampled_from(["nothing"] + ["kind"] * 60 + ["wake"] * 8 + ["again"] * 8 + ANSWERS * 4 + NODES * 6 + USERS),
    wait_s=st.sampled_from([0.0, 0.0, 0.1, 4.0, 61.0, 1000.0]),
    task=st.sampled_from([0, 0, 0, 1]),
    back=st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2, -1]),
    rank=st.sampled_from([0, 0, 0, 1, 1, 2]),
    n=st.integers(0, 999),
)
FATES = [Reason.PREEMPTED, Reason.MACHINE_STOPPED, Reason.MACHINE_CRASHED]
KINDS = [FaultKind.AVOID_ZONE] * 5 + [FaultKind.AVOID_REGION, FaultKind.AVOID_CLOUD, FaultKind.RETRY_LATER]


@st.composite
def walks(draw: st.DrawFn) -> Walk:
    recovery = Recovery(
        draw(st.sampled_from(list(STRATEGIES))),
        draw(st.integers(0, 2)),
        frozenset({42}),
        deadline_at=NOW + draw(st.sampled_from([0.0, 9e3, 2e4, 1e5])),
        work_s=draw(st.sampled_from([6e3, 5e4])),
    )
    nodes, has_storage = draw(st.integers(1, 2)), draw(st.booleans())
    tasks = tuple(
        TaskView(i, (Need(),), nodes, recovery, storage_ready=not has_storage, wake_at=NOW if i == 0 else None)
        for i in range(draw(st.integers(1, 2)))
    )
    return Walk(JobView(1, tasks))


def make(walk: Walk, move: Move) -> None:
    """Let `move` happen."""
    walk.now += move.wait_s
    match move.kind:
        case "nothing":
            pass
        case "kind":
            walk.answer_one(finishing=False, n=move.n)
        case "wake":
            walk.now = max(walk.now, walk.wake_at or walk.now)
            walk.tell(events.Tick())
        case "again":
            if walk.told:
                walk.tell(walk.told[-1 - move.n % len(walk.told)])
        case "cancel":
            walk.tell(events.CancelRequested(grace_s=[0.0, 1.0, 60.0][move.n % 3]))
        case _:
            event = chaos(walk, move)
            if event is not None:
                walk.tell(event)


def chaos(walk: Walk, move: Move) -> events.Event | None:
    """An event about some task's attempt: the newest, an older one, or one that never was."""
    current = walk.job.current_task.index if walk.job.current_task else 0
    task = walk.job.tasks[(current + move.task) % len(walk.job.tasks)]
    generation = max(0, task.next_generation - 1 - move.back)
    attempt, key = task.attempt(generation), (task.index, generation)
    at = (*key, move.rank)
    match move.kind:
        case "storage" if task.index in walk.storage_asked:
            return (events.StorageReady(task.index), events.StorageFailed(task.index, "none"))[move.n % 5 == 0]
        case "launched":
            return events.Launched(*key, tuple(events.Machine(r, f"i-{r}") for r in range(task.num_nodes)))
        case "refused" if key in walk.launched and (attempt is None or attempt.booted_at is None):
            refusal = launch_refusal(OFFERS[move.n % 3], walk.now, kind=KINDS[move.n % len(KINDS)])
            is_given_up = attempt is not None and not attempt.is_wanted and move.n % 2 == 0
            return events.LaunchWithdrawn(*key) if is_given_up else events.LaunchRefused(*key, refusal)
        case "gone" if key in walk.launched:
            return events.AttemptGone(*key)
        case "report":
            return report(task, attempt, move, at)
        case "silent":
            return events.NodeSilent(*at)
        case "notice":
            return events.NoticeGiven(*at, deadline=walk.now + [-1, 30, 120][move.n % 3])
        case "saved":
            return events.Saved(*key, at=walk.now - [-9, 0, 30, 1000][move.n % 4])
        case "seen":
            return events.MachinesSeen(*key, dict.fromkeys(range(task.num_nodes)))
        case "lost":
            return events.MachinesSeen(*key, {move.rank: FATES[move.n % len(FATES)]})
    return None


# What a node may truthfully say under a directive: phase, exit code, failed stage, interrupted.
DRAINED = (NodePhase.ENDED, 143, None, True)
SAYINGS: dict[Want, list[tuple[NodePhase, int | None, str | None, bool]]] = {
    Want.WAIT: [(NodePhase.BOOTED, None, None, False)],
    Want.SETUP: [
        (NodePhase.MOUNTING, None, None, False),
        (NodePhase.SETUP, None, None, False),
        (NodePhase.READY, None, None, False),
        (NodePhase.ENDED, None, "mounts", False),
        (NodePhase.ENDED, 1, "setup", False),
        (NodePhase.ENDED, 42, "setup", False),
    ],
    Want.RUN: [
        (NodePhase.RUNNING, None, None, False),
        (NodePhase.FLUSHING, None, None, False),
        (NodePhase.ENDED, 0, None, False),
        (NodePhase.ENDED, 1, "run", False),
        (NodePhase.ENDED, 42, "run", False),
        (NodePhase.ENDED, 0, "flush", False),
    ],
    Want.DRAIN: [(NodePhase.FLUSHING, None, None, False), (NodePhase.ENDED, 0, None, False), DRAINED],
    Want.STOP: [DRAINED],
}


def report(task: TaskView, attempt: AttemptView | None, move: Move, at: tuple[int, int, int]) -> events.Event | None:
    """What a node says of itself; one that has ended has nothing to add, and one of an old attempt may say anything."""
    node = attempt.nodes[move.rank] if attempt and move.rank < task.num_nodes else None
    if node is not None and node.phase is NodePhase.ENDED:
        return None
    sayings = SAYINGS[directive(attempt).want] if attempt else [said for some in SAYINGS.values() for said in some]
    phase, exit_code, stage, interrupted = sayings[move.n % len(sayings)]
    return events.NodeReported(*at, phase, "127.0.0.9", exit_code, stage, interrupted, mount_lost=move.n % 11 == 10)


@pytest.mark.timeout(900)  # a failure is made small before it is shown
@settings(deadline=None, max_examples=150)
@given(walk=walks(), story=st.lists(moves, min_size=30, max_size=60))
def test_whatever_happens_every_promise_is_kept_and_a_kind_world_ends_it(walk: Walk, story: list[Move]) -> None:
    walk.tell(events.Tick())
    for move in story:
        make(walk, move)
    for _ in range(200):
        if walk.answer_one(finishing=True):
            continue
        if walk.job.is_settled:
            break
        assert walk.wake_at is not None
        walk.now = max(walk.now, walk.wake_at)
        walk.tell(events.Tick())
    assert walk.job.is_settled, f"it does not come to an end: {walk.job}"
    assert all(t.status.is_terminal for t in walk.job.tasks)
    noes = [e for e in walk.told if isinstance(e, events.LaunchRefused | events.LaunchWithdrawn)]
    machines = set(walk.launched) - {(e.task, e.generation) for e in noes}
    gone = {(e.task, e.generation) for e in walk.told if isinstance(e, events.AttemptGone)}
    assert machines <= gone, "a machine was bought and never seen to go"
