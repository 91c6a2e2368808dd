"""The commands that a task runs when its machine goes away: `config.hooks` of the YAML.

Each hook runs at most once on a node, also if the agent restarts. A hook that fails or takes too long is logged, and
changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perdure.agent import clock
from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.node_spec import Hook
from perdure.agent.state_file import Directive
from perdure.agent.workload.stage import Stage

PREEMPTION, DOWN = "preemption", "down"
KILL_AFTER_S = 0.5  # from SIGTERM to SIGKILL, for a hook whose time is over
# Reasons of a drain after which the task does not go on elsewhere. All others take a machine from a task that goes on.
_ENDS = (
    *("USER_CANCELLED", "EARLIER_TASK_ENDED", "RUN_FAILED", "SETUP_FAILED", "FLUSH_FAILED"),
    *("STORAGE_FAILED", "PRECHECKS_FAILED", "CONTROLLER_ERROR"),
)


def event_of_drain(directive: Directive, *, has_notice: bool) -> str:
    """The event of the hooks that a drain stands for."""
    return DOWN if directive.reason in _ENDS and not has_notice else PREEMPTION


class HookRunner:
    """Runs the hooks of a node, one after another."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        desired: DesiredState,
        *,
        make_stage: Callable[[str], Stage],
        log: Callable[[str], None],
    ) -> None:
        """`log`: writes a line to the job's log."""
        self._hooks = [(hook, make_stage(f"hook-{number}")) for number, hook in enumerate(hooks, start=1)]
        self._desired = desired
        self._log = log
        self.stages = tuple(stage for _, stage in self._hooks)

    def run(self, event: str, *, env: Mapping[str, str], cwd: Path, stop_at: Callable[[], float | None]) -> None:
        """Run the hooks of `event` that have not run yet. `stop_at`: when all must have ended (time of `clock`).

        Raises StopNow.
        """
        for hook, stage in self._hooks:
            if event not in hook.events or stage.result() is not None:
                continue
            limit = stop_at()
            if limit is not None and clock.now() >= limit:
                self._log(f"{stage.name} ({event}) was not run: no time was left")
                continue
            self._log(f"running {stage.name} ({event})")
            if problem := self._run_one(hook, stage, env=env, cwd=cwd, stop_at=stop_at):
                self._log(f"{stage.name} ({event}) {problem}")

    def _run_one(
        self, hook: Hook, stage: Stage, *, env: Mapping[str, str], cwd: Path, stop_at: Callable[[], float | None]
    ) -> str:
        """Run a hook to its end. Returns what went wrong, or an empty string."""
        try:
            stage.start(hook.run, env=env, cwd=cwd)
        except OSError as error:
            return f"cannot be started: {error}"
        times_out_at = clock.now() + hook.timeout_s

        def is_overdue() -> bool:
            limit = stop_at()
            return clock.now() >= (times_out_at if limit is None else min(times_out_at, limit))

        self._desired.wait_for(lambda: not stage.is_alive() or is_overdue(), drainable=False)
        if stage.is_alive():
            try:
                stage.stop(kill_at=clock.now() + KILL_AFTER_S)
            except OSError:  # the disk is full
                stage.kill()
            self._desired.wait_for(lambda: not stage.is_alive(), drainable=False)
            return "was stopped: its time was over"
        result = stage.result()
        if result is None or result.exit_code == 0:
            return ""
        return result.message or f"exited with code {result.exit_code}"
