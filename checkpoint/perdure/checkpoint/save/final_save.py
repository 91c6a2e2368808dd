"""The save at a notice: whether there is time for it, and whether it reached the bucket before the machine was taken.

The duration of a save is measured on earlier saves, and the speed of the mount on the uploads that were awaited.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import mounts, status
from perdure.checkpoint.durability.file_version import Versions

logger = logging.getLogger("perdure.checkpoint")

# What the agent needs, after the program has ended, to report to the controller before the machine is gone.
MARGIN_S = 2.0


@dataclass
class FinalSave:
    """Decides and supervises the save at a notice."""

    commit_s: float | None = None  # from the call of the last save to its commit; None before the first
    upload_bytes_per_s: float | None = None  # of the last upload that was awaited
    now: Callable[[], float] = time.time
    _warned: set[str] = field(default_factory=set)

    def remaining_s(self) -> float | None:
        """Seconds until the machine is taken, less the margin; None without a deadline."""
        deadline = preemption.deadline()
        return None if deadline is None else deadline - self.now() - MARGIN_S

    def can_commit(self) -> bool:
        """Whether a save that begins now is expected to be committed before the machine is taken."""
        remaining_s = self.remaining_s()
        if remaining_s is None or self.commit_s is None or self.commit_s <= remaining_s:
            return True
        self._warn_once(
            f"not saving once more: a save takes {self.commit_s:.1f} s, and the machine is taken in "
            f"{remaining_s:.1f} s. The last checkpoint is uploaded instead."
        )
        return False

    def upload_if_mounted(self, root: str, step: int | None, paths: Versions) -> None:
        """As `upload`, if `root` lies on a bucket's mount."""
        if paths and mounts.find_mount(root) is not None:
            self.upload(step, paths)

    def upload(self, step: int | None, paths: Versions) -> bool | None:
        """Have the checkpoint of `step` uploaded before other files, wait as long as time permits, and log the result.

        It waits for what this machine wrote. True: the bucket has all of `paths`. False: not in time. None: not known,
        for example because another machine has not uploaded its part.
        """
        size = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
        remaining_s = self.remaining_s()
        began = time.monotonic()
        if remaining_s is not None and self.upload_bytes_per_s and size / self.upload_bytes_per_s > remaining_s:
            self._warn_once(
                f"step {step} has {size / 2**20:.0f} MiB, and at {self.upload_bytes_per_s / 2**20:.1f} MiB/s its "
                f"upload takes longer than the remaining {remaining_s:.1f} s: it may not reach the bucket"
            )
        durable = status.wait_durable(list(paths), timeout_s=None if remaining_s is None else max(0.0, remaining_s))
        if durable and isinstance(paths, Mapping):
            durable = status.is_durable(paths) or None
        if durable:
            self.record_upload(size, time.monotonic() - began)
            logger.info(
                "step %d is in the bucket%s",
                step,
                "" if remaining_s is None else f", {self.remaining_s():.1f} s to spare",
            )
        elif durable is False:
            self._warn_once(f"step {step} was saved, but did not reach the bucket in time; an older one will be loaded")
        else:
            self._warn_once(f"step {step} was saved; it is not known whether it has reached the bucket")
        return durable

    def record_upload(self, size: int, seconds: float) -> None:
        """Measure the speed by an upload of `size` bytes that was awaited. One that had already ended is ignored."""
        if seconds > 0.05 and size:
            self.upload_bytes_per_s = size / seconds

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)
