"""The instances of this computer, found in their directories: the directory is the cloud's own record."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base import Instance, InstanceState, Owner
from perdure.controller.clouds.local import layout, locks
from perdure.recovery.reasons import Reason

TOMBSTONE_KEPT_S = 24 * 3600.0
GONE_REASONS = {
    layout.PREEMPTED: Reason.PREEMPTED,
    layout.TERMINATED: Reason.MACHINE_STOPPED,
    layout.STOPPED: Reason.MACHINE_STOPPED,
    layout.CRASHED: Reason.MACHINE_CRASHED,
}


@dataclass(frozen=True)
class Record:
    """One directory: what state.json says, and whether somebody lives there (a launch in progress, or a host)."""

    path: Path
    state: dict[str, Any]
    is_alive: bool

    @property
    def was_abandoned(self) -> bool:
        """Its launch was cut short before the machine ran; a launch with the same token finishes it."""
        return self.state["state"] == layout.LAUNCHING and not self.is_alive

    @property
    def is_gone(self) -> bool:
        return self.state["state"] == layout.ENDED or not self.is_alive

    @property
    def zone(self) -> str:
        return str(self.state["instance"]["zone"])

    @property
    def ip(self) -> str:
        return str(self.state["instance"]["ip"])


class Instances:
    """Reads `folder`, one directory per instance. Shared by threads, and by processes."""

    def __init__(self, cloud: str, folder: Path) -> None:
        self._cloud = cloud
        self.folder = folder
        # What has ended stays so: a day's tombstones are read once.
        self._ended: dict[str, Record] = {}
        self._lock = threading.Lock()

    def get(self, instance_id: str) -> Record | None:
        """None if there is no such instance, or its remains tell nothing."""
        path = self.folder / instance_id
        if path.parent != self.folder or instance_id.startswith("."):
            return None
        with self._lock:
            if known := self._ended.get(instance_id):
                return known if path.is_dir() else None
        # First the lock, then the state: a host writes its last state before it lets go.
        is_alive = locks.is_held(str(path / layout.LOCK))
        state = layout.read_json(str(path / layout.STATE))
        if state is None:
            return None
        # A host that was killed takes its machine along, a moment later.
        is_alive = is_alive or _first_process_lives(state)
        record = Record(path, state, is_alive)
        if state["state"] == layout.RUNNING and not is_alive:
            record = self._bury(record)
        if record.state["state"] == layout.ENDED and not locks.is_held(str(path / layout.LOCK)):
            with self._lock:
                self._ended[instance_id] = record
        return record

    def __iter__(self) -> Iterator[Record]:
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                if record := self.get(name):
                    yield record

    def living(self) -> list[Record]:
        return [record for record in self if not record.is_gone]

    def describe(self, record: Record) -> Instance:
        what, state = record.state["instance"], record.state
        return Instance(
            id=what["id"],
            rank=what["rank"],
            owner=Owner(**what["owner"]),
            state=self._stands(record),
            cloud=self._cloud,
            region=what["region"],
            zone=what["zone"],
            instance_type=what["instance_type"],
            ip=what["ip"],
            launched_at=state.get("launched_at"),
            ended_at=state.get("ended_at"),
            gone_reason=self._why_gone(record),
        )

    def prune(self, now: float) -> None:
        """Remove tombstones older than a day, and what launches that were cut short left behind."""
        for entry in list(os.scandir(self.folder)):
            path = self.folder / entry.name
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime < TOMBSTONE_KEPT_S or locks.is_held(str(path / layout.LOCK)):
                    continue
                self.forget(entry.name)

    def forget(self, instance_id: str) -> None:
        """Remove all trace of an instance that is not alive."""
        with self._lock:
            self._ended.pop(instance_id, None)
        layout.remove_all_but_tombstone(str(self.folder / instance_id))
        shutil.rmtree(self.folder / instance_id, ignore_errors=True)

    @staticmethod
    def _stands(record: Record) -> InstanceState:
        if record.is_gone:
            return InstanceState.GONE
        if (record.path / layout.ORDERS / layout.TERMINATE).exists():
            return InstanceState.ENDING
        return InstanceState.PENDING if record.state["state"] == layout.LAUNCHING else InstanceState.RUNNING

    @staticmethod
    def _why_gone(record: Record) -> Reason | None:
        if record.was_abandoned:
            return Reason.MACHINE_CRASHED
        return GONE_REASONS[record.state.get("reason", layout.CRASHED)] if record.is_gone else None

    @staticmethod
    def _bury(record: Record) -> Record:
        """Write the tombstone that a host could not, because it was killed or this computer went down."""
        path = record.path
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = locks.hold(str(path / layout.LOCK), wait=False)
            try:
                state = layout.read_json(str(path / layout.STATE))
                if state is not None and state["state"] == layout.RUNNING:
                    last_seen = max(state["launched_at"], (path / layout.LOCK).stat().st_mtime)
                    state.update(state=layout.ENDED, reason=layout.CRASHED, ended_at=last_seen)
                    layout.write_json(str(path / layout.STATE), state)
                layout.remove_all_but_tombstone(str(path))
            finally:
                os.close(lock)
        return Record(path, layout.read_json(str(path / layout.STATE)) or record.state, is_alive=False)


def _first_process_lives(state: dict[str, Any]) -> bool:
    return bool(state["state"] == layout.RUNNING and layout.start_time(state["pid"]) == state["pid_started"])
