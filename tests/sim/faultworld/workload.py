"""The user's program on one node, and the bucket to which it saves checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from faultworld.scenario import TaskPlan


@dataclass
class Progress:
    """The bucket of a task, and what its workloads really did."""

    step: int = 0  # the newest that is saved
    commits: list[tuple[int, int]] = field(default_factory=list)  # (generation, step), in order
    failures: list[int] = field(default_factory=list)  # exit codes of planned failures
    finished: dict[int, set[int]] = field(default_factory=dict)  # generation → ranks whose `run` ended with 0
    flush_failures: int = 0  # how often a full disk failed the last upload


@dataclass(frozen=True)
class ProgramExit:
    """How a stage ended."""

    code: int
    stopped: bool = False  # by SIGTERM


class Program:
    """One running stage on one node.

    `stage` is "setup" or "run". `schedule(seconds, call, *args)` makes a call later, unless the machine ends first.
    `output` prints text, `save_checkpoint` saves a step or returns False, and `on_exit` is called at the end.
    """

    def __init__(
        self,
        stage: str,
        plan: TaskPlan,
        progress: Progress,
        generation: int,
        rank: int,
        *,
        schedule: Callable[..., object],
        output: Callable[[str], object],
        save_checkpoint: Callable[[int], bool],
        on_exit: Callable[[ProgramExit], object],
    ) -> None:
        self.stage, self._plan, self._progress = stage, plan, progress
        self._generation, self._rank = generation, rank
        self._schedule, self._output = schedule, output
        self._save_checkpoint, self._on_exit = save_checkpoint, on_exit
        self.is_alive = True
        self.is_stopping = False
        self._step = progress.step
        if stage == "setup":
            schedule(plan.setup_s, self._set_up)
        elif self._step >= plan.steps:
            schedule(0.2, self._exit, ProgramExit(0))
        else:
            output(f"from step {self._step}\n")
            schedule(plan.step_s, self._run_step)

    def _set_up(self) -> None:
        if not self.is_alive or self.is_stopping:
            return
        self._output("set up\n")
        self._exit(ProgramExit(self._fail() if self._must_fail("setup") else 0))

    def _run_step(self) -> None:
        if not self.is_alive or self.is_stopping:
            return
        self._step += 1
        self._output(f"step {self._step}\n")
        if self._step == max(1, self._plan.steps // 2) and self._must_fail("run"):
            self._exit(ProgramExit(self._fail()))
            return
        self._save()
        if self._step >= self._plan.steps:
            self._exit(ProgramExit(0))
        else:
            self._schedule(self._plan.step_s, self._run_step)

    def _must_fail(self, stage: str) -> bool:
        is_planned = self._plan.failing_stage == stage and len(self._progress.failures) < self._plan.failures
        return self._rank == 0 and is_planned

    def _fail(self) -> int:
        self._progress.failures.append(self._plan.exit_code)
        return self._plan.exit_code

    def _save(self) -> None:
        if self._rank == 0 and self._step > self._progress.step and self._save_checkpoint(self._step):
            self._progress.step = self._step
            self._progress.commits.append((self._generation, self._step))

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        if not self.is_alive or self.is_stopping:
            return
        self.is_stopping = True
        if self.stage == "run" and self._plan.handles_sigterm and self._plan.save_s <= grace_s:
            self._schedule(self._plan.save_s, self._save_and_exit)
        else:
            self._schedule(max(0.0, min(grace_s, 0.05)), self._exit, ProgramExit(143, stopped=True))

    def _save_and_exit(self) -> None:
        if self.is_alive:
            self._step = min(self._step + 1, self._plan.steps)  # saves the step that was under way
            self._save()
            self._output(f"saved at {self._step}\n")
            self._exit(ProgramExit(143, stopped=True))

    def fail_with_peer(self) -> None:
        """Fail, because collective calls fail without the other rank."""
        if self.is_alive and self.stage == "run" and not self.is_stopping:
            self._output("a peer is gone\n")
            self._exit(ProgramExit(1))

    def kill(self) -> None:
        """End at once, without an exit code."""
        self.is_alive = False

    def _exit(self, program_exit: ProgramExit) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        if self.stage == "run" and program_exit.code == 0:
            self._progress.finished.setdefault(self._generation, set()).add(self._rank)
        self._on_exit(program_exit)
