"""Runs rclone for a folder, one call at a time: no call outlives the agent or does more than it was asked for."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.agent.storage.rclone import Remote, wait_until
from perdure.checkpoint.durability.cache_record import has_record_name

_VERBS = frozenset({"copy", "delete", "lsf", "lsjson"})
_KILL_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_COMMON = (
    "--use-json-log",
    "--log-level",
    "ERROR",
    "--contimeout",
    "10s",
    "--timeout",
    "60s",
    "--low-level-retries",
    "5",
)


class CallFailed(Exception):
    """rclone has ended with an error. `objects`: the files that its messages name; None: it may be about all."""

    def __init__(self, message: str, objects: frozenset[str] | None = None) -> None:
        super().__init__(message)
        self.objects = objects

    @classmethod
    def from_log(cls, output: bytes) -> CallFailed:
        """From the output of rclone with `--use-json-log`."""
        entries: list[dict[str, Any]] = []
        for line in output.splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        causes = [one for one in entries if not str(one.get("msg", "")).startswith("Attempt ")]
        objects = [one.get("object") for one in causes]
        message = str((causes or entries or [{"msg": "it was ended"}])[0].get("msg", ""))
        named = frozenset(str(name) for name in objects) if objects and all(objects) else None
        return cls(message, named)

    def concerns(self, name: str) -> bool:
        """Whether the file may be one that failed. rclone may write to `NAME.1a2b3c4d.partial` first."""
        return self.objects is None or any(
            one == name or (one.startswith(f"{name}.") and one.endswith(".partial")) for one in self.objects
        )


def can_be_named(name: str) -> bool:
    """Whether rclone takes the name as it is, in a list of names and as an object's.

    It reads a list line by line, and stores control characters and its own quotes for them in another form.
    """
    return has_record_name(name)


class RcloneCalls:
    """rclone with one remote, whose name no other folder uses. One thread at a time may make a call."""

    def __init__(self, binary: Path, remote: Remote, *, names_file: Path) -> None:
        self._binary, self._remote, self._names_file = binary, remote, names_file
        # Without the slash, rclone asks an object store whether this is a file, and believes so if there is no answer.
        self._url = remote.url.rstrip("/") + "/"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_ended = False

    def download(self, folder: str) -> None:
        """Copy all objects into the folder. Raises CallFailed, OSError."""
        self.call("copy", self._url, folder, "--transfers", "8")

    def download_newer(self, folder: str, names: Sequence[str]) -> None:
        """Copy those of these objects into the folder that are newer there. Raises CallFailed, OSError."""
        self.call("copy", self._url, folder, *self._only(names), "--update", "--transfers", "8", "--checkers", "32")

    def upload(self, folder: str, names: Sequence[str]) -> None:
        """Raises CallFailed, which may name files that are not uploaded: the others may not be, either. OSError."""
        flags = ("--no-traverse", "--local-no-check-updated", "--order-by", "modtime,descending", "--transfers", "4")
        self.call("copy", folder, self._url, *self._only(names), "--copy-links", *flags)

    def delete(self, names: Sequence[str]) -> None:
        """Raises CallFailed, OSError."""
        self.call("delete", self._url, *self._only(names))

    def sizes(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """The objects that the bucket has, of these or of all: name → bytes. Raises CallFailed, OSError."""
        only = () if names is None else (*self._only(names), "--no-traverse")
        flags = ("--recursive", "--files-only", "--no-modtime", "--no-mimetype")
        output = self.call("lsjson", self._url, *flags, *only)
        try:
            return {str(row["Path"]): int(row["Size"]) for row in json.loads(output)}
        except (ValueError, KeyError, TypeError):
            raise CallFailed(f"it lists the bucket in an unknown form: {output[:100]!r}") from None

    def _only(self, names: Sequence[str]) -> tuple[str, str]:
        if not all(map(can_be_named, names)):
            raise ValueError("a name in the list would be taken for another")
        self._names_file.write_bytes(b"".join(os.fsencode(name) + b"\n" for name in names))
        return "--files-from-raw", str(self._names_file)

    def call(self, *words: str) -> bytes:
        """Run rclone to its end; returns its output. Raises CallFailed, OSError."""
        with self._lock:
            if self._is_ended:
                raise CallFailed("it was ended")
            process = self._process = subprocess.Popen(
                [str(self._binary), *words, "--retries", "1", *_COMMON],
                env=self._remote.environ(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # signals to the workload's group do not reach it
                preexec_fn=_EndWithParent(os.getpid()),  # noqa: PLW1509 - one system call, without a lock
            )
        output, log = process.communicate()  # this thread lives as long as rclone: its end would be rclone's
        if process.returncode != 0:
            failed = CallFailed.from_log(log)
            raise failed if process.returncode > 0 else CallFailed(str(failed))  # it was killed: files are left over
        return output

    def allow(self) -> None:
        """Make calls possible again after `end`."""
        with self._lock:
            self._is_ended = False

    def end(self) -> None:
        """Kill the call that runs, and fail those that follow. From any thread."""
        with self._lock:
            self._is_ended = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def end_leftovers(self) -> bool:
        """Kill the calls of an earlier agent, which would undo what follows; returns whether they have ended.

        Call it while no call runs.
        """
        for pid in self._leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return wait_until(lambda: not self._leftovers(), timeout_s=_KILL_TIMEOUT_S)

    def _leftovers(self) -> list[int]:
        """They are known by the remote's name, as an argument, so no record of them can be missing or too old."""
        pids = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    words = Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").split("\0")
                    # a script in rclone's place has its interpreter first
                    if _VERBS & set(words[1:3]) and any(word.startswith(f"{self._remote.name}:") for word in words):
                        pids.append(int(entry))
        return pids


class _EndWithParent:
    """Lets the kernel kill this process when the thread that started it ends."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:  # it had ended before
            os._exit(1)
