"""Adds the number of seconds in the file $TEST_WALL_CLOCK to the wall clock of a Python process, from its start on.

Python imports this module by its name. The monotonic clocks stay those of the computer, as when a real one is set.
"""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any

_real_datetime, _real_time = datetime.datetime, time.time  # noqa: TID251


def _ahead_s() -> float:
    return float(Path(os.environ["TEST_WALL_CLOCK"]).read_text())


class _IsAnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_datetime)


class _SettableDatetime(_real_datetime, metaclass=_IsAnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(_real_time() + _ahead_s(), tz)


datetime.datetime = _SettableDatetime  # type: ignore[misc]
time.time = lambda: _real_time() + _ahead_s()  # noqa: TID251
