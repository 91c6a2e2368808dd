"""After a notice: the workload is announced its end and stopped by the deadline, and what it wrote is uploaded.

`notice_intake` records the notice, `desired_state` turns it into a deadline, and `supervisor` calls what is here: the
hooks of the task (`hooks`), the stop of its stages, and the flush, which also ends a node that nobody interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from perdure.agent import clock
from perdure.agent.lifecycle.background_task import BackgroundTask
from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.lifecycle.hooks import DOWN, PREEMPTION, HookRunner, event_of_drain
from perdure.agent.lifecycle.outcome import Outcome, outcome_of
from perdure.agent.lifecycle.slot_host import SlotHost
from perdure.agent.node_spec import NodeSpec
from perdure.agent.state_file import write_json
from perdure.agent.storage.node_storage import NodeStorage, StorageFailed
from perdure.agent.workload.environment import workdir_path
from perdure.agent.workload.stage import Stage

FLUSH_SHARE, FLUSH_MIN_S = 0.25, 2.0
NOTHING_TO_FLUSH_S = 0.5
FLUSH_OVERTIME_S = 1.0
STREAMS_SHARE, STREAMS_MAX_S = 0.25, 5.0  # of a drain, kept for stopping a program whose streams have not ended


class Drain:
    """Ends the workload of a node within the time that is left, and flushes its files. Used by `Supervisor`'s thread.

    `stages`: `run`, then `setup`. `stage_env`: the environment of a stage, by its name. `notice_path`: the file that
    announces the end to the workload. `enter_phase` reports a phase of the node. `open_streams`: how many requests of a
    service are open.
    """

    def __init__(
        self,
        spec: NodeSpec,
        desired: DesiredState,
        storage: NodeStorage,
        hooks: HookRunner,
        stages: tuple[Stage, Stage],
        *,
        stage_env: Callable[[str], dict[str, str]],
        notice_path: Path,
        enter_phase: Callable[[str], None],
        slot_host: SlotHost | None,
        open_streams: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._desired = desired
        self._storage = storage
        self._hooks = hooks
        self._stages = stages
        self._run_stage = stages[0]
        self._stage_env = stage_env
        self._notice_path = notice_path
        self._enter_phase = enter_phase
        self._slot_host = slot_host
        self._open_streams = open_streams

    def stop_workload(self) -> Outcome:
        """Stop the workload gracefully, but kill it when the time left is needed for flushing.

        `run` first: the background processes of `setup` serve it. Hooks before that, while it still runs.
        """
        self._storage.cancel_prepare()
        if self._spec.probe is not None:
            self._desired.wait_for(self._streams_have_ended, drainable=False)
        self.run_hooks(PREEMPTION)
        if self._slot_host is not None:
            self._slot_host.drain(self._desired, self._slots_kill_at)
        for stage in self._stages:
            self._stop_by_deadline(stage)
        return self._drained_outcome()

    def run_hooks(self, event: str) -> None:
        """Run the hooks of `event`, unless the node ends for another, or before `setup` could have begun."""
        state = self._desired.state
        is_drain = state.directive.reaches("drain")
        happened = event_of_drain(state.directive, has_notice=state.notice is not None) if is_drain else DOWN
        if event != happened or not state.prepared or not self._hooks.stages:
            return
        if is_drain:
            self._announce_end()
        self._hooks.run(
            event,
            env=self._stage_env("run"),
            cwd=workdir_path(os.environ),
            stop_at=lambda: self._hooks_stop_at(event),
        )

    def flush(self, outcome: Outcome) -> Outcome:
        """Upload what was written, after every kind of ending. A deadline may arrive meanwhile."""
        if not self._desired.state.prepared:
            return outcome
        self._enter_phase("flushing")
        deadline = self._desired.deadline(self._spec.drain_s)
        task = BackgroundTask("flush", lambda: self._storage.flush(deadline))

        def is_over() -> bool:
            current_deadline = self._desired.deadline(self._spec.drain_s)
            return task.is_done() or (
                current_deadline is not None and clock.now() > current_deadline + FLUSH_OVERTIME_S
            )

        self._desired.wait_for(is_over, drainable=False)
        try:
            if not task.is_done():
                raise StorageFailed("flushing did not end by the deadline")
            task.result()
        except StorageFailed as failed:
            # Nothing may be written once this node has ended, and there is no time left to upload the cache.
            BackgroundTask("unmount", self._storage.unmount).wait(FLUSH_OVERTIME_S)
            message = f"{outcome.message}; {failed}" if outcome.message else str(failed)
            return replace(outcome, failed_stage=outcome.failed_stage or "flush", message=message)
        return outcome

    def _hooks_stop_at(self, event: str) -> float | None:
        """When hooks must have ended. Before a preemption, half of the workload's time is left for its own save."""
        if self._desired.deadline(self._spec.drain_s) is None:
            return None
        started_at = self._desired.state.drain_started_at
        assert started_at is not None
        return (started_at + self._kill_at()) / 2 if event == PREEMPTION else self._kill_at()

    def _announce_end(self) -> None:
        """Tell the workload when and why it must end."""
        deadline = self._desired.deadline(self._spec.drain_s)
        until = None if deadline is None else clock.to_wall(deadline)
        notice = {"deadline": until, "reason": self._desired.state.directive.reason}
        with suppress(OSError):  # the disk is full: the workload still gets SIGTERM
            write_json(self._notice_path, notice)

    def _stop_by_deadline(self, stage: Stage) -> None:
        """Stop `stage` by the deadline, and again whenever the deadline moves: a notice may shorten a drain."""
        while stage.is_alive():
            deadline = self._desired.deadline(self._spec.drain_s)
            self._announce_end()
            stage.stop(kill_at=self._kill_at())
            self._desired.wait_for(self._has_ended_or_deadline_moved(stage, deadline), drainable=False)

    def _has_ended_or_deadline_moved(self, stage: Stage, deadline: float | None) -> Callable[[], bool]:
        return lambda: not stage.is_alive() or self._desired.deadline(self._spec.drain_s) != deadline

    def _kill_at(self) -> float:
        """When the workload must be killed, so that enough time is left to flush what it saved."""
        deadline = self._desired.deadline(self._spec.drain_s)
        started_at = self._desired.state.drain_started_at
        assert deadline is not None
        assert started_at is not None
        whole_s = max(0.0, deadline - started_at)
        reserve_s = (
            max(FLUSH_MIN_S, FLUSH_SHARE * whole_s) if self._spec.mounts or self._spec.home else NOTHING_TO_FLUSH_S
        )
        return deadline - min(reserve_s, whole_s / 2)

    def _streams_have_ended(self) -> bool:
        """Whether a replica has answered its callers, or has only the time left that it needs to stop."""
        started_at = self._desired.state.drain_started_at
        assert started_at is not None
        kill_at = self._kill_at()
        reserve_s = min(STREAMS_MAX_S, STREAMS_SHARE * max(0.0, kill_at - started_at))
        return not self._run_stage.is_alive() or not self._open_streams() or clock.now() >= kill_at - reserve_s

    def _slots_kill_at(self) -> float:
        """When the jobs of a cluster must be killed: more time than for a drain is time to save the home."""
        started_at = self._desired.state.drain_started_at
        assert started_at is not None
        return min(self._kill_at(), started_at + self._spec.drain_s)

    def _drained_outcome(self) -> Outcome:
        """The outcome of a drain. A stage that had ended by itself keeps its own outcome."""
        for stage in self._stages:
            result = stage.result() if stage.has_begun else None
            if result is None:
                continue
            outcome = outcome_of(stage.name, result)
            if outcome.interrupted or outcome.failed_stage or stage is self._run_stage:
                return outcome
        return Outcome(interrupted=True)
