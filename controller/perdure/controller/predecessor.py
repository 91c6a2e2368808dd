"""The daemon that had this home before: who holds the home's lock knows that it is dead, and waits for no lease of it.

That is so only for the very same lock, since this computer started: of a copied home, or one on a volume that another
computer has too, the daemon that left its name may well live.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from perdure.controller.leases import Lease

_NAME, _LOCK = "lease.json", "controller.lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def succeed(home: Path, lease: Lease, endpoint: str) -> None:
    """Begin `lease`, and give back that of the daemon before. `home`: locked by this process. Raises what the database
    raises."""
    lock = _lock_of(home)
    lease.begin(endpoint, predecessor=_dead(home, lock))
    if lock is not None:
        with contextlib.suppress(OSError):  # without it the next one waits
            (home / _NAME).write_text(json.dumps({"owner": lease.owner, "lock": lock}))


def _dead(home: Path, lock: list[Any] | None) -> str | None:
    """Whose lease was held under this lock; None where that can not be told."""
    try:
        left = json.loads((home / _NAME).read_text())
        return str(left["owner"]) if lock is not None and left["lock"] == lock else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lock_of(home: Path) -> list[Any] | None:
    """What tells this lock from all others: the computer's start, the device and the file."""
    try:
        found = (home / _LOCK).stat()
        return [_BOOT.read_text().strip(), found.st_dev, found.st_ino]
    except OSError:
        return None
