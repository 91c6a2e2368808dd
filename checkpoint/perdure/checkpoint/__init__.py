"""Checkpoints that survive preemption: what training code imports.

    from perdure.checkpoint import load_checkpoint, save_checkpoint

Standard library only, Python 3.9 and newer; no framework is ever imported here. Names are loaded when they are first
asked for, so that importing this costs a program next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself would be most of this import's time
if TYPE_CHECKING:
    from typing import Any

    from perdure.checkpoint.checkpointer import Checkpointer
    from perdure.checkpoint.decorators import load_checkpoint, save_checkpoint
    from perdure.checkpoint.durability import is_durable
    from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
    from perdure.checkpoint.keep import Keep
    from perdure.checkpoint.listing import StepInfo, latest, steps
    from perdure.checkpoint.loading import LoadResult
    from perdure.checkpoint.notice import deadline, on_notice, preempted
    from perdure.checkpoint.resume import Resumable, random_state, set_random_state

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
    "is_durable",
    "latest",
    "load_checkpoint",
    "on_notice",
    "preempted",
    "random_state",
    "save_checkpoint",
    "set_random_state",
    "steps",
]

_MODULES = {
    "CheckpointError": "errors",
    "CheckpointUnavailable": "errors",
    "Checkpointer": "checkpointer",
    "Keep": "keep",
    "LoadResult": "loading",
    "NoUsableCheckpoint": "errors",
    "Resumable": "resume",
    "StepInfo": "listing",
    "deadline": "notice",
    "is_durable": "durability",
    "latest": "listing",
    "load_checkpoint": "decorators",
    "on_notice": "notice",
    "preempted": "notice",
    "random_state": "resume",
    "save_checkpoint": "decorators",
    "set_random_state": "resume",
    "steps": "listing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
