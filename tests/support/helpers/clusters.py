"""Clusters of a real controller, used through the SDK."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.sdk import Task, clusters
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.discovery import running
from support.helpers.controllers import Controller, running_controller

CONFIG = "local: {accelerators: {V100: 8}}\n"
KEEP_DISKS = "clusters: {keep_disks: true}\n"


@dataclass(frozen=True)
class Clusters:
    """Calls of the SDK on one controller."""

    controller: Controller

    @property
    def client(self) -> Client:
        """A client of the daemon, which is started if it has died."""
        endpoint = running(self.controller.home)
        if endpoint is None:
            self.controller.perdure("controller", "start")
            return self.controller.client
        return Client(endpoint)

    def launch(self, name: str, run: str | None = None, **more: Any) -> clusters.Launched:
        """Launch a cluster and wait until it is up."""
        options = {key: more.pop(key) for key in ("idle_s", "down", "wait_for", "recover", "limit_s") if key in more}
        client = self.client
        launched = clusters.launch_job(
            Task(run=run or "true", **more), name, job=run is not None, client=client, **options
        )
        clusters.wait_up(launched, lambda _line: None, client=client)
        return launched

    def exec(self, name: str, run: str, *, limit_s: float | None = None, **more: Any) -> int:
        """Queue a job; returns its number."""
        number = clusters.exec_job(Task(run=run, **more), name, limit_s=limit_s, client=self.client).number
        assert number is not None
        return number

    def job(self, name: str, number: int) -> dict[str, Any]:
        found = clusters.find_job(name, number, client=self.client)
        assert found is not None
        return dict(found)

    def status(self, name: str) -> str:
        """The status of a cluster; DOWN once it no longer exists."""
        found = clusters.clusters([name], client=self.client)
        return found[0]["status"] if found else "DOWN"

    def until(self, name: str, number: int, *statuses: str) -> dict[str, Any]:
        """Wait until the job has one of these statuses; without any, until it has ended."""

        def has_status() -> dict[str, Any] | None:
            job = self.job(name, number)
            return job if job["status"] in statuses or (not statuses and job["has_ended"]) else None

        return self.controller.until(has_status, f"job {number} of {name} to be {statuses or 'over'}")

    def output(self, name: str, run: str, **more: Any) -> str:
        """What a command prints on a cluster, without the lines about attempts."""
        return self.log(name, self.until(name, self.exec(name, run, **more))["number"])

    def log(self, name: str, number: int) -> str:
        """The log of a job, without the lines about attempts."""
        written = io.BytesIO()
        clusters.tail_logs(name, number, follow=False, output_stream=written, client=self.client)
        return "".join(line for line in written.getvalue().decode().splitlines(True) if not line.startswith("--- "))

    def machines(self) -> set[Path]:
        """The disks of the machines that run."""
        return set(self.controller.home.glob("local/instances/*/machine")) - self.kept_disks()

    def kept_disks(self) -> set[Path]:
        """The disks of the machines that are stopped."""
        states = self.controller.home.glob("local/instances/*/state.json")
        return {path.with_name("machine") for path in states if json.loads(path.read_text())["state"] == "halted"}

    def no_machines(self) -> bool:
        return not self.machines()


@contextlib.contextmanager
def running_clusters(home: Path, config: str = CONFIG, **more: Any) -> Iterator[Clusters]:
    """A controller on `home`; in the end nothing of it is left."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(config)
    with running_controller(home, **more) as controller:
        try:
            yield Clusters(controller)
        finally:
            controller.perdure("down", "--all", "--yes", check=False)
