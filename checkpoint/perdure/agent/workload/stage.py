"""The agent's handle of `setup` and `run`: started once, adopted after a restart, stopped on time.

`runner_process` runs each in a process of its own.

Each has a folder with files of its runner (see `runner_process`). A stage's state is read from there alone, so an
agent that was killed continues where it stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.agent.state_file import read_json, reserve_disk_space, write_json
from perdure.agent.workload import stop_order
from perdure.agent.workload.container.task_container import TaskContainer
from perdure.agent.workload.runner_process import ALREADY_RUNNING, take_lock

LOST_EXIT_CODE = 128 + signal.SIGKILL
# Isolated (-I): PYTHON* variables must not reach the runner. No site (-S): it needs the standard library alone.
_RUNNER_COMMAND = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from perdure.agent.workload.runner_process import main; sys.exit(main())"
)


@dataclass(frozen=True)
class StageResult:
    """How a script ended. `stopped`: a stop was requested before. `message`: what else went wrong."""

    exit_code: int | None
    stopped: bool
    message: str = ""


class Stage:
    """One script. `allow_background`: the stage has ended when the script has, even if background processes live on."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        log: Path,
        library: Path,
        marker: tuple[str, str],
        allow_background: bool,
        container: TaskContainer | None = None,
    ) -> None:
        """`library`: the folder of the package `perdure`. `marker`: name and value of a variable of the workload.

        `container`: what the script runs in, if not on the machine itself. It is running when the script starts.
        """
        self.name = name
        self._directory = directory
        self._log = log
        self._library = library
        self._marker = marker
        self._allow_background = allow_background
        self._container = container
        self._runner: subprocess.Popen[bytes] | None = None

    @property
    def has_begun(self) -> bool:
        return (self._directory / "runner.json").exists()

    def start(self, script: str, *, env: Mapping[str, str], cwd: Path) -> None:
        """Start the script, unless it was started before. Returns at once. Raises OSError."""
        if self.has_begun or self.is_alive():
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        reserve_disk_space(self._directory / "stop.json")
        path = self._directory / f"{self.name}.sh"
        path.write_text(script)
        job: dict[str, Any] = {
            "script": str(path),
            "cwd": str(cwd),
            "log": str(self._log),
            "directory": str(self._directory),
        }
        if self._container is not None:
            job.update(enter=self._container.enter(), shell=self._container.shell)
        with open(self._directory / "runner.err", "wb") as errors:
            self._runner = subprocess.Popen(
                [sys.executable or "python3", "-IS", "-c", _RUNNER_COMMAND, str(self._library)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
        assert self._runner.stdin is not None
        try:
            self._runner.stdin.write(
                json.dumps({**job, "env": dict(env), "allow_background": self._allow_background}).encode()
            )
            self._runner.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read: `result` returns what is in runner.err

    def is_alive(self) -> bool:
        """Whether a process of this stage may live: the runner outlives all of them."""
        if self._runner is not None and self._runner.poll() is None:
            return True
        if not self._directory.exists():
            return False
        lock = take_lock(self._directory)
        if lock is not None:
            os.close(lock)
        return lock is None

    def result(self) -> StageResult | None:
        """How it ended; None while it runs, and when it was never started."""
        is_alive = self.is_alive()
        stored = read_json(self._directory / "result.json")
        if stored is not None and (self._allow_background or not is_alive):
            lost = stored.get("bytes_lost")
            message = f"{lost} bytes of output were lost: the node's disk was full" if lost else ""
            return StageResult(stored["exit_code"], stored["stopped"], message)
        if is_alive:
            return None
        if self.has_begun:
            self.kill_orphans()
            return StageResult(LOST_EXIT_CODE, stopped=False, message=f"the runner process of {self.name} was killed")
        if self._runner is not None and self._runner.returncode != ALREADY_RUNNING:
            return StageResult(None, stopped=False, message=f"{self.name} cannot be started: {self._runner_error()}")
        return None

    def stop(self, *, kill_at: float) -> None:
        """Stop it: SIGTERM in the order of `stop_order`, SIGKILL at `kill_at` (of `clock`; 0: at once). Repeatable."""
        if not self._directory.exists():
            return
        write_json(self._directory / "stop.json", {"kill_at": kill_at})
        runner = read_json(self._directory / "runner.json")
        if runner is not None and self.is_alive():
            os.kill(runner["pid"], signal.SIGUSR1)

    def kill(self) -> None:
        """Kill all its processes without its runner, which may hang. Repeat while `is_alive`."""
        runner = read_json(self._directory / "runner.json")
        if runner is None or not self.is_alive():
            return
        tree = stop_order.descendants(runner["pid"])
        for pid in tree or [runner["pid"]]:
            stop_order.kill(pid)

    def kill_orphans(self) -> None:
        """Kill the processes of a runner that was killed itself: they are found by their environment."""
        for pid in stop_order.find_by_variable(*self._marker):
            stop_order.kill(pid)

    def _runner_error(self) -> str:
        return (self._directory / "runner.err").read_text(errors="replace").strip()[-500:] or "its runner ended at once"
