"""The one place of the daemon that reads the wall clock. Everything else is handed a `Clock` or `now`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds (UTC)."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()


@dataclass
class ManualClock:
    """A clock that moves when told. For tests and simulation."""

    at: float = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds
