"""rclone on a node: the remote that a node spec describes, and the running `rclone mount`.

Secrets are passed in rclone's environment only, never in an argument list or a file. A mount process is found by its
`--cache-dir` argument, which belongs to one mount, so a restarted agent needs no record of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.checkpoint.durability.rclone_rc import Rc, RcError

_SOCKET_PATH_MAX = 100  # the kernel's limit is 108 bytes with the final zero
_LOG_TAIL_BYTES = 4000
# By backend. A node must not create a bucket: a missing one is an error. Chunks: S3 accepts at most 10,000 parts and
# Azure 50,000, and a streamed file is split before its size is known: 16 MiB allow 156 and 781 GiB.
_DEFAULTS = {
    "s3": {"no_check_bucket": "true", "chunk_size": "16M"},
    "gcs": {"no_check_bucket": "true"},
    "azureblob": {"no_check_container": "true", "chunk_size": "16M"},
}


@dataclass(frozen=True)
class Remote:
    """A bucket as rclone names it, `name:target`. `options` are the backend's and include secrets."""

    name: str
    kind: str
    bucket: str
    target: str
    root: str = ""  # of a local store: the directory of buckets
    options: dict[str, str] = field(default_factory=dict, repr=False)
    variables: dict[str, str] = field(default_factory=dict, repr=False)  # of rclone's environment

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], *, name: str = "perdure") -> Remote:
        """The remote of one entry of the node spec's `mounts`. `name`: letters and digits."""
        backend = dict(spec["rclone"])
        kind = str(backend.pop("type"))
        variables = dict(backend.pop("environ", {}))
        path = "/".join(part for part in (spec["bucket"], str(spec.get("prefix") or "").strip("/")) if part)
        root = str(backend.pop("root", "")) if kind == "local" else ""
        options = {
            **_DEFAULTS.get(kind, {}),
            **{key: _text(value) for key, value in backend.items() if value is not None},
        }
        return cls(name, kind, str(spec["bucket"]), os.path.join(root, path), root, options, variables)

    @property
    def url(self) -> str:
        return f"{self.name}:{self.target}"

    @property
    def bucket_url(self) -> str:
        return f"{self.name}:{os.path.join(self.root, self.bucket)}"

    @property
    def bucket_dir(self) -> Path | None:
        """The bucket's directory, if the store is a local one."""
        return Path(self.root, self.bucket) if self.kind == "local" else None

    def environ(self) -> dict[str, str]:
        """The environment to run rclone with: this remote, and none of the user's own rclone settings."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("RCLONE_")}
        prefix = f"RCLONE_CONFIG_{self.name.upper()}_"
        environ.update({prefix + key.upper(): value for key, value in self.options.items()})
        environ.update({"RCLONE_CONFIG": os.devnull, prefix + "TYPE": self.kind})
        if self.variables:
            environ = {key: value for key, value in environ.items() if not key.startswith("AWS_")} | self.variables
        return environ


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def socket_path(home: Path) -> str:
    """The path of the control socket of a mount with this `home`; its directory is created, private to this user.

    If the path is too long for a socket, a short one in the temporary directory is used, the same one each time.
    """
    path = home / "rc" / "rc.sock"
    if len(os.fsencode(path)) > _SOCKET_PATH_MAX:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        path = Path(tempfile.gettempdir(), f"perdure-{os.getuid()}-{digest}", "rc.sock")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = os.lstat(path.parent)
    if owner.st_uid != os.getuid() or not stat.S_ISDIR(owner.st_mode):
        raise PermissionError(f"{path.parent} belongs to another user")
    os.chmod(path.parent, 0o700)
    return str(path)


class MountProcess:
    """One `rclone mount` in the foreground, with `home` as its directory.

    It has its own session: signals to the workload's process group, and the agent's end, do not reach it.
    """

    def __init__(self, binary: Path, remote: Remote, *, home: Path, mountpoint: str, flags: Sequence[str]) -> None:
        self.mountpoint = mountpoint
        self.rc = Rc(socket_path(home))
        self._remote = remote
        self._cache_dir = str(home / "cache")
        self._log = home / "rclone.log"
        self._argv = [
            *(str(binary), "mount", remote.url, mountpoint, "--cache-dir", self._cache_dir),
            *("--rc", "--rc-addr", f"unix://{self.rc.socket_path}", "--rc-no-auth"),
            *("--log-level", "INFO", "--contimeout", "10s", "--timeout", "60s"),
            *flags,
        ]
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start it. No other process may use this home's cache: two processes would corrupt it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.rc.socket_path)
        with open(self._log, "ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                env=self._remote.environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._pid = self._child.pid

    def adopt(self) -> bool:
        """Adopt the living process of this home that an earlier agent started; returns whether there was one.

        A process that mounts something else, mounts elsewhere, or does not answer, is ended instead.
        """
        for pid, argv in _mount_processes(self._cache_dir):
            if argv[1:4] == self._argv[1:4] and self._is_responding():
                self._pid, self._child = pid, None
                return True
        self.stop()
        return False

    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self._pid is not None and self._cache_dir in _argv_of(self._pid)

    def wait_ready(self, is_mounted: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until `is_mounted()` and the control socket answers; False when it ends or takes too long."""
        wait_until(lambda: not self.is_alive() or (is_mounted() and self._is_responding()), timeout_s=timeout_s)
        return self.is_alive() and is_mounted() and self._is_responding()

    def _is_responding(self) -> bool:
        try:
            self.rc.call("rc/noop")
        except RcError:
            return False
        return True

    def stop(self, *, grace_s: float = 3.0) -> None:
        """End every process of this home: SIGTERM, SIGKILL after `grace_s`. Files not uploaded stay in the cache."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid, _ in _mount_processes(self._cache_dir):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if wait_until(lambda: not _mount_processes(self._cache_dir), timeout_s=grace_s):
                break
        if self._child is not None:
            self._child.poll()  # collects the zombie
        with contextlib.suppress(OSError):
            os.unlink(self.rc.socket_path)

    def last_error(self) -> str:
        """The last error in its log, or its last line."""
        try:
            lines = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        errors = [line for line in lines if "ERROR" in line or "CRITICAL" in line or "Fatal" in line]
        return (errors or lines or [""])[-1]


def wait_until(condition: Callable[[], bool], *, timeout_s: float, poll_s: float = 0.02) -> bool:
    """Poll `condition` until it holds; False when it does not within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(poll_s)
    return True


def _mount_processes(cache_dir: str) -> list[tuple[int, list[str]]]:
    """Living mount processes that use this cache, with their argument lists."""
    candidates = ((int(name), _argv_of(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [(pid, argv) for pid, argv in candidates if argv[1:2] == ["mount"] and cache_dir in argv]


def _argv_of(pid: int) -> list[str]:
    """The process's arguments; empty for a zombie, or if there is no such process."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]
