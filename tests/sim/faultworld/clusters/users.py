"""The users of clusters: most requests are repeated until they are answered, as a patient user does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from faultworld.clusters.plans import ClusterPlan, UserRequest
from faultworld.scenario import JobPlan
from faultworld.virtual_time import START
from perdure.controller.store.queries import clusters as queries
from perdure.controller.store.records import clusters
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.cluster.requests import LaunchOptions, OfCluster
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester

if TYPE_CHECKING:
    from faultworld.process import Process
    from faultworld.world import World

_RETRY_S, _CHECK_S = 6.0, 8.0
_KILL_CHANCE, _MAX_STEPS = 0.4, 14
Answer = Any  # what a call returned, or the RequestRejected that it raised


@dataclass
class ClusterState:
    """What the user of a cluster knows."""

    plan: ClusterPlan
    launched_at: float | None = None
    numbers: dict[str, int] = field(default_factory=dict)  # the jobs that were accepted
    dropped: set[str] = field(default_factory=set)  # the jobs that were rejected, because the cluster is gone
    asked_for: int = 0  # how many of the plan's requests were answered, or sent if they are not repeated
    kills: int = 0  # how many controllers have died while they handled a request
    is_down_requested: bool = False
    is_down: bool = False

    @property
    def has_all_answers(self) -> bool:
        """Whether every job was accepted or rejected, and every planned request answered."""
        known = len(self.numbers) + len(self.dropped)
        return known == len(self.plan.jobs) and self.asked_for == len(self.plan.requests)


class ClusterUsers:
    """One user for each cluster of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.scenario.seed}:users")
        self.states = {plan.name: ClusterState(plan) for plan in world.scenario.clusters}

    def schedule(self) -> None:
        for state in self.states.values():
            plan, at = state.plan, self._world.scheduler.at
            at(START + plan.at, self._launch, state)
            if plan.repeat_after_s is not None:
                at(START + plan.at + plan.repeat_after_s, self._launch, state)

    def are_done(self) -> bool:
        return all(state.is_down and state.has_all_answers for state in self.states.values())

    def may_end_early(self, job: JobPlan) -> bool:
        """Whether the job may be cancelled with its cluster."""
        return any(job in state.plan.jobs and state.plan.may_end_early for state in self.states.values())

    # --- requests -----------------------------------------------------------------------------------------

    def _ask(
        self,
        state: ClusterState,
        what: str,
        call: Callable[[ClusterService], Answer],
        on_answer: Callable[[Answer], None],
        *,
        repeats: bool = True,
    ) -> None:
        """Send a request to some controller. With `repeats`, repeat it until one answers."""
        answers: list[Answer] = []

        def send() -> None:
            if answers:
                return
            if repeats:
                self._world.scheduler.after(_RETRY_S * self._rng.uniform(0.5, 1.5), send)
            process = self._world.choose_controller(self._rng)
            if process is not None:
                process.at(self._world.scheduler.now(), handle, process)

        def handle(process: Process) -> None:
            assert process.components is not None
            self._perhaps_kill(process, state, what)
            try:
                answer: Answer = call(process.components.api_context.cluster_service)
            except RequestRejected as rejected:
                answer = rejected
            except DBAPIError:
                return
            if not answers:
                answers.append(answer)
                self._world.record("user", f"{what}: {answer if isinstance(answer, Exception) else 'done'}")
                on_answer(answer)

        send()

    def _perhaps_kill(self, process: Process, state: ClusterState, what: str) -> None:
        """Have the controller die at one of the next steps, which are mostly those of the request."""
        plan = state.plan
        chance = float(what.startswith(plan.kills_at)) if plan.kills_at else _KILL_CHANCE
        if state.kills < plan.kills and process.kill_after is None and self._rng.random() < chance:
            state.kills += 1
            process.kill_after = plan.kill_step or self._rng.randint(1, _MAX_STEPS)
            process.restart_after_s = self._rng.uniform(1, 20)
            self._world.fault_counts["a controller is killed in a request"] += 1

    def _launch(self, state: ClusterState) -> None:
        plan, first = state.plan, state.plan.jobs[0]
        options = LaunchOptions(autostop_s=plan.idle_s, autostop_down=plan.idle_down, recover=plan.recover)
        call = partial(
            ClusterService.launch, name=plan.name, config=plan.launch_config(), by=Requester("u"),
            key=f"key-{plan.name}",
            options=options,
        )  # fmt: skip

        def on_answer(answer: Answer) -> None:
            if isinstance(answer, RequestRejected) and answer.status == 409:
                self._world.scheduler.after(_RETRY_S, self._launch, state)  # as the error says
                return
            is_first = state.launched_at is None
            self._accepted(state, first, answer)
            if is_first:
                state.launched_at = self._world.scheduler.now()
                self._go_on(state)

        self._ask(state, f"launch {plan.name}", call, on_answer)

    def _go_on(self, state: ClusterState) -> None:
        now = self._world.scheduler.now()
        for job in state.plan.jobs[1:]:
            self._world.scheduler.at(START + job.at, self._exec, state, job)
        for job in state.plan.jobs:
            if job.cancel_at is not None:
                self._world.scheduler.at(START + job.cancel_at, self._cancel, state, job)
        for request in state.plan.requests:
            self._world.scheduler.at(now + request.at, self._request, state, request)
        self._world.scheduler.after(_CHECK_S, self._check, state)

    def _accepted(self, state: ClusterState, job: JobPlan, answer: Answer) -> None:
        if isinstance(answer, OfCluster) and answer.number is not None and answer.job_id is not None:
            known = state.numbers.setdefault(job.name, answer.number)
            self._world.accepted[job.name].add(answer.job_id)
            if known != answer.number:
                self._world.invariants.report_violation("I1", f"{job.name} is job {known} and job {answer.number}")
        elif state.plan.may_end_early:
            state.dropped.add(job.name)
        else:
            self._world.invariants.report_violation("I1", f"{job.name} is rejected: {answer}")

    def _exec(self, state: ClusterState, job: JobPlan) -> None:
        call = partial(
            ClusterService.exec, name=state.plan.name, config=state.plan.exec_config(job), by=Requester("u"),
            key=f"key-{job.name}", limit_s=None,
        )  # fmt: skip

        def on_answer(answer: Answer) -> None:
            if isinstance(answer, RequestRejected) and answer.status == 409:  # it is stopped
                self._world.scheduler.after(_RETRY_S, self._exec, state, job)
            else:
                self._accepted(state, job, answer)

        self._ask(state, f"exec {job.name}", call, on_answer)

    def _cancel(self, state: ClusterState, job: JobPlan) -> None:
        number = state.numbers.get(job.name)
        if number is None:
            if job.name not in state.dropped:
                self._world.scheduler.after(_RETRY_S, self._cancel, state, job)
            return
        call = partial(ClusterService.cancel_jobs, name=state.plan.name, numbers=[number], everything=False)
        self._ask(state, f"cancel {job.name}", call, lambda answer: self._on_cancelled(job, answer))

    def _on_cancelled(self, job: JobPlan, answer: Answer) -> None:
        if isinstance(answer, dict) and answer["cancelled"]:
            for job_id in self._world.accepted[job.name]:
                self._world.invariants.on_cancel_acknowledged(job_id)

    def _request(self, state: ClusterState, request: UserRequest) -> None:
        def on_answer(_: Answer) -> None:
            state.asked_for += request.repeats

        if request.kind == "down":
            state.is_down_requested = True
        state.asked_for += not request.repeats
        call = partial(getattr(ClusterService, request.kind), name=state.plan.name)
        self._ask(state, f"{request.kind} {state.plan.name}", call, on_answer, repeats=request.repeats)

    # --- until everything has ended -----------------------------------------------------------------------

    def _check(self, state: ClusterState) -> None:
        """Look at the cluster, and do what is necessary until its jobs have ended. Then take it down."""
        if not state.is_down:
            self._world.scheduler.after(_CHECK_S, self._check, state)
            process = self._world.choose_controller(self._rng)
            if process is not None:
                process.at(self._world.scheduler.now(), self._look, process, state)

    def _look(self, process: Process, state: ClusterState) -> None:
        try:
            with process.database.connect() as conn:
                row = clusters.find(conn, state.plan.name)
                (found,) = queries.describe(conn, [row], process.clock.now()) if row is not None else (None,)
                unfinished = clusters.unfinished_jobs(conn, row.id) if row is not None else []
                host = clusters.hosts(conn, [row.id]).get(row.id) if row is not None else None
        except DBAPIError:
            return
        if found is None:
            state.is_down = True
            if not state.is_down_requested and not state.plan.may_end_early:
                self._world.invariants.report_violation("I11", f"{state.plan.name} is gone, which nobody requested")
            return
        answered = state.asked_for == len(state.plan.requests)
        if answered and state.has_all_answers and not unfinished:
            state.is_down_requested = True
            call = partial(ClusterService.down, name=state.plan.name)
            self._ask(state, f"down {state.plan.name}", call, lambda _: None)
        elif answered and found["status"] in ("PREEMPTED", "STOPPED", "AUTOSTOPPING"):
            # A disk is lost: the user goes on without the others, as the message of the start says.
            discards = host is not None and "--discard-disks" in host.message
            call = partial(ClusterService.start, name=state.plan.name, discards_disks=discards)
            self._ask(state, f"start {state.plan.name}", call, lambda _: None)
