"""The bucket mounts of this node: which of them a path lies on, and whether it is really mounted.

The agent writes its mounts to `$PERDURE_RUN_DIR/mounts.json`. Mounts that no agent made are taken from the kernel's
table (`mount_table`). Whether a bucket has a file is the subject of `status`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from perdure.checkpoint.durability import mount_table
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.preemption import run_dir

# The agent puts an empty read-only file system with this source under each mount. If it is visible, the mount is lost.
GUARD = "perdure-guard"


@dataclass(frozen=True)
class Mount:
    """The mount of a bucket."""

    path: str
    mode: str
    cache_dir: str | None  # rclone's cache; None if writes are not cached
    rc_socket: str | None = None  # rclone's remote control; None if there is none
    is_known: bool = True  # False: it is not known when a closed file reaches the bucket
    #: The bucket of an ordinary folder that the agent uploads, as a mount of it would name it; None for a mount.
    source: str | None = None


class MountSnapshot:
    """The mounts of this node at one moment. Both sources are read once, when it is made.

    Raises CheckpointUnavailable when the agent's list cannot be read.
    """

    def __init__(self) -> None:
        self._agent_mounts = _read_agent_mounts()
        self._entries = tuple(mount_table.entries())

    def find(self, path: str) -> Mount | None:
        """The bucket mount that `path` lies on; None on a disk, and on any file system as durable as a disk."""
        locations = (os.path.abspath(path), os.path.realpath(path))
        holders = [mount for mount in self._agent_mounts if any(_is_within(location, mount) for location in locations)]
        return max(holders, key=lambda mount: len(mount.path), default=None) or self._find_other(path)

    def source_at(self, path: str) -> str | None:
        """What is mounted exactly at `path`, or None."""
        return mount_table.source_at(path, self._entries)

    def require_mounted(self, path: str) -> None:
        """Raise CheckpointUnavailable when `path` belongs on a mount and the mount is not there.

        Without this check a save would go to the machine's own disk and vanish with it, and a load would find nothing.
        """
        mount = self.find(path)
        if mount is None:
            return
        is_folder = mount.source is not None or os.path.islink(mount.path)  # a link: a bucket of this machine
        is_there = os.path.isdir(mount.path) if is_folder else self.source_at(mount.path) not in (None, GUARD)
        if not is_there:
            raise CheckpointUnavailable(
                f"{mount.path} should be the mount ({mount.mode}) of a bucket, but nothing is mounted there. Files "
                "saved there cannot be seen, and files written there would be lost with this machine. Mount it again."
            )

    def _find_other(self, path: str) -> Mount | None:
        """As `find`, among the mounts that no agent made."""
        entry = mount_table.find_mount_entry(path, self._entries)
        if entry is None or entry.is_write_through:
            return None
        server = mount_table.find_server(entry)
        if server is None:
            return Mount(entry.path, entry.kind, None, is_known=False)
        return Mount(entry.path, entry.kind, server.cache_dir, server.rc_socket)


def find_mount(path: str) -> Mount | None:
    """As `MountSnapshot.find`, as of now."""
    return MountSnapshot().find(path)


def require_mounted(path: str) -> None:
    """As `MountSnapshot.require_mounted`, as of now."""
    MountSnapshot().require_mounted(path)


def _read_agent_mounts() -> tuple[Mount, ...]:
    """Every mount that the agent made on this node; empty if no agent runs this process."""
    directory = run_dir()
    if directory is None:
        return ()
    try:
        with open(os.path.join(directory, "mounts.json"), encoding="utf-8") as file:
            rows = json.load(file)
        return tuple(
            Mount(
                os.path.abspath(os.path.expanduser(row["path"])),
                row.get("mode", ""),
                row.get("cache_dir"),
                row.get("rc_socket"),
                source=row.get("source"),
            )
            for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointUnavailable(f"reading the node's list of mounts, {directory}/mounts.json: {error}") from error


def _is_within(path: str, mount: Mount) -> bool:
    return any(
        path == top or path.startswith(top.rstrip("/") + "/") for top in (mount.path, os.path.realpath(mount.path))
    )
