"""The buckets of a node spec's `mounts`, made to stand at their paths.

What a mode gives:

* `MOUNT_CACHED`: `rclone mount` with a full write-back cache. Writes are as fast as the local disk; `flush` brings them
  into the bucket. Any kind of file access works.
* `MOUNT`: `rclone mount` without a cache (`--vfs-cache-mode off`). Files are written from begin to end, once; close()
  returns when the object is in the bucket and fails when it is not, so there is never anything to flush. Appending,
  seeking while writing and opening for both reading and writing are refused.
* `COPY`: the bucket's content is copied to the path before the workload starts. One object is copied to a file.

A bucket of a local store can do without rclone and without FUSE: where either is missing, MOUNT and MOUNT_CACHED become
a symbolic link to the bucket's directory. A cloud's bucket can not: MountError says what to install.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from perdure.agent.flush import FlushError, flush
from perdure.agent.fuse import fuse_problem
from perdure.agent.fuse_mount import FuseMount, MountError, real_path, store_error, usable_target
from perdure.agent.rclone import Remote
from perdure.agent.tokens import Tokens, no_renewal

__all__ = ["FlushError", "MountError", "Mounts", "fuse_problem"]

MODES = ("COPY", "MOUNT", "MOUNT_CACHED")


class _Placed(Protocol):
    """A bucket at a path, in whatever way."""

    path: str
    mode: str
    state: str  # as reported, while it is not lost

    def up(self) -> None: ...
    def lost(self) -> bool: ...
    def pending(self) -> int: ...
    def down(self) -> None: ...


class Mounts:
    """All mounts of one node. `state_dir` outlives the agent: caches and control sockets lie there.

    `rclone`: the binary, or None where there is none (yet): the attribute may be set until `mount_all` is called. `log`
    takes lines for the job's log. `renew`: as `Tokens` has it, called from threads of its own. Methods are called from
    one thread at a time.
    """

    def __init__(
        self,
        specs: Sequence[Mapping[str, Any]],
        *,
        state_dir: Path,
        rclone: Path | None,
        log: Callable[[str], None],
        renew: Callable[[str], Mapping[str, Any]] = no_renewal,
    ) -> None:
        self.rclone = rclone
        self._tokens = Tokens(state_dir / "mounts", renew)
        self._specs = sorted(specs, key=lambda spec: str(spec["path"]))  # /a before /a/b
        self._state_dir = state_dir
        self._log = log
        self._fuse_problem = fuse_problem()
        self._placed: list[_Placed] = []

    @property
    def needs_rclone(self) -> bool:
        """Whether `mount_all` can make use of rclone."""
        return any(
            spec["rclone"]["type"] != "local" or (spec["mode"] != "COPY" and self._fuse_problem is None)
            for spec in self._specs
        )

    def mount_all(self) -> None:
        """Make every bucket stand at its path; those that stand already are kept, lost ones are mounted anew.

        Mounts that an earlier agent left on the same `state_dir` are adopted. Where rclone died, its cache is used
        again, so that what it had not uploaded is uploaded now. Raises MountError at the first that fails;
        `unmount_all` takes away what stands by then.
        """
        if not self._placed:
            self._placed = [self._place(spec) for spec in self._specs]
        for placed in self._placed:
            if placed.lost():
                placed.up()

    def _place(self, spec: Mapping[str, Any]) -> _Placed:
        spec = self._with_tokens(spec)
        remote = Remote.from_spec(spec)
        if spec["mode"] not in MODES:
            raise MountError(f"mounting at {spec['path']}: unknown mode {spec['mode']!r}: known are {', '.join(MODES)}")
        if spec["mode"] == "COPY":
            return _Copy(spec, remote, rclone=self.rclone)
        home = self._home_of(spec)
        if self.rclone is not None and self._fuse_problem is None:
            return FuseMount(spec, home=home, binary=self.rclone)
        why = self._fuse_problem or "there is no rclone on this node"
        if remote.bucket_dir is None:
            raise MountError(f"mounting bucket {remote.bucket} at {spec['path']}: {why}")
        return _Link(spec, remote, home=home, why=why, log=self._log)

    def _with_tokens(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        if "expires_at" not in spec["rclone"]:
            return spec
        return {**spec, "rclone": self._tokens.options(str(spec["path"]), spec["rclone"])}

    def _home_of(self, spec: Mapping[str, Any]) -> Path:
        remote = Remote.from_spec(spec)
        key = hashlib.sha256(f"{spec['path']}\0{remote.kind}\0{remote.target}".encode()).hexdigest()[:12]
        return self._state_dir.absolute() / "mounts" / key

    def flush(self, deadline: float | None = None) -> None:
        """Bring every cached write into its bucket, also those of a lost mount. Safe to repeat.

        `deadline`: time of `clock`, or None. Raises FlushError as `perdure.agent.flush.flush` says. To be called when
        no process of the workload is left: a file that is still open for writing is waited for.
        """
        flush([p for p in self._placed if isinstance(p, FuseMount) and p.is_cached], deadline=deadline, log=self._log)

    def unmount_all(self) -> None:
        """Leave no mount and no rclone, also none of an earlier agent. Does not flush.

        A cache that still holds dirty files stays on the disk.
        """
        for placed in reversed(self._placed or self._left_by_an_earlier_agent()):
            try:
                placed.down()
            except OSError as error:
                self._log(f"unmounting {placed.path}: {error}")
        self._placed = []
        self._tokens.close()

    def _left_by_an_earlier_agent(self) -> list[_Placed]:
        found: list[_Placed] = []
        for spec in self._specs:
            home = self._home_of(spec)
            if (home / "linked").exists():
                found.append(_Link(spec, Remote.from_spec(spec), home=home, why="", log=self._log))
            elif home.exists():
                found.append(FuseMount(spec, home=home, binary=self.rclone or Path("rclone")))
        return found

    def check(self) -> list[str]:
        """Paths where a bucket should stand and does not. Cheap: meant to be called every second after `mount_all`."""
        return [placed.path for placed in self._placed if placed.lost()]

    def snapshot(self) -> list[dict[str, Any]]:
        """The `mounts` of a report. `pending`: closed files that wait for their upload. Cheap, as `check` is."""
        return [
            {
                "path": placed.path,
                "mode": placed.mode,
                "state": "lost" if placed.lost() else placed.state,
                "pending": placed.pending(),
            }
            for placed in self._placed
        ]

    def describe(self) -> list[dict[str, Any]]:
        """The content of `mounts.json`: mounts and links, not copies.

        `cache_dir` and `rc_socket` are None where writes are not cached.
        """
        described = []
        for placed in self._placed:
            if placed.mode == "COPY":
                continue
            cached = placed if isinstance(placed, FuseMount) and placed.is_cached else None
            described.append(
                {
                    "path": placed.path,
                    "mode": placed.mode,
                    "cache_dir": str(cached.cache.directory) if cached else None,
                    "rc_socket": cached.rc.socket_path if cached else None,
                }
            )
        return described


class _Link:
    """A local store's bucket, reached by a symbolic link. Writes land in the bucket at once."""

    state = "linked"

    def __init__(
        self, spec: Mapping[str, Any], remote: Remote, *, home: Path, why: str, log: Callable[[str], None]
    ) -> None:
        self.path, self.mode = str(spec["path"]), str(spec["mode"])
        expanded = os.path.expanduser(self.path).rstrip("/")
        self._at = os.path.join(real_path(os.path.dirname(expanded)), os.path.basename(expanded))
        self._target = Path(remote.target)
        self._bucket = remote.bucket_dir or self._target
        self._mine = home / "linked"  # its existence says that the link is ours to remove
        self._why, self._log = why, log

    def up(self) -> None:
        if not self._bucket.is_dir():
            raise MountError(f"mounting at {self.path}: there is no bucket {self._bucket}: create it first")
        self._target.mkdir(parents=True, exist_ok=True)
        if os.path.islink(self._at):
            if os.readlink(self._at) != str(self._target):
                raise MountError(f"mounting at {self.path}: it is a link to {os.readlink(self._at)}: remove it")
            return
        usable_target(self._at, shown=self.path)
        self._mine.parent.mkdir(parents=True, exist_ok=True)
        self._mine.touch()
        os.rmdir(self._at)
        os.symlink(self._target, self._at)
        self._log(f"{self.path} is a link to {self._target}, not a mount: {self._why}")

    def lost(self) -> bool:
        with contextlib.suppress(OSError):
            return os.readlink(self._at) != str(self._target) or not self._target.is_dir()
        return True

    def pending(self) -> int:
        return 0

    def down(self) -> None:
        if self._mine.exists():
            if os.path.islink(self._at):
                os.unlink(self._at)
            shutil.rmtree(self._mine.parent, ignore_errors=True)


