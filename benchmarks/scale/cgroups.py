"""Limits a process to a share of a core with a cgroup of either version, which needs root.

Controllers are compared on a machine with fewer cores than they could use, so each gets the same share. The comparison
then shows whether two do twice the work, not whether there were enough cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PERIOD_US = 20_000  # short, because a process that has used up its share is paused for the rest of the period
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def shared(name: str, cores: float) -> Iterator[Path | None]:
    """A cgroup whose processes together get no more than `cores`; None if none can be created."""
    group = _made(f"perdure-bench-{os.getpid()}-{name}", cores)
    try:
        yield group
    finally:
        if group is not None:
            with contextlib.suppress(OSError):
                group.rmdir()  # its processes have ended


def hold(group: Path, pid: int) -> None:
    """Move the process `pid`, with all its threads, into `group`."""
    (group / "cgroup.procs").write_text(str(pid))


def _made(name: str, cores: float) -> Path | None:
    quota_us = round(cores * _PERIOD_US)
    if (_V1 / "cpu.cfs_quota_us").exists():
        parent, limits = _V1, {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    else:
        parent, limits = _V2, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    group = parent / name
    try:
        if parent is _V2:
            (_V2 / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        for file, value in limits.items():
            (group / file).write_text(value)
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group
