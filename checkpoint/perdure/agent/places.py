"""The agent's folder on the node's disk: what lies where."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def lock(self) -> Path:
        return self.root / "agent.lock"

    @property
    def log(self) -> Path:
        """Everything that `setup` and `run` print, and what the agent has to say to the user. Only appended to."""
        return self.root / "log"

    @property
    def run_dir(self) -> Path:
        """Shared with the workload: `PERDURE_RUN_DIR`."""
        return self.root / "run"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints.jsonl"

    def stage(self, name: str) -> Path:
        return self.root / "stages" / name

    def make(self) -> None:
        """Make the folders, for this user alone: a node's spec holds secrets. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self.run_dir.mkdir(exist_ok=True)

    def tell_user(self, line: str) -> None:
        """Add a line of the agent's to the job's log, in one write. On a full disk it is left out."""
        descriptor = os.open(str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with suppress(OSError):
                os.write(descriptor, f"perdure: {line}\n".encode())
        finally:
            os.close(descriptor)
