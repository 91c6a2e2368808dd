"""Who waits for a lock of flock(2)."""

from __future__ import annotations

from pathlib import Path


def is_waited_for(path: Path) -> bool:
    """Whether a thread of any process waits for the lock of a file."""
    inode = path.stat().st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())
