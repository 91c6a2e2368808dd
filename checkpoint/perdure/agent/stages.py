"""`setup` and `run` as the agent sees them: started once, found again after a restart, ended on time.

Each has a folder that its runner fills (see `runner`). All that is known of a stage is read from there, so an agent
that was killed goes on where it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perdure.agent import processes
from perdure.agent.runner import ALREADY_RUNNING, take_lock
from perdure.agent.state import keep_room, read_json, write_json

LOST_EXIT_CODE = 128 + signal.SIGKILL
# Isolated (-I): PYTHON* variables must not reach the runner. No site (-S): it needs the standard library alone.
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from perdure.agent.runner import main; sys.exit(main())"


@dataclass(frozen=True)
class Result:
    """How a script ended. `stopped`: it was told to before. `message`: what went wrong beside the exit code."""

    exit_code: int | None
    stopped: bool
    message: str = ""


class Stage:
    """One script's life. `lingers`: it is over when the script is, though what it left in the background lives on."""

    def __init__(
        self, name: str, directory: Path, *, log: Path, library: Path, marker: tuple[str, str], lingers: bool
    ) -> None:
        """`library`: folder that holds the package `perdure`. `marker`: a variable that only the workload has."""
        self.name = name
        self._directory = directory
        self._log = log
        self._library = library
        self._marker = marker
        self._lingers = lingers
        self._runner: subprocess.Popen[bytes] | None = None

    @property
    def has_begun(self) -> bool:
        return (self._directory / "runner.json").exists()

    def start(self, script: str, *, env: Mapping[str, str], cwd: Path) -> None:
        """Run the script, unless it was started before: then nothing happens. Returns at once. Raises OSError."""
        if self.has_begun or self.is_alive():
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        keep_room(self._directory / "stop.json")
        path = self._directory / f"{self.name}.sh"
        path.write_text(script)
        job = {"script": str(path), "cwd": str(cwd), "log": str(self._log), "directory": str(self._directory)}
        with open(self._directory / "runner.err", "wb") as errors:
            self._runner = subprocess.Popen(
                [sys.executable or "python3", "-IS", "-c", _BOOT, str(self._library)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
        assert self._runner.stdin is not None
        try:
            self._runner.stdin.write(json.dumps({**job, "env": dict(env), "lingers": self._lingers}).encode())
            self._runner.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read: `result` says what it left in runner.err

    def is_alive(self) -> bool:
        """Whether a process of this stage may live (the runner outlives all of them)."""
        if self._runner is not None and self._runner.poll() is None:
            return True
        if not self._directory.exists():
            return False
        lock = take_lock(self._directory)
        if lock is not None:
            os.close(lock)
        return lock is None

    def result(self) -> Result | None:
        """How it ended; None while it runs, or was never started."""
        is_alive = self.is_alive()
        stored = read_json(self._directory / "result.json")
        if stored is not None and (self._lingers or not is_alive):
            lost = stored.get("bytes_lost")
            message = f"{lost} bytes of output were lost: the node's disk was full" if lost else ""
            return Result(stored["exit_code"], stored["stopped"], message)
        if is_alive:
            return None
        if self.has_begun:
            self.end_orphans()
            return Result(LOST_EXIT_CODE, stopped=False, message=f"the process that watched {self.name} was killed")
        if self._runner is not None and self._runner.returncode != ALREADY_RUNNING:
            return Result(None, stopped=False, message=f"{self.name} can not be started: {self._last_words()}")
        return None

    def stop(self, *, kill_at: float) -> None:
        """End it: SIGTERM in the order of `processes`, SIGKILL at `kill_at` (of `clock`; 0: at once). Repeatable."""
        if not self._directory.exists():
            return
        write_json(self._directory / "stop.json", {"kill_at": kill_at})
        runner = read_json(self._directory / "runner.json")
        if runner is not None and self.is_alive():
            os.kill(runner["pid"], signal.SIGUSR1)

    def kill(self) -> None:
        """Kill every process of it, without the help of its runner, which may hang. Repeat it while `is_alive`."""
        runner = read_json(self._directory / "runner.json")
        if runner is None or not self.is_alive():
            return
        tree = processes.descendants(runner["pid"])
        for pid in tree or [runner["pid"]]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """The runner was killed, so nobody holds the processes together: they are known by their environment."""
        for pid in processes.with_variable(*self._marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def _last_words(self) -> str:
        return (self._directory / "runner.err").read_text(errors="replace").strip()[-500:] or "its runner ended at once"
