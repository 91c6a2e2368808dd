"""The use of processors, memory, disk and network, from /proc. One reading takes a fraction of a millisecond."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcStats:
    """Reads the whole machine's counters. `proc`: where they are; `folder`: whose disk counts."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._proc = proc
        self._last: tuple[float, float, int, int] | None = None

    def read_usage(self) -> dict[str, float]:
        """The fields of the frame `usage`. Rates are those since the last call, 0 in the first one. Raises OSError or
        ValueError where /proc is not as Linux writes it."""
        now, busy_s = time.monotonic(), self._busy_s()
        received, sent = self._network()
        last, self._last = self._last, (now, busy_s, received, sent)
        elapsed_s = max(1e-3, now - last[0]) if last else 1.0
        memory = self._memory()
        disk = os.statvfs(str(self._folder))
        return {
            "cpus": float(os.cpu_count() or 1),
            "cpu_used": max(0.0, busy_s - last[1]) / elapsed_s if last else 0.0,
            "memory_total": memory["MemTotal"],
            "memory_used": max(0.0, memory["MemTotal"] - memory["MemAvailable"]),
            "disk_total": float(disk.f_blocks * disk.f_frsize),
            "disk_used": float((disk.f_blocks - disk.f_bfree) * disk.f_frsize),
            "received_per_s": max(0, received - last[2]) / elapsed_s if last else 0.0,
            "sent_per_s": max(0, sent - last[3]) / elapsed_s if last else 0.0,
        }

    def _busy_s(self) -> float:
        """CPU time of all processors that was not idle."""
        fields = [int(word) for word in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]]
        return (sum(fields[:8]) - fields[3] - fields[4]) / _TICKS_PER_S

    def _memory(self) -> dict[str, float]:
        """Bytes, by the names of /proc/meminfo."""
        lines = (self._proc / "meminfo").read_text().splitlines()
        return {line.split(":")[0]: float(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}

    def _network(self) -> tuple[int, int]:
        """Bytes received and sent by all interfaces but loopback."""
        received = sent = 0
        for line in (self._proc / "net" / "dev").read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            fields = counters.split()
            if name.strip() != "lo" and len(fields) >= 9:
                received += int(fields[0])
                sent += int(fields[8])
        return received, sent
