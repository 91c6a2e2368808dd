"""The daemon's own use of its computer, from /proc: the names are those that every exporter uses."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.controller.runtime.metrics.metric_registry import MetricRegistry

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def register_process_stats(registry: MetricRegistry, home: Path) -> None:
    """Add `process_*` and the free space of PERDURE_HOME, which are read at each scrape."""
    cpu = registry.counter("process_cpu_seconds", "CPU time of the daemon.")
    memory = registry.gauge("process_resident_memory_bytes", "Resident memory of the daemon.")
    files = registry.gauge("process_open_fds", "Open file descriptors of the daemon.")
    free = registry.gauge("perdure_home_free_bytes", "Free space on the disk of PERDURE_HOME.")
    size = registry.gauge("perdure_home_size_bytes", "Size of the disk of PERDURE_HOME.")
    dropped = registry.counter("perdure_series_dropped", "Values counted under other labels: too many label sets.")
    last = {"cpu": 0.0, "dropped": 0}

    def collect() -> None:
        times = os.times()
        used = times.user + times.system
        cpu.inc(by=used - last["cpu"])
        dropped.inc(by=registry.dropped - last["dropped"])
        last.update(cpu=used, dropped=registry.dropped)
        memory.set(int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
        files.set(len(os.listdir("/proc/self/fd")))
        disk = os.statvfs(home)
        free.set(disk.f_bavail * disk.f_frsize)
        size.set(disk.f_blocks * disk.f_frsize)

    registry.on_scrape(collect)
