"""The agent's folder on the node's disk and the files in it."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perdure.agent.state_file import read_json

# What another attempt on the same disk uses again. `boot.py` has put the agent there; the caches of mounts may hold
# files that are not uploaded yet.
_KEPT = frozenset({"agent.lock", "agent.pyz", "artifacts", "attempt", "files", "home.json", "mounts", "tools"})


@dataclass(frozen=True)
class NodePaths:
    """Paths below `root`, the agent's state folder."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def token(self) -> Path:
        """The attempt's token, once the boot token has been traded."""
        return self.root / "token.json"

    @property
    def lock(self) -> Path:
        return self.root / "agent.lock"

    @property
    def log(self) -> Path:
        """The output of `setup` and `run`, and the agent's messages to the user. Append-only."""
        return self.root / "log"

    @property
    def run_dir(self) -> Path:
        """Shared with the workload, which finds it in `PERDURE_RUN_DIR`."""
        return self.root / "run"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints.jsonl"

    @property
    def progress(self) -> Path:
        """The program's newest report of its step, which `perdure.checkpoint.progress` writes."""
        return self.run_dir / "progress.json"

    @property
    def sessions(self) -> Path:
        """Files of open ssh sessions, one folder each."""
        return self.root / "sessions"

    @property
    def tools(self) -> Path:
        """The tools of scripts: see `workload.tools`."""
        return self.root / "tools"

    @property
    def files_in_place(self) -> Path:
        """Of a cluster's node: exists once its files are here. They are the user's, and are never fetched again."""
        return self.root / "files"

    @property
    def uploads(self) -> Path:
        """Of a replica: which uploads its folders hold, one record for each."""
        return self.root / "upload-records"

    @property
    def container(self) -> Path:
        """The agent's files for the container of the task, which the container does not see."""
        return self.root / "container"

    def shared_with_container(self) -> tuple[Path, ...]:
        """The folders that scripts in a container use. Makes those that are missing. Raises OSError."""
        folders = (self.run_dir, self.tools, *(self.root / name for name in ("stages", "artifacts", "mounts")))
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return folders

    def stage(self, name: str) -> Path:
        return self.root / "stages" / name

    def create(self) -> None:
        """Create the folders, readable by this user alone: the node spec holds secrets. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self.run_dir.mkdir(exist_ok=True)

    def begin_attempt(self, token: str) -> None:
        """Forget what another attempt has left here: the machine was stopped, and is started again for this one.

        What the machine has installed stays, what its home had at first, and what mounts have not uploaded yet.
        Repeatable. Raises OSError. Without a readable record of the attempt, nothing is forgotten: this one may be
        running.
        """
        digest, record = hashlib.sha256(token.encode()).hexdigest(), self.root / "attempt"
        recorded = record.read_text(errors="replace") if record.exists() else ""
        if recorded == digest:
            return
        if len(recorded) == len(digest) and recorded.isalnum():
            self._mark_files()
            for path in self.root.iterdir():
                if path.name not in _KEPT:
                    _remove(path, self.root.stat().st_dev)
            self.create()
        new = record.with_name("attempt.new")
        with new.open("w") as file:  # an agent starts again after a power cut: the record is whole, or the old one
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        new.replace(record)

    def _mark_files(self) -> None:
        """Have `files_in_place`, if the attempt before had its files: older agents make no such mark."""
        before = read_json(self.state)
        if isinstance(before, dict) and before.get("prepared") is True:
            with suppress(OSError):
                self.files_in_place.touch()

    def append_to_job_log(self, line: str) -> None:
        """Append a line of the agent to the job's log, in one write. On a full disk the line is dropped."""
        descriptor = os.open(str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with suppress(OSError):
                os.write(descriptor, f"perdure: {line}\n".encode())
        finally:
            os.close(descriptor)


def _remove(path: Path, device: int) -> None:
    """Remove a file, or a folder with what it holds. What is mounted in it is left alone. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for folder, names, _ in os.walk(str(path)):
        if any(os.lstat(os.path.join(folder, name)).st_dev != device for name in names):
            return
    shutil.rmtree(str(path))
