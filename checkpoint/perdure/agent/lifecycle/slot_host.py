"""A node of a cluster: runs an agent for each job that has a slot here, as the controller wants it.

The controller sends the whole wanted state; this node reports the whole state of its slots. Each slot has an agent of
its own, with its own token and state folder, which does for its job what this agent does for a managed job. Everything
is on disk, so that a restarted agent adopts the slots that run.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.lifecycle.folder_removals import FolderRemovals, is_removed
from perdure.agent.lifecycle.revision import AGENT_COMMAND
from perdure.agent.lifecycle.slot_workdirs import SlotWorkdirs
from perdure.agent.link.outbox import Outbox
from perdure.agent.link.websocket import WebSocket
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import read_json, write_json
from perdure.agent.workload import stop_order
from perdure.agent.workload.environment import RUN_DIR
from perdure.agent.workload.stage import Stage

POLL_S = 0.1
RUNNER_KILL_S = 1.0
MIN_SILENCE_S = 60.0  # the controller stops idle nodes itself, unless it has been gone for so long
_OWN_SETTINGS = ("PERDURE_METADATA_ENDPOINT", "PERDURE_OWNS_MACHINE", "PERDURE_TOKEN")


@dataclass(frozen=True)
class Autostop:
    """When this node ends by itself if no controller answers: after `autostop_s` idle seconds, or never.

    `wait_for`: what it waits for before it counts: `jobs_and_ssh`, `jobs` or `none`. With `none`, it counts from each
    new value of `active_at`.
    """

    autostop_s: float | None = None
    wait_for: str = "jobs_and_ssh"
    active_at: float | None = None

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Autostop:
        """From a message of the controller, or from a file that an earlier agent has written."""
        autostop_s = message.get("autostop_s")
        return cls(
            None if autostop_s is None else float(autostop_s),
            str(message.get("wait_for", "jobs_and_ssh")),
            message.get("active_at"),
        )


class SlotHost:
    """The slots of this node. `handle_message` runs on the channel's thread, everything else on the supervisor's.

    `last_contact`: when a controller last answered (monotonic seconds). `used_at`: when a user last used this machine.
    """

    def __init__(
        self,
        paths: NodePaths,
        outbox: Outbox,
        *,
        library: Path,
        environ: Mapping[str, str],
        log: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = paths.root / "slots"
        self._outbox = outbox
        self._library = library
        self._environ = environ
        self._log = log
        self._lock = threading.Lock()
        self._wanted: dict[str, dict[str, Any]] = {}
        self._autostop = Autostop()
        self._stages: dict[str, Stage] = {}
        self._ended: set[str] = set()
        self._stop_began: dict[str, float] = {}
        self._monotonic = monotonic
        self._checked_at: float | None = None
        self._idle_since = monotonic()
        self._removals = FolderRemovals()
        self._workdirs = SlotWorkdirs(paths.root / "workdirs", environ, self._removals)
        self.last_contact: Callable[[], float] = monotonic
        self.used_at: Callable[[], float] = lambda: 0.0

    # --- a stream of the channel --------------------------------------------------------------------------

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        """Nothing is sent but reports."""

    def detach(self) -> None:
        """Nothing is lost: the next connection begins with a whole report."""

    def handle_message(self, message: dict[str, Any]) -> None:
        if message.get("type") != "slots":
            return
        slots = {str(slot["id"]): dict(slot) for slot in message["slots"]}
        autostop = Autostop.parse(message)
        with self._lock:
            if autostop != self._autostop and autostop.wait_for == "none":
                self._idle_since = self._monotonic()
            self._wanted, self._autostop = slots, autostop
            self._checked_at = None
            self._root.mkdir(mode=0o700, exist_ok=True)
            write_json(self._root / "wanted.json", {"slots": list(slots.values()), **asdict(autostop)})

    # --- the supervisor's thread --------------------------------------------------------------------------

    def restore(self) -> None:
        """Adopt what an earlier agent has started, before the first report is sent."""
        self._removals.resume(self._root)
        self._workdirs.restore()
        stored = read_json(self._root / "wanted.json") or {"slots": []}
        self._wanted = {slot["id"]: slot for slot in stored["slots"]}
        self._autostop = Autostop.parse(stored)
        self._outbox.update_report(slots=self._states(dict(self._wanted)))

    def is_done(self) -> bool:
        """Start and stop slots as wanted. True once nobody needs this node: it is idle and no controller answers."""
        now = self._monotonic()
        if self._checked_at is not None and now - self._checked_at < POLL_S:
            return False
        self._checked_at = now
        with self._lock:
            wanted, autostop = dict(self._wanted), self._autostop
        self._remove_unwanted(wanted)
        for slot_id, slot in wanted.items():
            try:
                self._converge(slot_id, slot)
            except OSError as error:
                self._log(f"{slot_id} cannot be started: {error}")
                self._ended.add(slot_id)
        states = self._states(wanted)
        self._outbox.update_report(slots=states)
        if autostop.wait_for != "none" and any(state["state"] == "running" for state in states):
            self._idle_since = now
        if autostop.autostop_s is None:
            return False
        used_at = self.used_at() if autostop.wait_for == "jobs_and_ssh" else 0.0
        is_idle = now - max(self._idle_since, used_at) >= autostop.autostop_s
        return is_idle and now - self.last_contact() >= max(autostop.autostop_s, MIN_SILENCE_S)

    def drain(self, desired: DesiredState, kill_at: Callable[[], float]) -> None:
        """Have the agents of all slots save their work and end, by `kill_at`, which may move. Raises StopNow."""
        stopped_by: list[float] = []

        def has_ended() -> bool:
            alive, deadline = self._alive(), kill_at()
            if stopped_by != [deadline]:
                stopped_by[:] = [deadline]
                for stage in alive:
                    stage.stop(kill_at=deadline)
            return not alive

        desired.wait_for(has_ended, drainable=False)

    def kill(self) -> None:
        """Kill everything of all slots, and wait for it, at most `RUNNER_KILL_S` twice."""
        began = time.monotonic()
        for stage in self._alive():
            stage.stop(kill_at=0)
        while (alive := self._alive()) and time.monotonic() - began < 2 * RUNNER_KILL_S:
            time.sleep(0.01)
            if time.monotonic() - began > RUNNER_KILL_S:
                for stage in alive:
                    stage.kill()

    def _alive(self) -> list[Stage]:
        ids = {*self._wanted, *self._stages}
        return [stage for stage in map(self._stage, ids) if stage.is_alive()]

    def _converge(self, slot_id: str, slot: dict[str, Any]) -> None:
        stage = self._stage(slot_id)
        if slot_id in self._ended:
            return
        if stage.is_alive():
            if slot["stop"]:
                self._kill_stage(slot_id, stage)
        elif stage.has_begun or slot["stop"]:
            self._kill_orphans(slot_id)
            self._ended.add(slot_id)
        else:
            self._start(slot_id, slot, stage)

    def _kill_stage(self, slot_id: str, stage: Stage) -> None:
        began = self._stop_began.setdefault(slot_id, time.monotonic())
        stage.stop(kill_at=0)
        if time.monotonic() - began > RUNNER_KILL_S:
            stage.kill()

    def _kill_orphans(self, slot_id: str) -> None:
        """End what a runner that was killed itself has left behind."""
        state_dir = self._state_dir(slot_id)
        for pid in (
            *stop_order.find_by_variable("PERDURE_STATE_DIR", str(state_dir)),
            *stop_order.find_by_variable(RUN_DIR, str(state_dir / "run")),
        ):
            stop_order.kill(pid)

    def _start(self, slot_id: str, slot: dict[str, Any], stage: Stage) -> None:
        in_use = [other.name for other in self._alive()]
        workdir = self._workdirs.assign(slot_id, slot.get("workdir"), in_use)
        folder = self._state_dir(slot_id)
        folder.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in self._environ.items() if name not in _OWN_SETTINGS}
        env.update(
            PERDURE_TOKEN=slot["token"],
            PERDURE_RANK=str(slot["rank"]),
            PERDURE_STATE_DIR=str(folder),
            PERDURE_NODE_IP=self._outbox.report.ip,
            PERDURE_POWER_OFF="true",
            PERDURE_WORKDIR=str(workdir.path),
            PERDURE_WORKDIR_RECORD=str(workdir.record),
        )
        if workdir.source is not None:
            env["PERDURE_WORKDIR_SOURCE"] = str(workdir.source.path)
            env["PERDURE_WORKDIR_SOURCE_RECORD"] = str(workdir.source.record)
        if slot["gpus"]:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(int(gpu)) for gpu in slot["gpus"])
        command = [sys.executable or "python3", "-IS", "-c", AGENT_COMMAND, str(self._library)]
        stage.start("exec " + shlex.join(command), env=env, cwd=Path("/"))
        self._log(f"started {slot_id}")

    def _remove_unwanted(self, wanted: Mapping[str, Any]) -> None:
        """The controller has recorded the end of these slots, or has never had them: nothing of them may be left."""
        if not self._root.is_dir():
            return
        for folder in self._root.iterdir():
            slot_id = folder.name
            if slot_id in wanted or is_removed(folder) or not folder.is_dir():
                continue
            stage = self._stage(slot_id)
            if stage.is_alive():
                self._kill_stage(slot_id, stage)
                continue
            self._workdirs.release(slot_id)
            self._removals.add(folder)
            self._stages.pop(slot_id, None)
            self._stop_began.pop(slot_id, None)
            self._ended.discard(slot_id)

    def _states(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The report. A slot that waits to be started counts as running."""
        return [
            {"id": slot_id, "state": "ended" if slot_id in self._ended else "running"} for slot_id in sorted(wanted)
        ]

    def _state_dir(self, slot_id: str) -> Path:
        return self._root / slot_id / "state"

    def _stage(self, slot_id: str) -> Stage:
        if slot_id not in self._stages:
            folder = self._root / slot_id
            self._stages[slot_id] = Stage(
                slot_id,
                folder / "agent",
                log=folder / "agent.log",
                library=self._library,
                marker=("PERDURE_STATE_DIR", str(self._state_dir(slot_id))),
                allow_background=False,
            )
        return self._stages[slot_id]
