"""A walk of events through `step`: its invariants after each event, and a cooperative world that answers its actions.

`step_moves` has the events of random walks: they come late, twice, out of order, untruthfully, and about attempts that
are gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import AttemptView, JobView, NodeView, TaskView, Timeouts, View
from perdure.recovery.market.history import History, with_observation
from perdure.recovery.market.unavailable import UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.reasons import MEANINGS
from perdure.recovery.rules.attempt_end import DRAIN_MARGIN_S
from perdure.recovery.rules.transitions import ATTEMPT_TRANSITIONS, STATUS_TRANSITIONS, TASK_TRANSITIONS
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from perdure.recovery.step import step
from support.worlds.rule_table import check_no_rule_was_missed

NOW = 1_000_000.0
TIMEOUTS = Timeouts()
_RUNNING = NodePhase.RUNNING
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

# In the order of an attempt's life.
STATES, PHASES = list(AttemptState), list(NodePhase)

DECLARED = {*STATUS_TRANSITIONS, *TASK_TRANSITIONS, *ATTEMPT_TRANSITIONS}


def transitions(old: TaskView, new: TaskView) -> set[tuple[StrEnum, StrEnum]]:
    """The changes of state that one decision made of a task and its attempts. An attempt that is removed is GONE."""
    pairs: list[tuple[StrEnum, StrEnum]] = [(old.status, new.status), (old.state, new.state)]
    for attempt in old.attempts:
        now = new.attempt(attempt.generation)
        pairs.append((attempt.state, AttemptState.STOPPED if now is None else now.state))
        if now is None or now.state is AttemptState.GONE:
            pairs.append((AttemptState.STOPPED, AttemptState.GONE))
    return {(before, after) for before, after in pairs if before != after and before is not AttemptState.GONE}


def _is_before_ready(node: NodeView) -> bool:
    return PHASES.index(node.phase) < PHASES.index(NodePhase.READY)


@dataclass
class Walk:
    """A job, its market, and the actions that it has requested so far."""

    job: JobView
    now: float = NOW
    wake_at: float | None = NOW
    unavailable: list[UnavailableOffer] = field(default_factory=list)
    history: History = field(default_factory=History)
    sent: list[events.Event] = field(default_factory=list)
    launched: list[tuple[int, int]] = field(default_factory=list)
    terminated: Counter[tuple[int, int]] = field(default_factory=Counter)
    storage_requested: set[int] = field(default_factory=set)
    queries: set[tuple[int, int]] = field(default_factory=set)
    may_run: set[tuple[int, int]] = field(default_factory=set)
    transitions: set[tuple[StrEnum, StrEnum]] = field(default_factory=set)
    offers: tuple[Offer, ...] = OFFERS

    @property
    def view(self) -> View:
        return View(self.job, MarketView(self.offers, tuple(self.unavailable), history=self.history))

    def send(self, event: events.Event) -> None:
        before = self.job
        view = self.view
        result = step(view, event, self.now)
        assert result == step(view, event, self.now), "the same input has one result"
        check_no_rule_was_missed(view, event, self.now)
        self.sent.append(event)
        if isinstance(event, events.MachinesDescribed):
            self.queries.discard((event.task, event.generation))
        self.job, self.wake_at = result.job, result.wake_at
        for action in result.actions:
            self._remember(action)
        self._check_changes(before, result.actions)
        self._check_one_workload(before)
        self._check_something_will_happen()

    def _remember(self, action: actions.Action) -> None:
        match action:
            case actions.Launch(task, generation):
                self.launched.append((task, generation))
            case actions.Terminate(task, generation):
                self.terminated[task, generation] += 1
            case actions.PrepareStorage(task):
                self.storage_requested.add(task)
            case actions.DescribeMachines(task, generation):
                self.queries.add((task, generation))
            case actions.AvoidOffer(failure):
                self.unavailable.append(failure)
            case actions.RecordObservation(observation):
                self.history = with_observation(self.history, observation)

    def _check_changes(self, before: JobView, done: tuple[actions.Action, ...]) -> None:
        for old, new in zip(before.tasks, self.job.tasks, strict=True):
            if old.status.is_terminal:
                # Machines cost until they are gone.
                may_change: dict[str, Any] = {"attempts": (), "storage_ready": True, "wake_at": None, "spent_usd": 0.0}
                may_change |= {"consecutive_refusals": 0}
                assert replace(new, **may_change) == replace(old, **may_change)
            for counter in ("recovery_count", "restarts_on_errors", "next_generation", "run_seconds"):
                assert getattr(new, counter) >= getattr(old, counter), counter
            has_loaded = new.loaded not in (None, old.loaded)  # perhaps an older step than was durable
            is_first = old.saved_s is None and new.saved_s is not None  # it corrects what was assumed before
            assert has_loaded or is_first or new.durable_s >= old.durable_s
            self.transitions |= (changed := transitions(old, new))
            assert changed <= DECLARED, f"rules/transitions.py does not declare {changed - DECLARED}"
            assert old.started_at in (None, new.started_at)
            assert old.outcome in (None, new.outcome)
            if new.status.is_terminal and not old.status.is_terminal:
                self._check_nothing_runs(new.index, new.attempts)
                assert new.has_run or new.status is not Status.SUCCEEDED
            assert new.has_run or not old.has_run
            entries = [a for a in done if isinstance(a, actions.TimelineEntry) and a.task == old.index]
            lost = [entry for entry in entries if entry.kind == "attempt.lost"]
            # Two at most: the attempt that runs and its replacement.
            assert len({entry.generation for entry in lost}) == len(lost) <= 2
            begun = [a for a in lost if a.data["was"] not in ("REQUESTED", "BOOTING")]
            counted = sum(1 for a in begun if a.reason is not None and MEANINGS[a.reason].is_recovery)
            assert new.recovery_count - old.recovery_count == counted, "only losses are recoveries"
            self._check_launches(old, new, done)

    def _check_launches(self, old: TaskView, new: TaskView, done: tuple[actions.Action, ...]) -> None:
        launches = [a for a in done if isinstance(a, actions.Launch) and a.task == old.index]
        assert [a.generation for a in launches] == list(range(old.next_generation, new.next_generation))
        assert len(launches) <= 1
        if launches:
            assert self.job.cancel is None
            assert not old.status.is_terminal
            assert old.storage_ready or new.storage_ready
            assert all(t.status is Status.SUCCEEDED for t in self.job.tasks[: old.index])
            refused = [r for r in self.unavailable if r.until > self.now and not r.from_preemption]
            assert not any(r.covers(launches[0].offer) for r in refused)

    def _check_one_workload(self, before: JobView) -> None:
        for task in self.job.tasks:
            assert sum(a.state is AttemptState.RUNNING for a in task.attempts) <= 1
            self._check_at_most_one_replacement(task)
            generations = [a.generation for a in task.attempts]
            assert generations == sorted(set(generations))
            for attempt in task.attempts:
                was = before.tasks[task.index].attempt(attempt.generation)
                if was is not None and attempt.state is not AttemptState.GONE:
                    assert STATES.index(attempt.state) >= STATES.index(was.state)
                    for old, new in zip(was.nodes, attempt.nodes, strict=True):
                        assert PHASES.index(new.phase) >= PHASES.index(old.phase)
                        assert old.gone_reason in (None, new.gone_reason)
                started = attempt.state is AttemptState.RUNNING and (was is None or was.state is not attempt.state)
                if started:
                    self._check_nothing_runs(task.index, tuple(a for a in task.attempts if a is not attempt))
                    assert NodePhase.FLUSHING not in [n.phase for n in attempt.nodes]
                    ends = [n for n in attempt.nodes if n.phase is NodePhase.ENDED]
                    assert not any(n.failed_stage or n.interrupted for n in ends), "a rank has failed before"
                    assert task.outcome is None
                if attempt.state is AttemptState.RUNNING:
                    self.may_run.add((task.index, attempt.generation))

    def _check_at_most_one_replacement(self, task: TaskView) -> None:
        wanted = [a for a in task.attempts if a.is_wanted]
        assert len(wanted) <= 2
        if len(wanted) == 2:
            assert task.state is TaskState.RUNNING
            assert task.current == wanted[0]
            assert task.replacement == wanted[1] == task.attempts[-1]
            assert wanted[0].state is AttemptState.RUNNING, "only a running attempt is replaced"
            assert wanted[1].state is not AttemptState.RUNNING

    def _check_nothing_runs(self, task: int, attempts: tuple[AttemptView, ...]) -> None:
        may_run = [a for a in attempts if (task, a.generation) in self.may_run]
        assert all(n.has_stopped for a in may_run for n in a.nodes), "another workload may still run"

    def _check_something_will_happen(self) -> None:
        if self.job.is_finalized:
            assert self.wake_at is None, "a finalized job has no wake time"
            return
        assert self.wake_at is None or self.wake_at > self.now, f"the wake time has passed: {self.job}"
        assert self.wake_at is not None or self._open_questions(), f"nothing will ever happen again: {self.job}"
        for task in self.job.tasks:
            for attempt in task.attempts:
                key = (task.index, attempt.generation)
                assert key in self.launched
                assert attempt.terminating == (self.terminated[key] > 0)
                assert self.terminated[key] <= 1
                assert self._is_watched(task.index, attempt), f"nothing will ever advance {attempt}"
            if task.state is TaskState.RUNNING:
                assert task.current is not None
                assert task.run_since is not None

    def _open_questions(self) -> bool:
        current = self.job.current_task
        storage = current is not None and current.index in self.storage_requested and not current.storage_ready
        return storage or any(self._awaits_event(a) for t in self.job.tasks for a in t.attempts)

    def _awaits_event(self, attempt: AttemptView) -> bool:
        """Its launch or termination is open, or agents are connected and will report."""
        if attempt.state is AttemptState.REQUESTED or attempt.terminating:
            return True
        return any(n.connected and not n.has_stopped for n in attempt.nodes)

    def _is_watched(self, task: int, attempt: AttemptView) -> bool:
        """Whether an event or the wake time will advance it, the wake time in time for whatever is due."""
        if attempt.terminating or attempt.state is AttemptState.REQUESTED:
            return True
        silent = [n.disconnected_since for n in attempt.nodes if n.disconnected_since is not None and not n.has_stopped]
        due = [since + TIMEOUTS.node_timeout_s for since in silent if attempt.is_wanted]
        if attempt.state is AttemptState.BOOTING and attempt.booted_at is not None:
            due.append(attempt.booted_at + TIMEOUTS.boot_timeout_s)
        if attempt.state is AttemptState.DRAINING and attempt.drain_until is not None:
            due.append(attempt.drain_until + DRAIN_MARGIN_S)
        if not due:
            looked_up = self.wake_at is not None and (task, attempt.generation) in self.queries
            return looked_up or self._awaits_event(attempt)
        return self.wake_at is not None and self.wake_at <= max(self.now, min(due))

    # --- a cooperative world: answers every open action truthfully ----------------------------------------------------

    def respond(self, *, finishing: bool, n: int = 0) -> bool:
        """Send the `n`-th of the events that are due, if any. Workloads end only if `finishing`."""
        due: list[events.Event] = []
        for task in self.job.tasks:
            if task.index in self.storage_requested and not task.storage_ready and task.state is not TaskState.ENDED:
                due.append(events.StorageReady(task.index))
            due += [e for attempt in task.attempts for e in self._next_of(task, attempt, finishing)]
        if due:
            self.send(due[n % len(due)])
        return bool(due)

    def _next_of(self, task: TaskView, attempt: AttemptView, finishing: bool) -> list[events.Event]:
        key = (task.index, attempt.generation)
        if attempt.terminating:
            return [events.AttemptGone(*key)]
        if attempt.state is AttemptState.REQUESTED:
            machines = tuple(events.Machine(n.rank, f"i-{n.rank}", "127.0.0.1") for n in attempt.nodes)
            return [events.Launched(*key, machines)]
        checked = [events.MachinesDescribed(*key, {n.rank: None for n in attempt.nodes if n.gone_reason is None})]
        reports = [self._report(task, attempt, node, finishing) for node in attempt.nodes if not node.has_stopped]
        return (checked if key in self.queries else []) + [report for report in reports if report is not None]

    def _report(self, task: TaskView, attempt: AttemptView, node: NodeView, finishing: bool) -> events.Event | None:
        key = (task.index, attempt.generation, node.rank)
        match directive_for(attempt).target:
            case Target.WAIT if node.phase is NodePhase.NOT_CONNECTED or not node.connected:
                return events.NodeReported(*key, NodePhase.BOOTED)
            case Target.SETUP if node.phase is NodePhase.FLUSHING and finishing:
                return events.NodeReported(*key, NodePhase.ENDED, exit_code=1, failed_stage="setup")
            case Target.SETUP if _is_before_ready(node) or not node.connected:
                return events.NodeReported(*key, NodePhase.READY)
            case Target.FINISH | Target.RUN if not finishing and not (node.connected and node.phase is _RUNNING):
                return events.NodeReported(*key, NodePhase.RUNNING)
            case Target.FINISH | Target.RUN if finishing:
                return events.NodeReported(*key, NodePhase.ENDED, exit_code=0)
            case Target.DRAIN:
                return events.NodeReported(*key, NodePhase.ENDED, exit_code=143, interrupted=True)
        return None
