"""Whether the bucket has a file, and whether a directory that should be a mount is one.

Where files lie is known from the agent, which writes its mounts down in `$PERDURE_RUN_DIR/mounts.json`, else from the
kernel (`mount_table`): a disk and NFS have a file once it was flushed, rclone's mounts are asked as below, and of other
FUSE file systems it is not known.

On a mount with write-back (`MOUNT_CACHED`) close, fsync and rename say nothing about the bucket: rclone uploads later.
What it still has to upload it notes in its cache, one small JSON file per cached file (`vfsMeta`): `Dirty` turns false,
and `Fingerprint` is filled, only after the upload was checked. A file that was never dirty, or was evicted after its
upload, has none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.checkpoint import mount_table
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.notice import run_dir
from perdure.checkpoint.rc import Rc, RcError

# The agent puts an empty read-only file system of this source under each mount: seen alone, the mount is lost.
GUARD = "perdure-guard"

_REREADS = 5  # rclone rewrites a note by truncating it first: half a note is no answer
_REREAD_AFTER_S = 0.002
_QUEUE_LOOKS, _QUEUE_LOOK_AFTER_S = 20, 0.01
_WAIT_FIRST_S, _WAIT_LAST_S = 0.01, 0.5


@dataclass(frozen=True)
class Mount:
    """A bucket's mount. `cache_dir` and `rc_socket` are None where writes are not cached. `is_known` False: what it
    does with a file that was closed is not known."""

    path: str
    mode: str
    cache_dir: str | None
    rc_socket: str | None = None
    is_known: bool = True


def mounts() -> tuple[Mount, ...]:
    """Every mount that the agent made on this node; none where no agent runs this process."""
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
            )
            for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointUnavailable(f"reading the node's list of mounts, {directory}/mounts.json: {error}") from error


def mount_of(path: str) -> Mount | None:
    """The bucket's mount that `path` lies on; None on a disk, and on what keeps a file as well as a disk does."""
    places = (os.path.abspath(path), os.path.realpath(path))
    holders = [mount for mount in mounts() if any(_is_within(place, mount) for place in places)]
    return max(holders, key=lambda mount: len(mount.path), default=None) or _other_mount_of(path)


def _other_mount_of(path: str) -> Mount | None:
    """As `mount_of`, of mounts that no agent made."""
    mounted = mount_table.holder_of(path)
    if mounted is None or mounted.stores:
        return None
    server = mount_table.server_of(mounted)
    if server is None:
        return Mount(mounted.path, mounted.kind, None, is_known=False)
    return Mount(mounted.path, mounted.kind, server.cache_dir, server.rc_socket)


def require_mounted(path: str) -> None:
    """Raise CheckpointUnavailable when `path` belongs on a mount and the mount is not there.

    Without this check a save would go to the machine's own disk and vanish with it, and a load would find nothing.
    """
    mount = mount_of(path)
    if mount is None:
        return
    is_linked = os.path.islink(mount.path)  # a bucket that is a directory of this machine
    is_there = os.path.isdir(mount.path) if is_linked else mount_table.source_at(mount.path) not in (None, GUARD)
    if not is_there:
        raise CheckpointUnavailable(
            f"{mount.path} should be the mount ({mount.mode}) of a bucket, but nothing is mounted there: what is saved "
            "there can not be seen, and what would be written there would be lost with this machine. Mount it again."
        )


def is_durable(paths: Iterable[str]) -> bool | None:
    """Whether all files are where they outlive this process (the bucket, on a mount): True, not yet, or None: unknown.

    Off the mounts a file is durable once it exists: a save flushes its files to the disk before it commits them.
    """
    notes: dict[str, _Notes] = {}
    answers: set[bool | None] = set()
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in notes:
            notes[folder] = _notes_of(folder)
        answers.add(notes[folder].says(name) if os.path.exists(path) else False)
    if False in answers:
        return False
    return None if None in answers else True


