"""A node's way from its first call to its end, as `perdure.agent.supervisor` goes it: what follows from the disk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faultworld.disk import Disk
from faultworld.network import Link
from faultworld.scenario import TaskPlan
from faultworld.timing import SkewedClock
from faultworld.workload import Ended, Program
from perdure.controller.keyring import AttemptKey

if TYPE_CHECKING:
    from faultworld.world import World


class Walk:
    """The part of a node that lives its life. `Node` gives it time, a connection, and misfortune."""

    world: World
    key: AttemptKey
    rank: int
    name: str
    disk: Disk
    rng: random.Random
    link: Link | None
    program: Program | None
    agent_up: bool
    is_on: bool
    written_off: bool
    disk_full_until: float
    _clock: SkewedClock
    _outcome: dict[str, Any]
    _life: int
    _stopping_life: int
    _soon: Callable[..., None]
    _say: Callable[[dict[str, Any]], None]
    _say_report: Callable[..., None]
    _ship: Callable[[], None]
    _grace_s: Callable[[], float]

    def _walk(self) -> None:
        """Go on from where the disk says that this node stands."""
        disk = self.disk
        if not self.agent_up:
            return
        if self.written_off or disk.directive.reaches("stop"):
            self._stop()
        elif disk.spec is not None and not disk.ended:
            getattr(self, f"_in_{disk.report.phase}")(disk.directive.reaches("drain"))

    def _in_booted(self, drains: bool) -> None:
        if drains:
            self._end(interrupted=True)
        elif self.disk.directive.reaches("setup"):
            self._say_report(phase="mounting")
            self._soon(self._mounted, self.rng.uniform(0.05, 1))

    def _in_mounting(self, drains: bool) -> None:
        if drains:
            self._end(interrupted=True)

    def _mounted(self) -> None:
        if self.disk.report.phase == "mounting":
            self.disk.prepared = True
            if self.disk.spec and self.disk.spec["setup"]:
                self._say_report(phase="setup")
                self._start("setup")
            else:
                self._say_report(phase="ready")
            self._walk()

    def _in_setup(self, drains: bool) -> None:
        if self.disk.setup is None:
            if drains and self.program is not None:
                self.program.stop(self._grace_s())
        elif self.disk.setup.code and not self.disk.setup.stopped:
            self._flush(exit_code=self.disk.setup.code, failed_stage="setup", message="setup failed")
        elif drains:
            self._flush(interrupted=True)
        else:
            self._say_report(phase="ready")
            self._walk()

    def _in_ready(self, drains: bool) -> None:
        if drains:
            self._flush(interrupted=True)
        elif self.disk.directive.reaches("run"):
            self._say_report(phase="running")
            self._start("run")

    def _in_running(self, drains: bool) -> None:
        ended = self.disk.run
        if ended is None:
            if drains and self.program is not None:
                self.program.stop(self._grace_s())
        elif ended.stopped:
            self._flush(exit_code=ended.code, interrupted=True)
        elif ended.code:
            self._flush(exit_code=ended.code, failed_stage="run", message=f"run exited with code {ended.code}")
        else:
            self._flush(exit_code=0)

    def _in_flushing(self, drains: bool) -> None:
        """A flush is not cut short."""

    def _flush(self, **outcome: Any) -> None:
        self._say_report(phase="flushing")
        self._outcome = outcome
        self._soon(self._flushed, self.rng.uniform(0.02, 1.5))

    def _flushed(self) -> None:
        if self.disk.report.phase != "flushing":
            return
        outcome = self._outcome
        if self.disk_full_until > self.world.scheduler.now():
            self.world.progress_of(self.key).flush_failures += 1
            outcome = {**outcome, "failed_stage": outcome.get("failed_stage") or "flush", "message": "no space left"}
        self._end(**outcome)

    def _end(self, **outcome: Any) -> None:
        self.disk.ended = True
        self._say_report(phase="ended", **outcome)

    def _stop(self) -> None:
        """Kill everything, send what is left of the log, end, and have the machine switched off."""
        self._kill_program()
        if self._stopping_life != self._life:
            self._stopping_life = self._life
            self._ship()
            self._soon(self._leave, self.rng.uniform(0.1, 2.0))

    def _leave(self) -> None:
        self.agent_up = False
        if self.link is not None:
            self.link.cut()
        self.world.scheduler.after(self.rng.uniform(0.05, 1), self.world.powers_off, self)

    # --- programs ------------------------------------------------------------------------------------------

    def _start(self, stage: str) -> None:
        assert self.disk.spec is not None
        plan = TaskPlan(**json.loads(self.disk.spec["run"]))
        progress = self.world.progress_of(self.key)
        if stage == "run":
            self.world.judge.workload_begins(self)
        self.program = Program(
            stage, plan, progress, self.key[2], self.rank,
            after=self._on_machine, prints=self._prints, saved=self._saved, ended=self._program_ended, rng=self.rng,
        )  # fmt: skip

    def _on_machine(self, seconds: float, do: Any, *args: Any) -> None:
        self.world.scheduler.after(seconds, self._if_on, do, args)

    def _if_on(self, do: Any, args: tuple[Any, ...]) -> None:
        if self.is_on:
            do(*args)

    def _prints(self, text: str) -> None:
        self.disk.log += f"[{self.name}] {text}".encode()
        if self.agent_up:
            self._ship()

    def _saved(self, step: int) -> bool:
        if self.disk_full_until > self.world.scheduler.now():
            return False
        seq = len(self.disk.checkpoints) + 1
        self.disk.checkpoints.append(
            {
                "type": "checkpoint",
                "seq": seq,
                "step": step,
                "state": "committed",
                "path": "/c",
                "at": self._clock.now(),
            }
        )
        if self.agent_up and self.link is not None and self.link.welcomed:
            self._say(self.disk.checkpoints[-1])
        return True

    def _program_ended(self, how: Ended) -> None:
        assert self.program is not None
        stage = self.program.stage
        setattr(self.disk, stage, how)
        if stage == "run":
            self.world.judge.workload_ends(self)
            if how.code == 1:
                self.world.peer_died(self)
        self._soon(self._walk, 0.02)

    def _kill_program(self) -> None:
        if self.program is not None and self.program.is_alive:
            self.program.kill()
            if self.program.stage == "run":
                self.world.judge.workload_ends(self)
