"""Another time for one module. `time` itself is everybody's: threads of other tests sleep by it, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace_time(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Let `module`, which has imported `time`, call these instead of the functions of `time` with their names."""
    assert module.__dict__["time"] is time or isinstance(module.__dict__["time"], SimpleNamespace)
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(module.__dict__["time"]), **functions}))
