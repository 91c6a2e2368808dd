"""How a node's part of a task ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from perdure.agent.workload.memory_limit import MemoryLimit
from perdure.agent.workload.stage import StageResult


@dataclass(frozen=True)
class Outcome:
    """How the node's part of the task ended; the fields go into the report."""

    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    message: str = ""


class NodeFailed(Exception):
    """The node cannot go on; `outcome` is what to report."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


def outcome_of(stage: str, result: StageResult, exceeded: MemoryLimit | None = None) -> Outcome:
    """The outcome of a node whose `stage` ended with `result`. `exceeded`: the limit for which the kernel killed."""
    if result.stopped:
        return Outcome(exit_code=result.exit_code, interrupted=True, message=result.message)
    if result.exit_code == 0:
        return Outcome(exit_code=0, message=result.message)
    message = result.message or _describe_exit(stage, result.exit_code)
    if exceeded is not None:
        message += f"; {exceeded.explanation()}"
    return Outcome(result.exit_code, failed_stage=stage, message=message)


def _describe_exit(stage: str, exit_code: int | None) -> str:
    if exit_code is not None and exit_code > 128:
        try:
            return f"{stage} exited with code {exit_code} (killed by {signal.Signals(exit_code - 128).name})"
        except ValueError:
            pass
    return f"{stage} exited with code {exit_code}"
