"""The state that the agent needs when it is killed and started again on the same machine.

Most state is on the disk anyway: a stage's progress in its folder (`workload.stage`), the log's length in the log, the
checkpoints in their journal. Files hold secrets, so only their owner may read them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from perdure.agent import clock
from perdure.agent.notices.notice import Notice

RESERVED_BYTES = 16 * 1024
DEADLINE_TOLERANCE_S = 1.0  # a repeated deadline differs by the time that it was on its way
TARGETS = ("wait", "setup", "run", "finish", "drain", "stop")


@dataclass(frozen=True)
class Directive:
    """The state that the controller wants this node to reach. `deadline`: time of `clock`."""

    target: str = "wait"
    node_ips: tuple[str, ...] = ()
    deadline: float | None = None
    reason: str = ""

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Directive:
        """Raises ValueError for an unknown target."""
        if raw.get("target") not in TARGETS:
            raise ValueError(f"unknown directive {raw.get('target')!r}")
        deadline = raw.get("deadline")
        return cls(
            target=raw["target"],
            node_ips=tuple(raw.get("node_ips") or ()),
            deadline=None if deadline is None else float(deadline),
            reason=str(raw.get("reason") or ""),
        )

    def reaches(self, target: str) -> bool:
        """Whether this is `target` or comes after it."""
        return TARGETS.index(self.target) >= TARGETS.index(target)

    def followed_by(self, newer: Directive) -> Directive:
        """The directive in force after `newer` was received: directives only move forward."""
        if not newer.reaches(self.target):
            return self
        if self.deadline is not None and newer.deadline is not None:
            is_same = abs(newer.deadline - self.deadline) < DEADLINE_TOLERANCE_S
            return replace(newer, deadline=self.deadline) if is_same else newer
        return newer


@dataclass(frozen=True)
class State:
    """What `state.json` holds."""

    directive: Directive = Directive()
    prepared: bool = False  # files are in place, not just begun
    drain_started_at: float | None = None  # time of `clock`
    notice: Notice | None = None  # the newest final notice, as it is sent to the controller
    notice_deadline: float | None = None  # the earliest deadline of all final notices, as a time of `clock`
    boot_id: str = field(default_factory=clock.boot_id)  # the boot that the times of `clock` belong to
    ended: dict[str, Any] | None = None  # the final report, once there is one
    wanted_revision: int = 0  # of the node spec: the newest that the controller has announced
    ready_revision: int = -1  # the newest whose program was ready


class StateFile:
    """The state, written to disk whenever it changes."""

    def __init__(self, path: Path, *, log: Callable[[str], None] = lambda _line: None) -> None:
        self._path = path
        self._log = log
        self.state = _read(path)
        reserve_disk_space(path)

    def update(self, **changes: Any) -> None:
        """Replace fields of the state and store it, whole or not at all.

        A disk that cannot be written loses what a restarted agent would need; it must not end the workload.
        """
        self.state = replace(self.state, **changes)
        try:
            write_json(self._path, asdict(self.state))
        except OSError as error:
            self._log(f"storing the agent's state failed; it is lost if the agent dies: {error}")
        reserve_disk_space(self._path)


def write_json(path: Path, value: Any) -> None:
    """Store JSON so that a reader sees the old value or the new one, never a part. Readable by its owner alone.

    On a full disk it uses the space that `reserve_disk_space` set aside. Raises OSError.
    """
    data = json.dumps(value).encode()
    temporary = path.with_name(path.name + ".new")
    try:
        with open(os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        try:
            os.replace(_reserve_path(path), temporary)
        except FileNotFoundError:
            raise error from None
        with open(temporary, "r+b") as file:
            file.write(data)
            file.truncate()
    os.replace(temporary, path)


def reserve_disk_space(path: Path) -> None:
    """Set disk blocks aside for the next `write_json` to `path`, which may happen when the disk is full."""
    reserve = _reserve_path(path)
    if reserve.exists():
        return
    try:
        with open(os.open(str(reserve), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(bytes(RESERVED_BYTES))
    except OSError:
        if reserve.exists():
            os.unlink(reserve)  # incomplete, so it cannot be relied on


def _reserve_path(path: Path) -> Path:
    return path.with_name(path.name + ".reserve")


def read_json(path: Path) -> Any | None:
    """What `write_json` stored; None when there is no readable file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _read(path: Path) -> State:
    raw = read_json(path)
    if not isinstance(raw, dict):
        return State()
    known = {f.name: raw[f.name] for f in fields(State) if f.name in raw}
    known["directive"] = Directive.parse(known["directive"]) if "directive" in known else Directive()
    known["notice"] = Notice(**known["notice"]) if known.get("notice") else None
    state = State(**known)
    return state if state.boot_id == clock.boot_id() else _after_reboot(state)


def _after_reboot(state: State) -> State:
    """The state after a reboot: of a drain's times, only the fact that it began is still valid."""
    return replace(
        state,
        directive=replace(state.directive, deadline=None),
        drain_started_at=None if state.drain_started_at is None else clock.now(),
        notice_deadline=None,
        boot_id=clock.boot_id(),
    )