def wait_durable(paths: Iterable[str], *, timeout_s: float | None) -> bool | None:
    """Wait until `is_durable` has an answer other than "not yet", at most `timeout_s` (None: as long as it takes).

    Their mount is asked to upload them now, before everything else that waits there.
    """
    wanted = list(paths)
    upload_now(wanted)
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _WAIT_FIRST_S
    while True:
        answer = is_durable(wanted)
        if answer is not False or not all(map(os.path.exists, wanted)):
            return answer
        left_s = float("inf") if ends_at is None else ends_at - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(_WAIT_LAST_S, pause_s * 1.5)


def upload_now(paths: Sequence[str]) -> None:
    """Ask the mount that `paths` lie on to upload them before anything else, in this order. Best effort.

    A file that was only just closed may not be in rclone's queue yet (the kernel tells it a moment later): those are
    looked for again for a short while.
    """
    mount = mount_of(paths[0]) if paths else None
    if mount is None or mount.rc_socket is None:
        return
    top = os.path.realpath(mount.path)
    wanted = {os.path.relpath(os.path.realpath(path), top): rank for rank, path in enumerate(paths)}
    control = Rc(mount.rc_socket)
    for _ in range(_QUEUE_LOOKS):
        try:
            queue = control.call("vfs/queue").get("queue") or []
            for item in [item for item in queue if item["name"] in wanted and not item["uploading"]]:
                # The smallest expiry goes first; one that has passed goes at once.
                control.call("vfs/queue-set-expiry", id=item["id"], expiry=-1e9 + wanted[item["name"]])
        except (RcError, KeyError, TypeError):
            return
        wanted = {name: rank for name, rank in wanted.items() if name not in {item["name"] for item in queue}}
        if not wanted or is_durable(os.path.join(top, name) for name in wanted) is not False:
            return
        time.sleep(_QUEUE_LOOK_AFTER_S)


def where_to_read(path: str) -> str:
    """`path`, or rclone's own copy of it while it is not uploaded: reading that through the mount would postpone it."""
    folder, name = os.path.split(path)
    notes = _notes_of(folder)
    if notes.root is None:
        return path
    copy = os.path.join(notes.copies, notes.folder, name)
    try:
        with open(os.path.join(notes.root, notes.folder, name), encoding="utf-8") as file:
            note = json.load(file)
        size = os.stat(path).st_size
        is_whole = note["Dirty"] and note["Rs"] == [{"Pos": 0, "Size": size}] and os.stat(copy).st_size == size
    except (OSError, ValueError, KeyError, TypeError):
        return path
    return copy if is_whole and os.access(copy, os.R_OK) else path


@dataclass(frozen=True)
class _Notes:
    """rclone's notes on the files of one folder. `root` None: they can not be found; `cached` False: there are none.
    `copies`: where its copies of the files lie."""

    cached: bool
    root: str | None = None
    folder: str = ""
    copies: str = ""

    def says(self, name: str) -> bool | None:
        if not self.cached:
            return True
        if self.root is None or not os.path.isdir(self.root):
            return None
        return _is_uploaded(os.path.join(self.root, self.folder, name))


def _notes_of(folder: str) -> _Notes:
    mount = mount_of(folder)
    if mount is None or mount.cache_dir is None:
        return _Notes(cached=mount is not None and not mount.is_known)
    source = mount_table.source_at(mount.path) or ""
    colon = source.find(":", 1)  # the name of an unnamed remote begins with a colon: `:s3{4vgl3}:bucket/folder`
    if colon < 0:
        return _Notes(cached=True)
    remote = os.path.join(source[:colon], source[colon + 1 :].strip("/"))
    root, copies = (os.path.join(mount.cache_dir, kind, remote) for kind in ("vfsMeta", "vfs"))
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(mount.path))
    return _Notes(cached=True, root=root, folder=below, copies=copies)


def _is_uploaded(note: str) -> bool | None:
    for _ in range(_REREADS):
        try:
            with open(note, encoding="utf-8") as file:
                state = json.load(file)
            return state["Dirty"] is False and bool(state["Fingerprint"])
        except FileNotFoundError:
            return True
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):
            time.sleep(_REREAD_AFTER_S)
    return False


def _is_within(path: str, mount: Mount) -> bool:
    return any(
        path == top or path.startswith(top.rstrip("/") + "/") for top in (mount.path, os.path.realpath(mount.path))
    )
