"""Checkpoints that survive preemption: what training code imports.

    from holdfast.checkpoint import load_checkpoint, save_checkpoint

Standard library only, Python 3.9 and newer; no framework is ever imported here. Names are loaded when they are first
asked for, so that importing this costs a program next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer import Checkpointer
    from holdfast.checkpoint.checkpoints import StepInfo, latest, steps
    from holdfast.checkpoint.decorators import load_checkpoint, save_checkpoint
    from holdfast.checkpoint.durability import is_durable
    from holdfast.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
    from holdfast.checkpoint.keep import Keep
    from holdfast.checkpoint.loading import LoadResult
    from holdfast.checkpoint.notice import deadline, preempted

__all__ = [
    "CheckpointError",
    "CheckpointUnavailable",
    "Checkpointer",
    "Keep",
    "LoadResult",
    "NoUsableCheckpoint",
    "StepInfo",
    "deadline",
    "is_durable",
    "latest",
    "load_checkpoint",
    "preempted",
    "save_checkpoint",
    "steps",
]

_MODULES = {
    "CheckpointError": "errors",
    "CheckpointUnavailable": "errors",
    "Checkpointer": "checkpointer",
    "Keep": "keep",
    "LoadResult": "loading",
    "NoUsableCheckpoint": "errors",
    "StepInfo": "checkpoints",
    "deadline": "notice",
    "is_durable": "durability",
    "latest": "checkpoints",
    "load_checkpoint": "decorators",
    "preempted": "notice",
    "save_checkpoint": "decorators",
    "steps": "checkpoints",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
