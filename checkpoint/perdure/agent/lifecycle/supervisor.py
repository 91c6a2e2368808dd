"""The node's state machine: wait → files and mounts → setup → ready → run → flush → ended, and its interruptions.

One thread runs it. After a restart it continues from what is on the disk: a stage that has begun is adopted, not
started again. Work that may block (downloads, mounts, flushing) runs in a `BackgroundTask`, so that a drain never waits
for it. `drain` holds what follows a notice; `notice_intake` is where the notice arrives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from perdure.agent import clock
from perdure.agent.lifecycle.background_task import BackgroundTask
from perdure.agent.lifecycle.desired_state import DesiredState, DrainNow, ReviseNow
from perdure.agent.lifecycle.drain import FLUSH_MIN_S, Drain
from perdure.agent.lifecycle.hooks import DOWN, HookRunner
from perdure.agent.lifecycle.outcome import NodeFailed, Outcome, outcome_of
from perdure.agent.lifecycle.slot_host import SlotHost
from perdure.agent.link.outbox import Outbox
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import reserve_disk_space
from perdure.agent.storage.node_storage import NodeStorage, StorageFailed
from perdure.agent.workload.container.engine import ContainerFailed
from perdure.agent.workload.container.task_container import TaskContainer, outermost
from perdure.agent.workload.environment import node_path, workdir_path, workload_env
from perdure.agent.workload.memory_limit import MemoryLimit
from perdure.agent.workload.stage import Stage

MOUNT_CHECK_S = 5.0  # how long the check of the mounts after a failed stage may take
KILL_S, RUNNER_KILL_S = 4.0, 0.5  # of KILL_S, how long the runner has to kill its processes


class Orphaned(Exception):
    """Nothing runs here, and no controller has answered for `power_off_after_s`."""


class Supervisor:
    """Runs one node from its start to `ended`.

    `before_end` is called once, right before `ended` is reported. `end_sessions` ends the sessions of users, and gives
    them the reason. `open_streams`: how many requests of a service are open. `is_orphaned`: whether no controller has
    answered for `power_off_after_s`. `slot_host`: of a node of a cluster, which runs the cluster's jobs instead of
    `run`. `on_failed_trial`: of a replica that has got another version of its service, gets why that cannot start.
    """

    def __init__(
        self,
        spec: NodeSpec,
        desired: DesiredState,
        storage: NodeStorage,
        outbox: Outbox,
        *,
        paths: NodePaths,
        library: Path,
        before_end: Callable[[], object],
        end_sessions: Callable[[str], object],
        open_streams: Callable[[], int] = lambda: 0,
        log: Callable[[str], None],
        is_orphaned: Callable[[], bool] = lambda: False,
        slot_host: SlotHost | None = None,
        container: TaskContainer | None = None,
        on_failed_trial: Callable[[str], object] = lambda _why: None,
    ) -> None:
        self._spec = spec
        self._desired = desired
        self._storage = storage
        self._outbox = outbox
        self._paths = paths
        self._library = library
        self._before_end = before_end
        self._end_sessions = end_sessions
        self._log = log
        self._is_orphaned = is_orphaned
        self._slot_host = slot_host
        self._container = container
        self._on_failed_trial = on_failed_trial
        self._setup_stage = self._make_stage("setup", allow_background=True)
        self._run_stage = self._make_stage("run", allow_background=spec.num_nodes > 1)
        self._stages = (self._run_stage, self._setup_stage)
        self._hooks = HookRunner(
            spec.hooks,
            desired,
            make_stage=lambda name: self._make_stage(name, allow_background=False),
            log=paths.append_to_job_log,
        )
        self._drain = Drain(
            spec,
            desired,
            storage,
            self._hooks,
            self._stages,
            stage_env=self._stage_env,
            notice_path=self._notice_path,
            enter_phase=self._enter_phase,
            slot_host=slot_host,
            open_streams=open_streams,
        )
        self._replaced_mounts: dict[str, list[str]] = {}  # stage that had begun before → paths mounted again under it

    def restore(self) -> None:
        """Put what an earlier agent reached into the report, before the first frame is sent."""
        ended, is_host = self._desired.state.ended, self._slot_host is not None
        has_run = self._run_stage.has_begun or (is_host and self._desired.state.directive.reaches("run"))
        if ended is not None:
            self._outbox.update_report(**ended)
        elif has_run or self._setup_stage.has_begun:
            self._outbox.update_report(phase="running" if has_run else "setup")

    def run(self) -> None:
        """Run from the current state to `ended`. Raises StopNow, Orphaned; ReviseNow once nothing runs any more."""
        if self._desired.state.ended is not None:
            return
        try:
            outcome = self._run_revision()
        except DrainNow:
            if self._container is not None:
                self._container.cancel()
            outcome = self._drain.stop_workload()
        except NodeFailed as failed:
            outcome = failed.outcome
        outcome = self._check_mounts(outcome)
        self._drain.run_hooks(DOWN)
        self._end_leftovers()
        self._report_end(self._drain.flush(outcome))

    def kill(self) -> None:
        """Kill every process of the workload, and wait for their end, at most `KILL_S` (a file system may hang)."""
        started_at = time.monotonic()
        stages = (*self._stages, *self._hooks.stages)
        if self._slot_host is not None:
            self._slot_host.kill()
        for stage in stages:
            with suppress(OSError):  # the disk is full: the runner cannot be asked
                stage.stop(kill_at=0)
        while any(stage.is_alive() for stage in stages) and time.monotonic() - started_at < KILL_S:
            time.sleep(0.01)
            if time.monotonic() - started_at > RUNNER_KILL_S:
                for stage in stages:
                    stage.kill()
        self._run_stage.kill_orphans()

    def _run_revision(self) -> Outcome:
        """`_run_stages`, until another revision of the node spec is wanted. Raises ReviseNow as well."""
        try:
            try:
                outcome = self._run_stages()
            except NodeFailed as failed:
                if not self._is_trial():
                    raise
                outcome = failed.outcome
            if self._is_trial():  # the version that ran before may come back: the machine is kept for it
                why = outcome.message or f"run has ended with code {outcome.exit_code} before it was ready"
                self._log(f"revision {self._spec.revision} cannot start: {why}")
                self._on_failed_trial(why)
                self._desired.wait_for(self._is_orphaned)
                raise Orphaned
            return outcome
        except ReviseNow:
            self._end_revision()
            raise

    def _is_trial(self) -> bool:
        """Whether this machine runs another version than it was launched with, which has not been ready yet."""
        return 0 < self._spec.revision != self._desired.state.ready_revision

    def _end_revision(self) -> None:
        """End everything of this revision, and upload what it wrote. Raises StopNow, DrainNow."""
        self._log("ending the program for another revision")
        self._storage.cancel_prepare()
        if self._container is not None:
            self._container.cancel()
        kill_at = clock.now() + self._spec.drain_s
        for stage in self._stages:
            if stage.is_alive():
                stage.stop(kill_at=kill_at)
                self._desired.wait_for(partial(_has_ended, stage), revisable=False)
        self._end_leftovers()
        if self._desired.state.prepared:
            flush = BackgroundTask("flush", lambda: self._storage.flush(None))
            self._desired.wait_for(flush.is_done, revisable=False)
            try:
                flush.result()
            except StorageFailed as failed:  # what was not uploaded stays in the cache of its mount
                self._paths.append_to_job_log(str(failed))
        unmount = BackgroundTask("unmount", self._storage.unmount)
        self._desired.wait_for(unmount.is_done, revisable=False)

    def _run_stages(self) -> Outcome:
        """The stages in order, without interruption. Raises StopNow, DrainNow, Orphaned, NodeFailed."""
        self._wait_for_target("setup")
        self._prepare()
        self._run_one_stage(self._setup_stage, self._spec.setup, phase="setup")
        if not self._run_stage.has_begun and self._outbox.report.phase != "running":
            self._enter_phase("ready")
        self._wait_for_target("run")
        self._refresh()
        if self._slot_host is not None:
            self._enter_phase("running")
            self._desired.wait_for(self._slot_host.is_done)
            return Outcome(exit_code=0)
        outcome = self._run_one_stage(self._run_stage, self._spec.run, phase="running")
        if self._run_stage.is_alive():  # other nodes may need what it has left in the background, such as a Ray worker
            self._outbox.update_report(exit_code=outcome.exit_code)
            self._desired.wait_for(lambda: self._may_pass("finish") or not self._run_stage.is_alive())
        return outcome

    def _wait_for_target(self, target: str) -> None:
        self._desired.wait_for(lambda: self._may_pass(target))
        if not self._desired.state.directive.reaches(target):
            raise Orphaned

    def _may_pass(self, target: str) -> bool:
        return self._desired.state.directive.reaches(target) or self._is_orphaned()

    def _prepare(self) -> None:
        """Fetch the files and mount the buckets. After a restart, only mount: files may have been changed since."""
        is_first_time = not self._desired.state.prepared
        if is_first_time:
            self._enter_phase("mounting")
        task = BackgroundTask("prepare", lambda: self._storage.prepare(with_files=is_first_time))
        self._desired.wait_for(task.is_done)
        try:
            task.result()
        except StorageFailed as failed:
            if is_first_time:
                raise NodeFailed(Outcome(failed_stage="mounts", message=str(failed))) from None
            self._outbox.update_report(mount_lost=True, message=str(failed))
        if not is_first_time:
            begun = [stage.name for stage in self._stages if stage.has_begun]
            self._replaced_mounts = {name: self._storage.new_mounts() for name in begun}
        self._start_container()
        self._desired.update(prepared=True)
        self._storage.watch(self._mounts_changed)

    def _refresh(self) -> None:
        """Before `run` begins: what the attempt before saved while this machine was set up is here, too."""
        if self._run_stage.has_begun:
            return
        task = BackgroundTask("refresh", self._storage.refresh)
        self._desired.wait_for(task.is_done)
        try:
            task.result()
        except StorageFailed as failed:
            raise NodeFailed(Outcome(failed_stage="mounts", message=str(failed))) from None

    def _start_container(self) -> None:
        """Start the container of the task, if it has one. Raises NodeFailed with the engine's words."""
        container = self._container
        if container is None:
            return
        task = BackgroundTask("container", lambda: container.start(self._shared_paths()))
        self._desired.wait_for(task.is_done)
        try:
            task.result()
        except ContainerFailed as failed:
            raise NodeFailed(Outcome(failed_stage="start", message=str(failed))) from None

    def _shared_paths(self) -> list[str]:
        """What scripts in a container share with this machine: the task's files, and what the agent keeps for them."""
        of_agent = [self._library, *self._paths.shared_with_container()]
        given = [*self._spec.uploads, *self._spec.mounts]
        of_task = [workdir_path(os.environ), *(node_path(str(one["path"]), os.environ) for one in given)]
        return outermost(str(path) for path in (*of_agent, *of_task) if os.path.lexists(path))

    def _mounts_changed(self, mounts: list[dict[str, Any]], lost: list[str]) -> None:
        if lost:
            self._outbox.update_report(mounts=mounts, mount_lost=True, message=f"lost the mount at {', '.join(lost)}")
        else:
            self._outbox.update_report(mounts=mounts, mount_lost=False)

    def _run_one_stage(self, stage: Stage, script: str | None, *, phase: str) -> Outcome:
        """Start the stage, or adopt it, and wait for its end. Raises NodeFailed unless it exits with 0."""
        if not script:
            return Outcome(exit_code=0)
        if not self._run_stage.has_begun or stage is self._run_stage:
            self._enter_phase(phase)
        reserve_disk_space(self._notice_path)
        memory = MemoryLimit()
        kills = memory.kills()
        try:
            stage.start(script, env=self._stage_env(stage.name), cwd=workdir_path(os.environ))
        except OSError as error:
            raise NodeFailed(
                Outcome(failed_stage=stage.name, message=f"{stage.name} cannot be started: {error}")
            ) from None
        result = self._desired.wait_for(stage.result)
        assert result is not None
        outcome = outcome_of(stage.name, result, memory if memory.kills() > kills else None)
        if outcome.failed_stage:
            raise NodeFailed(outcome)
        return outcome

    def _check_mounts(self, outcome: Outcome) -> Outcome:
        """Report lost mounts with a stage that failed: a program may end at its first I/O error, before `watch` looks.

        A mount that a restarted agent replaced counts as lost for the stages that had begun before. A mount that hangs
        does not: its check is given up.
        """
        if outcome.failed_stage not in ("setup", "run") or not self._desired.state.prepared:
            return outcome
        lost: list[str] = []
        task = BackgroundTask("mount check", lambda: lost.extend(self._storage.find_lost_mounts()))
        give_up_at = time.monotonic() + MOUNT_CHECK_S
        self._desired.wait_for(lambda: task.is_done() or time.monotonic() >= give_up_at, drainable=False)
        lost += self._replaced_mounts.get(outcome.failed_stage, [])
        if not lost:
            return outcome
        message = f"lost the mount at {', '.join(sorted(set(lost)))}"
        self._outbox.update_report(mount_lost=True, message=message)
        return replace(outcome, message=f"{outcome.message}; {message}")

    def _end_leftovers(self) -> None:
        """End the background processes of `setup` and of users' sessions: they must not write after the end."""
        self._end_sessions("the job has ended on this machine")
        for stage in self._stages:
            if stage.is_alive():
                stage.stop(kill_at=clock.now() + FLUSH_MIN_S / 2)
        self._desired.wait_for(lambda: not any(stage.is_alive() for stage in self._stages), drainable=False)
        self._run_stage.kill_orphans()
        if self._container is not None:
            task = BackgroundTask("container", self._container.remove)
            self._desired.wait_for(task.is_done, drainable=False)

    def _report_end(self, outcome: Outcome) -> None:
        self._log(f"ended: {outcome}")
        self._before_end()
        lost = self._outbox.report.mount_lost
        ended = replace(self._outbox.report, phase="ended", **asdict(outcome), mounts=self._storage.last_snapshot)
        if lost and not outcome.message:
            ended = replace(ended, message=self._outbox.report.message)
        self._desired.update(ended=asdict(ended))
        self._outbox.update_report(**asdict(ended))

    def _enter_phase(self, phase: str) -> None:
        self._log(f"phase: {phase}")
        self._outbox.update_report(phase=phase, mounts=self._storage.last_snapshot)

    def _stage_env(self, stage: str) -> dict[str, str]:
        return workload_env(
            stage,
            self._spec,
            self._desired.state.directive,
            environ=os.environ if self._container is None else self._container.environ(),
            paths=self._paths,
            library=self._library,
        )

    @property
    def _notice_path(self) -> Path:
        """The file that announces the end to the workload."""
        return self._paths.run_dir / "notice.json"

    def _make_stage(self, name: str, *, allow_background: bool) -> Stage:
        marker = ("PERDURE_RUN_DIR", str(self._paths.run_dir))
        directory = self._paths.stage(name)
        return Stage(
            name,
            directory,
            log=self._paths.log,
            library=self._library,
            marker=marker,
            allow_background=allow_background,
            container=self._container,
        )


def _has_ended(stage: Stage) -> bool:
    return not stage.is_alive()
