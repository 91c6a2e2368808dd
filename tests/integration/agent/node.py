"""A machine with an agent as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from integration.agent.controller import TOKEN, Controller
from support.helpers.timing import scaled, wait_until

SOURCES = Path(__file__).resolve().parents[3] / "checkpoint"


class Node:
    """A machine: a home, a disk, and an agent that can be killed and started again."""

    def __init__(self, controller: Controller, root: Path) -> None:
        self.controller = controller
        self.home = root / "home"
        self.state_dir = root / "state"
        self.agent_log = root / "agent.log"
        self.env: dict[str, str] = {"PERDURE_POWER_OFF": f"touch {root}/powered-off"}
        self.python = [sys.executable, "-m", "perdure.agent"]
        self.agent: subprocess.Popen[bytes] | None = None
        self.home.mkdir()

    @property
    def run_dir(self) -> Path:
        return self.state_dir / "run"

    def start(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        env |= {
            "PERDURE_ENDPOINT": self.controller.endpoint,
            "PERDURE_TOKEN": TOKEN,
            "PERDURE_RANK": "0",
            "PERDURE_STATE_DIR": str(self.state_dir),
            "HOME": str(self.home),
            "PYTHONPATH": str(SOURCES),
            **self.env,
        }
        with open(self.agent_log, "ab") as log:
            self.agent = subprocess.Popen(self.python, env=env, cwd=self.home, stdout=log, stderr=log)

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def terminate_agent(self) -> None:
        """Send the agent SIGTERM, as a machine that shuts down does."""
        assert self.agent is not None
        self.agent.send_signal(signal.SIGTERM)

    def wait_for_agent(self, timeout_s: float = 20.0) -> int:
        assert self.agent is not None
        return self.agent.wait(scaled(timeout_s))

    def processes(self) -> list[psutil.Process]:
        """Every process of this node, by its environment."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def until_file(self, path: Path, timeout_s: float = 20.0) -> None:
        """Wait until a file exists, for events while no connection is open."""
        wait_until(path.exists, str(path), timeout_s, poll_s=0.01)

    def workload(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "PERDURE_RUN_DIR" in _environ(p)]

    def destroy(self) -> None:
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if self.agent is not None:
            self.agent.wait()
        for partition in psutil.disk_partitions(all=True):
            if partition.mountpoint.startswith(f"{self.home.parent}/"):
                subprocess.run(["umount", "--lazy", partition.mountpoint], check=False)

    def _is_mine(self, process: psutil.Process) -> bool:
        env = _environ(process)
        mine = (str(self.state_dir), str(self.run_dir))
        return env.get("PERDURE_STATE_DIR") in mine or env.get("PERDURE_RUN_DIR") in mine


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}
