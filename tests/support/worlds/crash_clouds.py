"""The clouds on which the six jobs of `crash_scenario` run: the local cloud, or a base for others."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.runtime.clock import SystemClock
from perdure.sdk.connection.client import Client

# The lines that an agent logs when a controller has accepted it, and when the connection breaks.
WELCOMED, BROKEN = "connected to the controller", "the connection to the controller ended"
# A node sends everything that these jobs print within this time of its connection, also on a busy machine.
REPORT_S = 1.0

# One zone has little capacity, so that some launches are refused.
ZONES = """
local:
  zones:
    east-a: {region: east, capacity: 2}
    east-b: {region: east, price_factor: 1.1}
    west-a: {region: west, price_factor: 1.2}
"""


class World:
    """`config`, `environ`: the daemon's configuration. `judge`: a folder that every machine sees as `judge_on_node` and
    the controller does not use. `where`: fields of a task's resources that select this cloud.
    """

    config: str
    environ: dict[str, str]
    where: dict[str, Any]
    store: str
    judge_on_node: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge = folder / "buckets" / "judge"
        self.judge.mkdir(parents=True)

    def was_interrupted(self, machine: str) -> bool:
        """Whether the machine was interrupted, by a command, a deadline, or its tombstone."""
        folder = self.folder / "instances" / machine
        state = json.loads((folder / layout.STATE).read_text())
        by_order = any((folder / layout.COMMANDS).glob("interrupt*"))
        return "deadline" in state or state.get("reason") == layout.PREEMPTED or by_order

    def was_cut_off(self, machine: str) -> bool:
        """Whether the cloud took the machine while no controller was connected, or one had just connected.

        Determined from the cloud's tombstone and the agent's log. A node first reports its end, and sends the rest of
        its log after the controller's reply: if it is taken in between, its last lines are lost.
        """
        folder = self.folder / "instances" / machine
        state = json.loads((folder / layout.STATE).read_text())
        if state.get("reason") != layout.PREEMPTED:
            return False
        lines = (folder / layout.AGENT_LOG).read_text().splitlines()
        last = [line for line in lines if WELCOMED in line or BROKEN in line][-1]
        welcomed_at = datetime.fromisoformat(last.split()[0]).timestamp()
        return BROKEN in last or float(state["ended_at"]) - welcomed_at < REPORT_S

    def living_machines(self) -> list[str]:
        return [path.parent.name for path in self.folder.glob(f"instances/*/{layout.MACHINE}")]

    def interrupt(self, client: Client, job_id: int, machine: str, *, notice_s: float | None) -> None:
        """Interrupt the machine. May be repeated."""
        raise NotImplementedError

    def has_bucket(self, name: str) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """End every machine."""
        for machine in self.living_machines():
            layout.write_command(str(self.folder / "instances" / machine), layout.TERMINATE, {})


class LocalWorld(World):
    """The local cloud of the controller's home."""

    config = ZONES
    where: dict[str, Any] = {}  # noqa: RUF012 - a constant
    environ: dict[str, str] = {}  # noqa: RUF012
    store = "local"

    def __init__(self, home: Path) -> None:
        super().__init__(home / "local")
        self._home = home
        self._cloud = LocalCloud(home, LocalSettings(), SystemClock())
        self.judge_on_node = f"{self._cloud.buckets_on_node()}/judge"

    def interrupt(self, client: Client, job_id: int, machine: str, *, notice_s: float | None) -> None:
        client.preempt(job_id, notice_s=notice_s)

    def has_bucket(self, name: str) -> bool:
        return (self.folder / "buckets" / name).exists()

    def launch_orphan(self, controller: str, *, kill_host: bool) -> None:
        """Launch a machine that belongs to this controller by its tags but is in no record of it.

        `kill_host`: and kill its host process, so that a daemon has to write the machine's tombstone.
        """
        agent = next(p for p in (self._home / "artifacts").iterdir() if p.read_bytes().startswith(b"#!/usr/bin/env"))
        request = LaunchRequest(
            owner=Owner(controller, 999, 0, 1, token="pd-orphan"),
            offer=self._cloud.offers()[0],
            num_nodes=1,
            bootstrap=Bootstrap("http://127.0.0.1:9", "pd1.999.0.1.orphan", {"agent": agent.name}),
            name="orphan",
        )
        (machine,) = self._cloud.launch(request)
        if kill_host:
            folder = str(self.folder / "instances" / machine.id)
            next(p for p in psutil.process_iter(["cmdline"]) if folder in (p.info["cmdline"] or [])).kill()
