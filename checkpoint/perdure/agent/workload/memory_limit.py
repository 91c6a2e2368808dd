"""The memory limit of the container that the agent runs in, and whether the kernel has ended processes for it.

Docs: docs.kernel.org/admin-guide/cgroup-v2 (memory.events, memory.max, memory.peak), and cgroup-v1/memory.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_V2 = {"events": "memory.events", "limit": "memory.max", "peak": "memory.peak"}
_V1 = {"events": "memory.oom_control", "limit": "memory.limit_in_bytes", "peak": "memory.max_usage_in_bytes"}
_UNLIMITED = 1 << 62


class MemoryLimit:
    """`root`: where control groups are mounted. On a machine that is no container, nothing may be known."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        is_v1 = (root / "memory" / _V1["events"]).exists()
        self._folder, self._names = (root / "memory", _V1) if is_v1 else (root, _V2)

    def kills(self) -> int:
        """How many processes the kernel has killed for the limit; 0 if that is not known."""
        with suppress(OSError, ValueError, IndexError):
            lines = (self._folder / self._names["events"]).read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.split()[0] == "oom_kill")
        return 0

    def explanation(self) -> str:
        """What a user should know of a process that was killed for memory."""
        limit, peak = self._bytes("limit"), self._bytes("peak")
        amounts = [f"its limit is {_gib(limit)}"] if limit else []
        amounts += [f"its peak was {_gib(peak)}"] if peak else []
        return f"it ran out of memory ({', '.join(amounts) or 'OOM'}): request more `memory`"

    def _bytes(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            amount = int((self._folder / self._names[name]).read_text())
            return amount if amount < _UNLIMITED else None
        return None


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB"
