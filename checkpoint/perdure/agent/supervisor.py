"""The node's own state machine: wait → files and mounts → setup → ready → run → flush → ended, and what cuts it short.

One thread walks through it. Where it stands after a restart follows from the disk: a stage that has begun is found
again, not started again. Whatever may block (downloads, mounts, flushing) runs beside it: a drain never waits for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perdure.agent import clock
from perdure.agent.environment import WORKDIR, home, workload_env
from perdure.agent.orders import DrainNow, Orders
from perdure.agent.places import Places
from perdure.agent.report import Outbox
from perdure.agent.spec import NodeSpec
from perdure.agent.stages import Result, Stage
from perdure.agent.state import keep_room, write_json
from perdure.agent.storage import NodeStorage, StorageFailed
from perdure.agent.work import Work

FLUSH_SHARE, FLUSH_MIN_S = 0.25, 2.0
NOTHING_TO_FLUSH_S = 0.5
OVERTIME_S = 1.0
KILL_S, RUNNER_KILL_S = 4.0, 0.5  # the runner is given this much of it to kill what is below it


@dataclass(frozen=True)
class Outcome:
    """How the node's part of the task ended: the fields of the report."""

    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    message: str = ""


class LeftAlone(Exception):
    """Nothing runs here, and no controller has asked for this node for long."""


