"""Checkpoints that survive preemption: what training code imports.

    from perdure.checkpoint import load_checkpoint, save_checkpoint

Standard library only, Python 3.9 and newer; no framework is ever imported here. Names are loaded at their first use, so
that the import takes only a few milliseconds.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers assume True; importing `typing` would take most of this import's time
if TYPE_CHECKING:
    from typing import Any

    from perdure.checkpoint.checkpointer import Checkpointer
    from perdure.checkpoint.decorators import load_checkpoint, save_checkpoint
    from perdure.checkpoint.durability.status import is_durable
    from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
    from perdure.checkpoint.load.function_load import LoadResult
    from perdure.checkpoint.load.listing import StepInfo, latest, steps
    from perdure.checkpoint.preemption import deadline, exit_preempted, on_notice, preempted
    from perdure.checkpoint.progress import report_progress
    from perdure.checkpoint.save.retention.keep_rule import Keep
    from perdure.checkpoint.state.resume import Resumable, random_state, set_random_state

__all__ = [
    "CheckpointError",
    "CheckpointUnavailable",
    "Checkpointer",
    "Keep",
    "LoadResult",
    "NoUsableCheckpoint",
    "Resumable",
    "StepInfo",
    "deadline",
    "exit_preempted",
    "is_durable",
    "latest",
    "load_checkpoint",
    "on_notice",
    "preempted",
    "random_state",
    "report_progress",
    "save_checkpoint",
    "set_random_state",
    "steps",
]

# Exported name → module that defines it.
_MODULES = {
    "CheckpointError": "errors",
    "CheckpointUnavailable": "errors",
    "Checkpointer": "checkpointer",
    "Keep": "save.retention.keep_rule",
    "LoadResult": "load.function_load",
    "NoUsableCheckpoint": "errors",
    "Resumable": "state.resume",
    "StepInfo": "load.listing",
    "deadline": "preemption",
    "exit_preempted": "preemption",
    "is_durable": "durability.status",
    "latest": "load.listing",
    "load_checkpoint": "decorators",
    "on_notice": "preemption",
    "preempted": "preemption",
    "random_state": "state.resume",
    "report_progress": "progress",
    "save_checkpoint": "decorators",
    "set_random_state": "state.resume",
    "steps": "load.listing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
