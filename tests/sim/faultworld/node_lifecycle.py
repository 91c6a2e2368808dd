"""The lifecycle of a node: its stages and its programs, as in `perdure.agent.lifecycle.supervisor`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faultworld.disk import Disk
from faultworld.network import Link
from faultworld.scenario import TaskPlan
from faultworld.virtual_time import SkewedClock
from faultworld.workload import Program, ProgramExit
from perdure.controller.runtime.keys import AttemptKey

if TYPE_CHECKING:
    from faultworld.world import World


class NodeLifecycle:
    """Moves a node from stage to stage. `Node` adds time, a connection and faults."""

    world: World
    cloud: str
    machine_id: str
    key: AttemptKey
    rank: int
    name: str
    disk: Disk
    rng: random.Random
    link: Link | None
    program: Program | None
    agent_up: bool
    is_on: bool
    token_revoked: bool
    powered_itself_off: bool
    disk_full_until: float
    _clock: SkewedClock
    _outcome: dict[str, Any]
    _incarnation: int
    _stopping_incarnation: int
    _schedule: Callable[..., None]
    _send: Callable[[dict[str, Any]], None]
    _send_report: Callable[..., None]
    _schedule_log_upload: Callable[[], None]
    _grace_s: Callable[[], float]

    def _advance(self) -> None:
        """Continue from the stage that is stored on the disk."""
        disk = self.disk
        if not self.agent_up:
            return
        if self.token_revoked or disk.directive.reaches("stop"):
            self._stop()
        elif disk.spec is not None and not disk.ended:
            getattr(self, f"_in_{disk.report.phase}")(disk.directive.reaches("drain"))

    def _in_booted(self, drains: bool) -> None:
        if drains:
            self._end(interrupted=True)
        elif self.disk.directive.reaches("setup"):
            self._send_report(phase="mounting")
            self._schedule(self._mounted, self.rng.uniform(0.05, 1))

    def _in_mounting(self, drains: bool) -> None:
        if drains:
            self._end(interrupted=True)

    def _mounted(self) -> None:
        if self.disk.report.phase == "mounting":
            self.disk.prepared = True
            if self.disk.spec and self.disk.spec["setup"]:
                self._send_report(phase="setup")
                self._start_program("setup")
            else:
                self._send_report(phase="ready")
            self._advance()

    def _in_setup(self, drains: bool) -> None:
        if self.disk.setup is None:
            if drains and self.program is not None:
                self.program.stop(self._grace_s())
        elif self.disk.setup.code and not self.disk.setup.stopped:
            self._flush(exit_code=self.disk.setup.code, failed_stage="setup", message="setup failed")
        elif drains:
            self._flush(interrupted=True)
        else:
            self._send_report(phase="ready")
            self._advance()

    def _in_ready(self, drains: bool) -> None:
        if drains:
            self._flush(interrupted=True)
        elif self.disk.directive.reaches("run"):
            self._send_report(phase="running")
            self._start_program("run")

    def _in_running(self, drains: bool) -> None:
        program_exit = self.disk.run
        if program_exit is None:
            if drains and self.program is not None:
                self.program.stop(self._grace_s())
        elif program_exit.stopped:
            self._flush(exit_code=program_exit.code, interrupted=True)
        elif code := program_exit.code:
            self._flush(exit_code=code, failed_stage="run", message=f"run exited with code {code}")
        else:
            self._flush(exit_code=0)

    def _in_flushing(self, drains: bool) -> None:
        """Nothing interrupts a flush."""

    def _flush(self, **outcome: Any) -> None:
        self._send_report(phase="flushing")
        self._outcome = outcome
        self._schedule(self._flushed, self.rng.uniform(0.02, 1.5))

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
        self._send_report(phase="ended", **outcome)

    def _stop(self) -> None:
        """Kill the workload, send the rest of the log, and power the machine off."""
        self._kill_program()
        if self._stopping_incarnation != self._incarnation:
            self._stopping_incarnation = self._incarnation
            self._schedule_log_upload()
            self._schedule(self._power_off, self.rng.uniform(0.1, 2.0))

    def _power_off(self) -> None:
        self.agent_up = False
        if self.link is not None:
            self.link.disconnect()
        self.world.scheduler.after(self.rng.uniform(0.05, 1), self.world.power_off, self)

    # --- programs ------------------------------------------------------------------------------------------

    def _start_program(self, stage: str) -> None:
        assert self.disk.spec is not None
        plan = TaskPlan(**json.loads(self.disk.spec["run"]))
        progress = self.world.progress_of(self.key)
        if stage == "run":
            self.world.invariants.on_workload_started(self)
        self.program = Program(
            stage, plan, progress, self.key[2], self.rank,
            schedule=self._schedule_on_machine, output=self._on_output, save_checkpoint=self._save_checkpoint,
            on_exit=self._on_program_exit,
        )  # fmt: skip

    def _schedule_on_machine(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        """Schedule a call that is dropped if the machine ends first."""
        self.world.scheduler.after(seconds, self._run_if_on, do, args)

    def _run_if_on(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.is_on:
            do(*args)

    def _on_output(self, text: str) -> None:
        self.disk.log += f"[{self.name}] {text}".encode()
        if self.agent_up:
            self._schedule_log_upload()

    def _save_checkpoint(self, step: int) -> bool:
        """Save a step, and report it. Returns False if the disk is full."""
        if self.disk_full_until > self.world.scheduler.now():
            return False
        seq = len(self.disk.checkpoints) + 1
        note = {"seq": seq, "step": step, "state": "committed", "path": "/c", "at": self._clock.now()}
        self.disk.checkpoints.append({"type": "checkpoint", **note})
        if self.agent_up and self.link is not None and self.link.is_welcomed:
            self._send(self.disk.checkpoints[-1])
        return True

    def _on_program_exit(self, program_exit: ProgramExit) -> None:
        assert self.program is not None
        stage = self.program.stage
        setattr(self.disk, stage, program_exit)
        if stage == "run":
            self.world.invariants.on_workload_ended(self)
            if program_exit.code == 1:
                self.world.fail_peers_of(self)
        self._schedule(self._advance, 0.02)

    def _kill_program(self) -> None:
        if self.program is not None and self.program.is_alive:
            self.program.kill()
            if self.program.stage == "run":
                self.world.invariants.on_workload_ended(self)
