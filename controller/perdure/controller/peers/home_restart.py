"""A restart on the same home: releases the lease of the daemon that used it before, so that nobody waits for its end.

Jobs of controllers elsewhere: see `ownership`.

A daemon that holds the lock of the home knows that the previous daemon is dead, if that daemon held the same lock file
since this computer started. A home that was copied, or that another computer also mounts, proves nothing.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from perdure.controller.peers.lease import Lease

_NAME, _LOCK = "lease.json", "controller.lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def take_over_home(home: Path, lease: Lease, endpoint: str) -> None:
    """Start `lease`, and release that of the previous daemon of `home`, which this process has locked.

    Raises what the database raises.
    """
    lock = _lock_of(home)
    lease.start(endpoint, previous_owner=_previous_owner(home, lock))
    if lock is not None:
        with contextlib.suppress(OSError):  # then the next daemon waits for the lease to expire
            (home / _NAME).write_text(json.dumps({"owner": lease.owner, "lock": lock}))


def _previous_owner(home: Path, lock: list[Any] | None) -> str | None:
    """The owner of the lease that was held under this lock; None if unknown."""
    try:
        record = json.loads((home / _NAME).read_text())
        return str(record["owner"]) if lock is not None and record["lock"] == lock else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lock_of(home: Path) -> list[Any] | None:
    """The identity of the lock: the boot id of the computer, the device and the inode."""
    try:
        status = (home / _LOCK).stat()
        return [_BOOT.read_text().strip(), status.st_dev, status.st_ino]
    except OSError:
        return None