class Failed(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Supervisor:
    """Brings one node through its life.

    `before_end` is called once, right before `ended` is reported. `is_left_alone`: no controller has called for long.
    """

    def __init__(
        self,
        spec: NodeSpec,
        orders: Orders,
        storage: NodeStorage,
        outbox: Outbox,
        *,
        places: Places,
        library: Path,
        before_end: Callable[[], object],
        log: Callable[[str], None],
        is_left_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec = spec
        self._orders = orders
        self._storage = storage
        self._outbox = outbox
        self._places = places
        self._library = library
        self._before_end = before_end
        self._log = log
        self._is_left_alone = is_left_alone
        self._setup = self._stage("setup", lingers=True)
        self._run = self._stage("run", lingers=False)
        self._stages = (self._run, self._setup)

    def recall(self) -> None:
        """Report what an earlier agent came to, before anything else is said."""
        ended = self._orders.state.ended
        if ended is not None:
            self._outbox.change(**ended)
        elif self._run.has_begun or self._setup.has_begun:
            self._outbox.change(phase="running" if self._run.has_begun else "setup")

    def live(self) -> None:
        """From wherever the node stands to `ended`. Raises StopNow, LeftAlone."""
        if self._orders.state.ended is not None:
            return
        try:
            outcome = self._walk()
        except DrainNow:
            outcome = self._drain()
        except Failed as failed:
            outcome = failed.outcome
        self._end_leftovers()
        self._end(self._flush(outcome))

    def kill(self) -> None:
        """End every process of the workload now, and wait until that is so (a hung file system may make it vain)."""
        began = time.monotonic()
        for stage in self._stages:
            with suppress(OSError):  # no room to say so: then the runner is not asked
                stage.stop(kill_at=0)
        while any(stage.is_alive() for stage in self._stages) and time.monotonic() - began < KILL_S:
            time.sleep(0.01)
            if time.monotonic() - began > RUNNER_KILL_S:
                for stage in self._stages:
                    stage.kill()
        self._run.end_orphans()

    def _walk(self) -> Outcome:
        """The way without interruption. Raises StopNow, DrainNow, LeftAlone, Failed."""
        self._until_wanted("setup")
        self._prepare()
        self._run_stage(self._setup, self._spec.setup, phase="setup")
        if not self._run.has_begun:
            self._enter("ready")
        self._until_wanted("run")
        return self._run_stage(self._run, self._spec.run, phase="running")

    def _until_wanted(self, want: str) -> None:
        self._orders.until(lambda: self._orders.state.directive.reaches(want) or self._is_left_alone())
        if not self._orders.state.directive.reaches(want):
            raise LeftAlone

    def _prepare(self) -> None:
        """Files and mounts. After a restart only the mounts: the workload may have changed the files."""
        is_anew = not self._orders.state.prepared
        if is_anew:
            self._enter("mounting")
        work = Work("prepare", lambda: self._storage.prepare(with_files=is_anew))
        self._orders.until(work.is_done)
        try:
            work.result()
        except StorageFailed as failed:
            if is_anew:
                raise Failed(Outcome(failed_stage="mounts", message=str(failed))) from None
            self._outbox.change(mount_lost=True, message=str(failed))
        self._orders.remember(prepared=True)
        self._storage.watch(self._mounts_changed)

    def _mounts_changed(self, mounts: list[dict[str, Any]], lost: list[str]) -> None:
        if lost:
            self._outbox.change(mounts=mounts, mount_lost=True, message=f"lost the mount at {', '.join(lost)}")
        else:
            self._outbox.change(mounts=mounts, mount_lost=False)

    def _run_stage(self, stage: Stage, script: str | None, *, phase: str) -> Outcome:
        """Run it, or find it again, and wait for its end. Raises Failed when it did not end with 0."""
        if not script:
            return Outcome(exit_code=0)
        if not self._run.has_begun or stage is self._run:
            self._enter(phase)
        keep_room(self._notice)
        try:
            stage.start(script, env=self._env(stage.name), cwd=home(os.environ) / WORKDIR)
        except OSError as error:
            raise Failed(
                Outcome(failed_stage=stage.name, message=f"{stage.name} can not be started: {error}")
            ) from None
        result = self._orders.until(stage.result)
        assert result is not None
        outcome = _outcome(stage.name, result)
        if outcome.failed_stage:
            raise Failed(outcome)
        return outcome

    def _drain(self) -> Outcome:
        """Tell the workload, wait for its end until flushing needs the time, then kill it.

        `run` first: what `setup` left in the background serves it.
        """
        self._storage.abandon_preparing()
        for stage in self._stages:
            self._stop_in_time(stage)
        return self._drained()

    def _stop_in_time(self, stage: Stage) -> None:
        """The deadline may still move: a notice may cut a drain short."""
        while stage.is_alive():
            deadline = self._orders.deadline(self._spec.drain_s)
            until = None if deadline is None else clock.to_wall(deadline)
            notice = {"deadline": until, "reason": self._orders.state.directive.reason}
            with suppress(OSError):  # a full disk: SIGTERM says it too
                write_json(self._notice, notice)
            stage.stop(kill_at=self._kill_at())
            self._orders.until(self._is_over_or_moved(stage, deadline), drainable=False)

    def _is_over_or_moved(self, stage: Stage, deadline: float | None) -> Callable[[], bool]:
        return lambda: not stage.is_alive() or self._orders.deadline(self._spec.drain_s) != deadline

    def _kill_at(self) -> float:
        """When the workload's time is over, so that what remains is enough to flush what it saved."""
        deadline = self._orders.deadline(self._spec.drain_s)
        began = self._orders.state.drain_began
        assert deadline is not None
        assert began is not None
        whole_s = max(0.0, deadline - began)
        reserve_s = max(FLUSH_MIN_S, FLUSH_SHARE * whole_s) if self._spec.mounts else NOTHING_TO_FLUSH_S
        return deadline - min(reserve_s, whole_s / 2)

    def _drained(self) -> Outcome:
        """What a drain interrupted. A stage that had ended by itself keeps its own outcome."""
        for stage in self._stages:
            result = stage.result() if stage.has_begun else None
            if result is None:
                continue
            outcome = _outcome(stage.name, result)
            if outcome.interrupted or outcome.failed_stage or stage is self._run:
                return outcome
        return Outcome(interrupted=True)

    def _end_leftovers(self) -> None:
        """What `setup` left in the background served `run`; nothing may outlive it."""
        for stage in self._stages:
            if stage.is_alive():
                stage.stop(kill_at=clock.now() + FLUSH_MIN_S / 2)
        self._orders.until(lambda: not any(stage.is_alive() for stage in self._stages), drainable=False)

    def _flush(self, outcome: Outcome) -> Outcome:
        """Bring what was written into the buckets, after every kind of ending. A deadline may come meanwhile."""
        if not self._orders.state.prepared:
            return outcome
        self._enter("flushing")
        deadline = self._orders.deadline(self._spec.drain_s)
        work = Work("flush", lambda: self._storage.flush(deadline))

        def is_over() -> bool:
            now_known = self._orders.deadline(self._spec.drain_s)
            return work.is_done() or (now_known is not None and clock.now() > now_known + OVERTIME_S)

        self._orders.until(is_over, drainable=False)
        try:
            if not work.is_done():
                raise StorageFailed("flushing was not done by the deadline")
            work.result()
        except StorageFailed as failed:
            # Nothing more may be written once this node has ended; what is in the cache can not be waited for.
            Work("unmount", self._storage.unmount).wait(OVERTIME_S)
            message = f"{outcome.message}; {failed}" if outcome.message else str(failed)
            return replace(outcome, failed_stage=outcome.failed_stage or "flush", message=message)
        return outcome

    def _end(self, outcome: Outcome) -> None:
        self._log(f"ended: {outcome}")
        self._before_end()
        lost = self._outbox.report.mount_lost
        ended = replace(self._outbox.report, phase="ended", **asdict(outcome), mounts=self._storage.last_seen)
        if lost and not outcome.message:
            ended = replace(ended, message=self._outbox.report.message)
        self._orders.remember(ended=asdict(ended))
        self._outbox.change(**asdict(ended))

    def _enter(self, phase: str) -> None:
        self._log(f"phase: {phase}")
        self._outbox.change(phase=phase, mounts=self._storage.last_seen)

    def _env(self, stage: str) -> dict[str, str]:
        return workload_env(
            stage,
            self._spec,
            self._orders.state.directive,
            environ=os.environ,
            run_dir=self._places.run_dir,
            library=self._library,
        )

    @property
    def _notice(self) -> Path:
        """Where the workload looks for word of its end."""
        return self._places.run_dir / "notice.json"

    def _stage(self, name: str, *, lingers: bool) -> Stage:
        marker = ("PERDURE_RUN_DIR", str(self._places.run_dir))
        directory = self._places.stage(name)
        return Stage(name, directory, log=self._places.log, library=self._library, marker=marker, lingers=lingers)


def _outcome(stage: str, result: Result) -> Outcome:
    if result.stopped:
        return Outcome(exit_code=result.exit_code, interrupted=True, message=result.message)
    if result.exit_code == 0:
        return Outcome(exit_code=0, message=result.message)
    return Outcome(result.exit_code, failed_stage=stage, message=result.message or _in_words(stage, result.exit_code))


def _in_words(stage: str, exit_code: int | None) -> str:
    if exit_code is not None and exit_code > 128:
        try:
            return f"{stage} exited with code {exit_code} (killed by {signal.Signals(exit_code - 128).name})"
        except ValueError:
            pass
    return f"{stage} exited with code {exit_code}"
