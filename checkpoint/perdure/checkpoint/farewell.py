"""The save at a notice: whether it can be done in time, and whether it reached the bucket before the machine went.

How long a save takes is known from the saves before; how fast its mount uploads, from the uploads that were awaited.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perdure.checkpoint import durability, notice

logger = logging.getLogger("perdure.checkpoint")

# What the agent needs, after the program has ended, to tell the controller before the machine is gone.
MARGIN_S = 2.0


@dataclass
class Farewell:
    """`commit_s`: how long the last save took to its commit. `upload_bytes_per_s`: as last seen. Both None at first."""

    commit_s: float | None = None
    upload_bytes_per_s: float | None = None
    now: Callable[[], float] = time.time
    _said: set[str] = field(default_factory=set)

    def left_s(self) -> float | None:
        """Seconds until the machine is taken, less the margin; None where no notice names a time."""
        until = notice.deadline()
        return None if until is None else until - self.now() - MARGIN_S

    def can_commit(self) -> bool:
        """Whether a save that begins now can be committed before the machine is taken, as far as can be told."""
        left = self.left_s()
        if left is None or self.commit_s is None or self.commit_s <= left:
            return True
        self._say(
            f"not saving once more: a save takes {self.commit_s:.1f} s, and the machine is taken in {left:.1f} s. What "
            "was saved before is uploaded instead."
        )
        return False

    def hurry(self, root: str, step: int | None, paths: Sequence[str]) -> None:
        """As `upload`, where `root` lies on a bucket's mount."""
        if paths and durability.mount_of(root) is not None:
            self.upload(step, paths)

    def upload(self, step: int | None, paths: Sequence[str]) -> bool | None:
        """Have the checkpoint of `step` uploaded first, wait for it as long as there is time, and say how it ended."""
        size = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
        left = self.left_s()
        began = time.monotonic()
        if left is not None and self.upload_bytes_per_s and size / self.upload_bytes_per_s > left:
            self._say(
                f"step {step} has {size / 2**20:.0f} MiB, and at {self.upload_bytes_per_s / 2**20:.1f} MiB/s its "
                f"upload takes longer than the {left:.1f} s that are left: it may not reach the bucket"
            )
        durable = durability.wait_durable(paths, timeout_s=None if left is None else max(0.0, left))
        if durable:
            self.uploaded(size, time.monotonic() - began)
            logger.info("step %d is in the bucket%s", step, "" if left is None else f", {self.left_s():.1f} s to spare")
        elif durable is False:
            self._say(
                f"step {step} was saved, but was not in the bucket when the time was up; an older one will be loaded"
            )
        else:
            self._say(f"step {step} was saved; whether it has reached the bucket can not be told here")
        return durable

    def uploaded(self, size: int, seconds: float) -> None:
        """An upload of `size` bytes was awaited for so long; one that was over already says nothing."""
        if seconds > 0.05 and size:
            self.upload_bytes_per_s = size / seconds

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
