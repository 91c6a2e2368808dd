"""The machines of clusters: their agents run an agent for each slot, as in `perdure.agent.lifecycle.slot_host`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from faultworld.network import Link
from faultworld.nodes import Node
from faultworld.workload import ProgramExit
from perdure.controller.clouds.slot_cloud import parse_slot_id

_MIN_SILENCE_S = 60.0
_CHECK_INTERVAL_S = 5.0


class HostNode(Node):
    """A machine of a cluster. What it must run is on its disk, and so survives its agent."""

    _contact_at = 0.0
    _autostop_s: float | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.slots: dict[str, SlotNode] = {}  # those that were started, and are still wanted or still run
        self._wanted: dict[str, dict[str, Any]] = {}
        self._never_started: set[str] = set()
        self._idle_since = self.world.scheduler.now()
        self.disk.report = replace(self.disk.report, slots=[])

    @property
    def is_leaving(self) -> bool:
        """Whether it ends, so that everything on it does."""
        return not self.is_on or self.token_revoked or self.disk.ended or self.disk.directive.reaches("drain")

    # --- faults -------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        super().lose_power()
        for slot in self._alive():
            slot.lose_power()

    def cut_off(self, seconds: float) -> None:
        super().cut_off(seconds)
        for slot in self._alive():
            slot.cut_off(seconds)

    # --- the agent ----------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        was_up = self.agent_up
        super().start_agent()
        if self.agent_up and not was_up:
            self._contact_at = self.world.scheduler.now()
            self._schedule(self._check_autostop, _CHECK_INTERVAL_S)

    def _receive(self, link: Link, message: dict[str, Any]) -> None:
        self._contact_at = self.world.scheduler.now()
        if message["type"] == "slots":
            self._wanted = {slot["id"]: slot for slot in message["slots"]}
            self._autostop_s = message["autostop_s"]
            self._schedule(self._converge, self.rng.uniform(0, 0.1))
        else:
            super()._receive(link, message)

    def _check_autostop(self) -> None:
        """End by itself if it is idle, and no controller has answered for as long."""
        now = self.world.scheduler.now()
        if self.link is not None and not self.link.is_blackholed:
            self._contact_at = now
        if self._alive():
            self._idle_since = now
        limit_s = self._autostop_s
        if limit_s is not None and self.disk.report.phase == "running" and not self.is_leaving:
            is_idle = now - self._idle_since >= limit_s
            if is_idle and now - self._contact_at >= max(limit_s, _MIN_SILENCE_S):
                self.world.record(self.name, "is idle without a controller, and ends")
                self._flush(exit_code=0)
        self._schedule(self._check_autostop, _CHECK_INTERVAL_S)

    def _in_ready(self, drains: bool) -> None:
        if drains:
            self._flush(interrupted=True)
        elif self.disk.directive.reaches("run"):
            self._send_report(phase="running")
            self._schedule(self._converge, 0.05)

    def _in_running(self, drains: bool) -> None:
        if not drains:
            self._schedule(self._converge, 0.05)
            return
        grace_s = max(0.0, self._grace_s())
        for slot in self._alive():
            slot.terminate(grace_s)
            self._schedule(slot.kill, grace_s)
        if not self._alive():
            self._flush(interrupted=True)

    def _kill_program(self) -> None:
        for slot in self._alive():
            slot.kill()

    # --- slots --------------------------------------------------------------------------------------------

    def on_slot_ended(self) -> None:
        if self.agent_up:
            self._schedule(self._advance, self.rng.uniform(0, 0.1))

    def _alive(self) -> list[SlotNode]:
        return [slot for slot in self.slots.values() if slot.is_on]

    def _converge(self) -> None:
        if self.disk.report.phase != "running" or self.is_leaving:
            return
        for id, slot in list(self.slots.items()):
            if id not in self._wanted:
                slot.kill()
                del self.slots[id]
        self._never_started &= set(self._wanted)
        for id, wanted in self._wanted.items():
            if id in self.slots:
                if wanted["stop"]:
                    self.slots[id].kill()
            elif wanted["stop"]:
                self._never_started.add(id)
            else:
                self._start(id, wanted)
        ended = {id for id in self._wanted if id in self._never_started or not self.slots[id].is_on}
        states = [{"id": id, "state": "ended" if id in ended else "running"} for id in sorted(self._wanted)]
        self._send_report(slots=states)

    def _start(self, id: str, wanted: dict[str, Any]) -> None:
        place = parse_slot_id(id)
        assert place is not None
        slot = SlotNode(self, id, place[0], int(wanted["rank"]), wanted["token"])
        self.slots[id] = self.world.nodes[id] = slot
        self.world.record(self.name, f"starts {slot.name} on {self.machine_id}")
        self.world.scheduler.after(self.rng.uniform(0.05, 0.3), slot.start_agent)


class SlotNode(Node):
    """The agent of a job of a cluster: a process with a disk and a connection of its own on a host."""

    is_machine = False

    def __init__(self, host: HostNode, id: str, key: tuple[int, int, int], rank: int, token: str) -> None:
        self.host = host
        super().__init__(host.world, host.cloud, id, key, rank, token)

    @property
    def is_ended_with_its_host(self) -> bool:
        """Whether what its machine does explains its end."""
        return self.host.is_leaving or self.host.was_ended_by_fault

    @property
    def disk_full_until(self) -> float:
        return max(self._disk_full_until, self.host.disk_full_until)

    @disk_full_until.setter
    def disk_full_until(self, until: float) -> None:
        self._disk_full_until = until

    def terminate(self, grace_s: float) -> None:
        """SIGTERM: the machine goes down."""
        if self.agent_up and self.disk.notice is None:
            self.had_notice = True
            self.disk.notice = {"deadline": self._clock.now() + grace_s, "action": "shutdown", "source": "SIGTERM"}
            self._send({"type": "notice", **self.disk.notice})
            self._schedule(self._on_notice_unanswered, 1.0)

    def kill(self) -> None:
        """The end of its processes, while the machine runs on."""
        if not self.is_on:
            return
        self.is_on = self.agent_up = False
        self._kill_program()
        if self.link is not None:
            self.link.close_by_node()
        self.host.on_slot_ended()

    def crash_agent(self) -> None:
        """Its agent is not started again: what it ran is killed."""
        if self.is_on:
            self.was_ended_by_fault = True
            self.kill()
            self.world.fail_peers_of(self)

    vanish = crash_agent

    def poll_notice(self) -> None:
        """It has no metadata service: its host has."""

    def _end(self, **outcome: Any) -> None:
        super()._end(**outcome)
        if self.disk.notice is not None:
            self._schedule(self.kill, self.rng.uniform(0.1, 2.0))

    def _power_off(self) -> None:
        self.kill()

    def _on_program_exit(self, program_exit: ProgramExit) -> None:
        if self.is_on:
            super()._on_program_exit(program_exit)
