"""A node's mounts, and the processes behind them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.storage.buckets import Mountable
from perdure.agent.storage import fuse
from perdure.agent.storage.mounts import Mounts


@dataclass
class Node:
    """A node's directory for the mounts, state and processes of one test."""

    directory: Path
    rclone: Path
    lines: list[str] = field(default_factory=list)
    made: list[Mounts] = field(default_factory=list)
    buckets: dict[str, Mountable] = field(default_factory=dict)  # path → what was mounted there last

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def spec(self, bucket: Mountable, **changes: Any) -> dict[str, Any]:
        spec = {
            "path": str(self.directory / "checkpoint"),
            "mode": "MOUNT_CACHED",
            "bucket": bucket.name,
            "prefix": "",
            "read_only": False,
            "rclone": bucket.backend,
            "options": {},
        }
        spec |= changes
        self.buckets[str(spec["path"])] = bucket
        return spec

    def mounts(self, *specs: dict[str, Any], with_rclone: bool = True) -> Mounts:
        made = Mounts(
            specs,
            state_dir=self.state_dir,
            rclone=self.rclone if with_rclone else None,
            log=self.lines.append,
            renew=lambda path: self.buckets[path].backend,
        )
        self.made.append(made)
        return made

    def pids(self) -> list[int]:
        """Processes that have this node's directory in their arguments."""
        steps = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if argv[1:2] == [b"mount"] and any(bytes(self.directory) in part for part in argv):
                    steps.append(int(name))
        return steps

    def mountpoints(self) -> list[str]:
        return [path for path in fuse.mounts_by_path() if path.startswith(str(self.directory))]
