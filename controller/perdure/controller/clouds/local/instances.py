"""The instances of this computer, read from their directories, which are the local cloud's only record."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base.protocol import Instance, InstanceState, Owner
from perdure.controller.clouds.local import layout, locks
from perdure.controller.runtime.failpoints import failpoint
from perdure.recovery.reasons import Reason

TOMBSTONE_RETENTION_S = 24 * 3600.0
GONE_REASONS = {
    layout.PREEMPTED: Reason.PREEMPTED,
    layout.TERMINATED: Reason.MACHINE_STOPPED,
    layout.STOPPED: Reason.MACHINE_STOPPED,
    layout.CRASHED: Reason.MACHINE_CRASHED,
}


@dataclass(frozen=True)
class InstanceRecord:
    """One instance's directory."""

    path: Path
    state: dict[str, Any]  # the content of state.json
    is_alive: bool  # a launch is in progress, or its host runs

    @property
    def was_abandoned(self) -> bool:
        """Its launch was interrupted before the machine ran; a launch with the same token completes it."""
        return self.state["state"] == layout.LAUNCHING and not self.is_alive

    @property
    def is_halted(self) -> bool:
        """Nothing runs on it, and its disk is kept. It may be about to be started."""
        return bool(self.state["state"] == layout.HALTED)

    @property
    def is_gone(self) -> bool:
        return not self.is_halted and (self.state["state"] == layout.ENDED or not self.is_alive)

    @property
    def zone(self) -> str:
        return str(self.state["instance"]["zone"])

    @property
    def ip(self) -> str:
        return str(self.state["instance"]["ip"])


class InstanceStore:
    """Reads `folder`, which has one directory per instance. Threads and processes may share it."""

    def __init__(self, cloud: str, folder: Path) -> None:
        self._cloud = cloud
        self.folder = folder
        # An ended instance does not change any more: each tombstone is read once.
        self._ended: dict[str, InstanceRecord] = {}
        self._lock = threading.Lock()

    def get(self, instance_id: str) -> InstanceRecord | None:
        """None if there is no such instance, or its state is unreadable."""
        path = self.folder / instance_id
        if path.parent != self.folder or instance_id.startswith("."):
            return None
        with self._lock:
            if tombstone := self._ended.get(instance_id):
                return tombstone if path.is_dir() else None
        # First the lock, then the state: a host writes its last state before it releases the lock.
        is_alive = locks.is_held(str(path / layout.LOCK))
        state = layout.read_json(str(path / layout.STATE))
        if state is None:
            return None
        # The machine of a killed host ends a moment after it.
        is_alive = is_alive or _is_first_process_alive(state)
        record = InstanceRecord(path, state, is_alive)
        if state["state"] == layout.RUNNING and not is_alive:
            record = self._write_tombstone(record)
        if record.state["state"] == layout.ENDED and not locks.is_held(str(path / layout.LOCK)):
            if layout.has_leftovers(str(path)):
                self._remove_leftovers(path)
            with self._lock:
                self._ended[instance_id] = record
        return record

    def __iter__(self) -> Iterator[InstanceRecord]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                if record := self.get(name):
                    yield record

    def living(self) -> list[InstanceRecord]:
        return [record for record in self if not record.is_gone]

    def describe(self, record: InstanceRecord) -> Instance:
        instance, state = record.state["instance"], record.state
        return Instance(
            id=instance["id"],
            rank=instance["rank"],
            owner=Owner(**instance["owner"]),
            state=self._state(record),
            cloud=self._cloud,
            region=instance["region"],
            zone=instance["zone"],
            instance_type=instance["instance_type"],
            ip=instance["ip"],
            launched_at=state.get("launched_at"),
            ended_at=state.get("ended_at"),
            gone_reason=self._gone_reason(record),
        )

    def prune(self, now: float) -> None:
        """Remove tombstones older than a day, and the leftovers of interrupted launches."""
        for entry in list(os.scandir(self.folder)):
            path = self.folder / entry.name
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime < TOMBSTONE_RETENTION_S or locks.is_held(str(path / layout.LOCK)):
                    continue
                if (record := self.get(entry.name)) is not None and record.is_halted:
                    continue
                self.forget(entry.name)

    def forget(self, instance_id: str) -> None:
        """Remove every trace of an instance that is not alive."""
        with self._lock:
            self._ended.pop(instance_id, None)
        layout.remove_all_but_tombstone(str(self.folder / instance_id))
        shutil.rmtree(self.folder / instance_id, ignore_errors=True)

    @staticmethod
    def _state(record: InstanceRecord) -> InstanceState:
        if record.is_gone:
            return InstanceState.GONE
        if record.is_halted:
            return InstanceState.PENDING if record.is_alive else InstanceState.STOPPED
        if any((record.path / layout.COMMANDS / name).exists() for name in (layout.TERMINATE, layout.STOP)):
            return InstanceState.ENDING
        return InstanceState.PENDING if record.state["state"] == layout.LAUNCHING else InstanceState.RUNNING

    @staticmethod
    def _gone_reason(record: InstanceRecord) -> Reason | None:
        if record.was_abandoned:
            return Reason.MACHINE_CRASHED
        has_ended = record.is_gone or (record.is_halted and not record.is_alive)
        return GONE_REASONS[record.state.get("reason") or layout.CRASHED] if has_ended else None

    @staticmethod
    def _write_tombstone(record: InstanceRecord) -> InstanceRecord:
        """Write the tombstone of a host that was killed, or ended with this computer."""
        path = record.path
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = locks.hold(str(path / layout.LOCK), wait=False)
            try:
                state = layout.read_json(str(path / layout.STATE))
                if state is not None and state["state"] == layout.RUNNING:
                    last_seen = max(state["launched_at"], (path / layout.LOCK).stat().st_mtime)
                    keeps_disk = state["instance"].get("keeps_disk", False)
                    ended = layout.HALTED if keeps_disk else layout.ENDED
                    state.update(state=ended, reason=layout.CRASHED, ended_at=last_seen)
                    layout.write_json(str(path / layout.STATE), state)
                    failpoint("local_machines.ended")
                if state is not None and state["state"] == layout.HALTED:
                    layout.remove_all_but_disk(str(path))
                else:
                    layout.remove_all_but_tombstone(str(path))
            finally:
                os.close(lock)
        return InstanceRecord(path, layout.read_json(str(path / layout.STATE)) or record.state, is_alive=False)

    def end_halted(self, record: InstanceRecord) -> None:
        """Delete the disk of a halted machine, unless it is being started: then its host ends it."""
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = locks.hold(str(record.path / layout.LOCK), wait=False)
            try:
                state = layout.read_json(str(record.path / layout.STATE))
                if state is not None and state["state"] == layout.HALTED:
                    layout.write_json(
                        str(record.path / layout.STATE), {**state, "state": layout.ENDED, "reason": layout.TERMINATED}
                    )
                    layout.remove_all_but_tombstone(str(record.path))
            finally:
                os.close(lock)

    @staticmethod
    def _remove_leftovers(path: Path) -> None:
        """Complete the removal that the writer of the tombstone, a host or a daemon, did not live to complete."""
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = locks.hold(str(path / layout.LOCK), wait=False)
            try:
                layout.remove_all_but_tombstone(str(path))
            finally:
                os.close(lock)


def _is_first_process_alive(state: dict[str, Any]) -> bool:
    return bool(state["state"] == layout.RUNNING and layout.start_time(state["pid"]) == state["pid_started"])