class _Copy:
    """A bucket's content, copied once."""

    state = "copied"

    def __init__(self, spec: Mapping[str, Any], remote: Remote, *, rclone: Path | None) -> None:
        self.path, self.mode = str(spec["path"]), "COPY"
        self._at = real_path(self.path)
        self._into = self.path.endswith("/")
        self._remote = remote
        self._rclone = rclone
        self._done = False

    def up(self) -> None:
        if self._remote.bucket_dir is not None:
            self._copy_directory()
        else:
            self._copy_by_rclone()
        self._done = True

    def _copy_directory(self) -> None:
        source = Path(self._remote.target)
        if Path(os.path.realpath(self._at)).is_relative_to(os.path.realpath(source)):
            raise MountError(f"copying {source} to {self.path}: that is in the same bucket: choose another path")
        try:
            if source.is_file():
                target = Path(self._at, source.name) if self._into else Path(self._at)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
            else:
                shutil.copytree(source, self._at, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise MountError(f"copying {source} to {self.path}: {error}") from error

    def _copy_by_rclone(self) -> None:
        where = f"copying {self._remote.target} to {self.path}"
        if self._rclone is None:
            raise MountError(f"{where}: there is no rclone on this node: install rclone 1.68 or newer")
        verb = "copy" if self._into else "copyto"  # copyto gives one object the path's own name
        os.makedirs(os.path.dirname(self._at), exist_ok=True)
        command = [str(self._rclone), verb, self._remote.url, self._at, "--transfers", "8", "--log-level", "ERROR"]
        command += ["--contimeout", "10s", "--timeout", "60s", "--retries", "1", "--low-level-retries", "5"]
        try:
            done = subprocess.run(
                command, env=self._remote.environ(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as error:
            raise MountError(f"{where}: starting rclone: {error}") from error
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise store_error(where, f"rclone says: {(lines or ['nothing'])[-1]}")
        if not os.path.exists(self._at):  # rclone takes a prefix without objects for an empty directory
            if self._remote.target != self._remote.bucket:
                raise MountError(f"{where}: there is no such object and nothing under it: correct the source")
            os.mkdir(self._at)

    def lost(self) -> bool:
        return not self._done

    def pending(self) -> int:
        return 0

    def down(self) -> None:
        """A copy is the user's: it stays."""
