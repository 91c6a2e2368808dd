"""Jobs with buckets: how they are launched and inspected."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from support.helpers.controllers import Controller

ENDED = ("SUCCEEDED", "FAILED", "FAILED_PRECHECKS", "FAILED_SETUP", "FAILED_CONTROLLER", "CANCELLED")
# Continues after the highest step in the bucket. A step that a notice interrupted is printed and done again.
TRAINER = """
    last=$(ls /ckpt | sed -n 's/^step-0*//p' | sort -n | tail -1)
    echo starts after ${last:-0} in $(hostname)
    for i in $(seq $((${last:-0} + 1)) STEPS); do
      f=$(printf step-%04d $i)
      head -c 700001 /dev/urandom > /ckpt/.new
      echo wrote $(sha256sum < /ckpt/.new | cut -d' ' -f1) $f
      mv /ckpt/.new /ckpt/$f
      sleep 0.05
    done
"""


@dataclass(frozen=True)
class Jobs:
    """Launches jobs with buckets and inspects them. `folder`: where their task files are written."""

    folder: Path

    def submit(
        self, controller: Controller, mounts: str, run: str, *, more: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Launch a spot task; return the completed command."""
        task = self.folder / "task.yaml"
        parts = ["name: stored", "resources: {use_spot: true}", textwrap.dedent(more), "file_mounts:"]
        parts += [textwrap.indent(textwrap.dedent(mounts), "  "), "run: |", textwrap.indent(textwrap.dedent(run), "  ")]
        task.write_text("\n".join(parts))
        return controller.perdure("jobs", "launch", task, "--detach-run", "--yes", check=False)

    def launch(self, *args: Any, **named: Any) -> int:
        """Launch as `submit` does; return the job."""
        done = self.submit(*args, **named)
        match = re.search(r"Job (\d+)", done.stdout + done.stderr)
        assert match, done.stdout + done.stderr
        return int(match[1])

    @staticmethod
    def trainer(steps: int, at: str = "/ckpt") -> str:
        """A `run` that writes files `step-0001` … of random content to `at`."""
        return TRAINER.replace("STEPS", str(steps)).replace("/ckpt", at)

    @staticmethod
    def written(log: str) -> dict[str, str]:
        """The files that the job printed that it wrote: name → SHA-256."""
        return {line.split()[2]: line.split()[1] for line in log.splitlines() if line.startswith("wrote ")}

    @staticmethod
    def digests(objects: dict[str, bytes]) -> dict[str, str]:
        return {key: hashlib.sha256(body).hexdigest() for key, body in objects.items()}

    @staticmethod
    def until_ended(controller: Controller, job: int) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            detail = controller.job(job)
            return detail if detail["status"] in ENDED else None

        return controller.until(ended, f"the end of {controller.job(job)}")

    @staticmethod
    def until_logged(controller: Controller, job: int, text: str) -> None:
        controller.until(lambda: text in controller.log(job), f"{text!r} in the log:\n{controller.log(job)}")

    @staticmethod
    def until_gone(controller: Controller, job: int) -> None:
        controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")

    @staticmethod
    def explained(controller: Controller, job: dict[str, Any]) -> str:
        return f"{job['status']} {job['reason']} {job['message']}\n{controller.log(job['job_id'])}"

    @staticmethod
    def shown(controller: Controller, job: int) -> str:
        return controller.perdure("jobs", "show", job, "-o", "json").stdout

    @staticmethod
    def open_intents(controller: Controller, job: int) -> int:
        with sqlite3.connect(controller.home / "perdure.db") as db:
            count = "select count(*) from intent where job_id = ? and done_at is null"
            return int(db.execute(count, [job]).fetchone()[0])

    def machine_root(self, controller: Controller, job: int, rank: int = 0) -> Path:
        """The root of the running machine's file system, as this computer sees it."""
        return Path(f"/proc/{self.machine_processes(controller, job, rank)[1].pid}/root")

    @staticmethod
    def machine_processes(controller: Controller, job: int, rank: int = 0) -> list[psutil.Process]:
        """The running machine's host process, its init, and all its other processes."""
        node = controller.job(job)["attempts"][-1]["nodes"][rank]["instance_id"]
        for process in psutil.process_iter(["cmdline"]):
            if f"/instances/{node}" in " ".join(process.info["cmdline"] or []):
                return [process, *process.children(recursive=True)]
        raise AssertionError(f"{node} does not run")

    @staticmethod
    def mounts(controller: Controller, job: int) -> list[psutil.Process]:
        """The processes of the running machine's bucket mounts."""
        mounts = []
        for process in Jobs.machine_processes(controller, job):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, and may be a zombie
                if process.cmdline()[1:2] == ["mount"]:
                    mounts.append(process)
        return mounts
