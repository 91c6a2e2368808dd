"""The user's program on one node, and the bucket it saves to. It knows nothing of controllers and agents."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from faultworld.scenario import TaskPlan


@dataclass
class Progress:
    """A task's bucket: what is saved there, and what has truly happened to the task.

    `commits`: (generation, step) in the order in which they were written.
    """

    step: int = 0
    commits: list[tuple[int, int]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)  # exit codes of planned failures
    finished: dict[int, set[int]] = field(default_factory=dict)  # generation → ranks whose `run` ended with 0
    flush_failures: int = 0


@dataclass(frozen=True)
class Ended:
    code: int
    stopped: bool = False


class Program:
    """One running stage ("setup" or "run") of one node. `after` calls back in seconds, as long as the machine lives."""

    def __init__(
        self,
        stage: str,
        plan: TaskPlan,
        progress: Progress,
        generation: int,
        rank: int,
        *,
        after: Callable[..., object],
        prints: Callable[[str], object],
        saved: Callable[[int], bool],
        ended: Callable[[Ended], object],
        rng: random.Random,
    ) -> None:
        self.stage, self._plan, self._progress = stage, plan, progress
        self._generation, self._rank = generation, rank
        self._after, self._prints, self._saved, self._ended, self._rng = after, prints, saved, ended, rng
        self.is_alive = True
        self.is_stopping = False
        self._step = progress.step
        if stage == "setup":
            after(plan.setup_s, self._set_up)
        elif self._step >= plan.steps:
            after(0.2, self._exit, Ended(0))
        else:
            prints(f"from step {self._step}\n")
            after(plan.step_s, self._next)

    def _set_up(self) -> None:
        if not self.is_alive or self.is_stopping:
            return
        self._prints("set up\n")
        self._exit(Ended(self._fail() if self._is_to_fail("setup") else 0))

    def _next(self) -> None:
        if not self.is_alive or self.is_stopping:
            return
        self._step += 1
        self._prints(f"step {self._step}\n")
        if self._step == max(1, self._plan.steps // 2) and self._is_to_fail("run"):
            self._exit(Ended(self._fail()))
            return
        self._save()
        if self._step >= self._plan.steps:
            self._exit(Ended(0))
        else:
            self._after(self._plan.step_s, self._next)

    def _is_to_fail(self, stage: str) -> bool:
        return self._rank == 0 and self._plan.failing == stage and len(self._progress.failures) < self._plan.fails

    def _fail(self) -> int:
        self._progress.failures.append(self._plan.code)
        return self._plan.code

    def _save(self) -> None:
        if self._rank == 0 and self._step > self._progress.step and self._saved(self._step):
            self._progress.step = self._step
            self._progress.commits.append((self._generation, self._step))

    def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        if not self.is_alive or self.is_stopping:
            return
        self.is_stopping = True
        if self.stage == "run" and self._plan.handles_sigterm and self._plan.save_s <= grace_s:
            self._after(self._plan.save_s, self._save_and_exit)
        else:
            self._after(max(0.0, min(grace_s, 0.05)), self._exit, Ended(143, stopped=True))

    def _save_and_exit(self) -> None:
        if self.is_alive:
            self._step = min(self._step + 1, self._plan.steps)  # the step under way
            self._save()
            self._prints(f"saved at {self._step}\n")
            self._exit(Ended(143, stopped=True))

    def fail_with_peer(self) -> None:
        """Another rank is gone: collective calls break."""
        if self.is_alive and self.stage == "run" and not self.is_stopping:
            self._prints("a peer is gone\n")
            self._exit(Ended(1))

    def kill(self) -> None:
        """At once, from outside; nobody is told how it ended."""
        self.is_alive = False

    def _exit(self, how: Ended) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        if self.stage == "run" and how.code == 0:
            self._progress.finished.setdefault(self._generation, set()).add(self._rank)
        self._ended(how)
