"""Waiting for a condition of a mount or a bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Value = TypeVar("Value")


class Until(Protocol):
    """Waits for the condition's first true value, and returns it."""

    def __call__(self, condition: Callable[[], Value | None], *, timeout_s: float = 10.0) -> Value: ...
