"""Where the six jobs of `crash_scenario` run: on the local cloud, or on an EC2 over HTTP whose machines really run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from perdure.controller.clock import SystemClock
from perdure.controller.clouds.base import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.sdk.client import Client

# What an agent writes when a controller has welcomed it, and when that line breaks.
WELCOMED, BROKEN = "connected to the controller", "the connection to the controller ended"
# A node says all that these jobs print within so long of its welcome, on a busy machine too.
TELLING_S = 1.0

# One zone has little room, so that launches are refused on the way.
ZONES = """
local:
  zones:
    east-a: {region: east, capacity: 2}
    east-b: {region: east, price_factor: 1.1}
    west-a: {region: west, price_factor: 1.2}
"""


class World:
    """`config`, `environ`: what the daemon is told. `judge`: a folder that every machine sees as `judge_on_node`;
    nothing of the controller's reaches it. `where`: fields of a task's resources that bring it here.
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
        """Whether it was to be taken away: by an order, a deadline, or its tombstone."""
        folder = self.folder / "instances" / machine
        state = json.loads((folder / layout.STATE).read_text())
        by_order = any((folder / layout.ORDERS).glob("interrupt*"))
        return "deadline" in state or state.get("reason") == layout.PREEMPTED or by_order

    def was_cut_off(self, machine: str) -> bool:
        """Whether the cloud took it while no controller listened, or when one had but begun to.

        By the cloud's tombstone and the machine's own words. A node's first word says that it ended; its log follows
        once it was told from where: a machine that is taken in between has ended, and lost its last lines.
        """
        folder = self.folder / "instances" / machine
        state = json.loads((folder / layout.STATE).read_text())
        if state.get("reason") != layout.PREEMPTED:
            return False
        lines = (folder / layout.AGENT_LOG).read_text().splitlines()
        last = [line for line in lines if WELCOMED in line or BROKEN in line][-1]
        welcomed_at = datetime.fromisoformat(last.split()[0]).timestamp()
        return BROKEN in last or float(state["ended_at"]) - welcomed_at < TELLING_S

    def living_machines(self) -> list[str]:
        return [path.parent.name for path in self.folder.glob(f"instances/*/{layout.MACHINE}")]

    def interrupt(self, client: Client, job_id: int, machine: str, *, notice_s: float | None) -> None:
        """Have the machine taken away. May be asked again."""
        raise NotImplementedError

    def has_bucket(self, name: str) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """End every machine."""
        for machine in self.living_machines():
            layout.give_order(str(self.folder / "instances" / machine), layout.TERMINATE, {})


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

    def launch_orphan(self, controller: str) -> None:
        """A machine with this controller's name on it that it knows nothing of, and that nobody ever tells to stop."""
        agent = next(p for p in (self._home / "artifacts").iterdir() if p.read_bytes().startswith(b"#!/usr/bin/env"))
        request = LaunchRequest(
            owner=Owner(controller, 999, 0, 1, token="hf-orphan"),
            offer=self._cloud.offers()[0],
            num_nodes=1,
            bootstrap=Bootstrap("http://127.0.0.1:9", "hf1.999.0.1.orphan", {"agent": agent.name}),
            name="orphan",
        )
        self._cloud.launch(request)
