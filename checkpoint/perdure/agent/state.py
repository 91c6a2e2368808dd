"""What the agent must remember when it is killed and started again on the same machine.

Little is kept here, because most of it lies on the disk anyway: a stage's progress in its folder (`stages`), the log's
length in the log, the checkpoints in their file. Files hold secrets, so the folder is the owner's alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from perdure.agent import clock

ROOM_BYTES = 16 * 1024
SAME_DEADLINE_S = 1.0  # a deadline that is said again differs by what the way to here took
WANTS = ("wait", "setup", "run", "drain", "stop")


@dataclass(frozen=True)
class Directive:
    """What the controller wants of this node. `deadline`: time of `clock`."""

    want: str = "wait"
    node_ips: tuple[str, ...] = ()
    deadline: float | None = None
    reason: str = ""

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Directive:
        """Raises ValueError when it asks for what this agent does not know."""
        if raw.get("want") not in WANTS:
            raise ValueError(f"unknown directive {raw.get('want')!r}")
        deadline = raw.get("deadline")
        return cls(
            want=raw["want"],
            node_ips=tuple(raw.get("node_ips") or ()),
            deadline=None if deadline is None else float(deadline),
            reason=str(raw.get("reason") or ""),
        )

    def reaches(self, want: str) -> bool:
        """Whether this is `want` or comes after it."""
        return WANTS.index(self.want) >= WANTS.index(want)

    def followed_by(self, newer: Directive) -> Directive:
        """The directive to go by once `newer` came: directives only move forward."""
        if not newer.reaches(self.want):
            return self
        if self.deadline is not None and newer.deadline is not None:
            is_same = abs(newer.deadline - self.deadline) < SAME_DEADLINE_S
            return replace(newer, deadline=self.deadline) if is_same else newer
        return newer


@dataclass(frozen=True)
class State:
    """`prepared`: files are in place and were not only begun. `ended`: the report of the end, once there is one.

    `notice`: the interruption notice as it is said to the controller. `notice_until`: its deadline, and `drain_began`:
    times of `clock`, in the boot of this id.
    """

    directive: Directive = Directive()
    prepared: bool = False
    drain_began: float | None = None
    notice: dict[str, Any] | None = None
    notice_until: float | None = None
    boot: str = field(default_factory=clock.boot_id)
    ended: dict[str, Any] | None = None


class StateFile:
    """The state, on disk as soon as it changes, if the disk takes it."""

    def __init__(self, path: Path, *, log: Callable[[str], None] = lambda _line: None) -> None:
        self._path = path
        self._log = log
        self.state = _read(path)
        keep_room(path)

    def change(self, **changes: Any) -> None:
        """Replace fields of the state and store it, whole or not at all.

        A disk that takes nothing costs what a restarted agent would remember; it must not cost the workload.
        """
        self.state = replace(self.state, **changes)
        try:
            write_json(self._path, asdict(self.state))
        except OSError as error:
            self._log(f"this node's disk does not take the agent's state, which is lost if the agent dies: {error}")
        keep_room(self._path)


def write_json(path: Path, value: Any) -> None:
    """Store JSON so that a reader sees the old or the new, never a part. Readable by the owner alone.

    Where the disk is full, the room is used that `keep_room` has kept. Raises OSError.
    """
    data = json.dumps(value).encode()
    aside = path.with_name(path.name + ".new")
    try:
        with open(os.open(str(aside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        try:
            os.replace(_room(path), aside)
        except FileNotFoundError:
            raise error from None
        with open(aside, "r+b") as file:
            file.write(data)
            file.truncate()
    os.replace(aside, path)


def keep_room(path: Path) -> None:
    """Keep blocks on the disk for the next `write_json` to `path`: it may have to come when there are none left."""
    room = _room(path)
    if room.exists():
        return
    try:
        with open(os.open(str(room), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(bytes(ROOM_BYTES))
    except OSError:
        if room.exists():
            os.unlink(room)  # only a part of it: no room to count on


def _room(path: Path) -> Path:
    return path.with_name(path.name + ".room")


def read_json(path: Path) -> Any | None:
    """What `write_json` stored, or None when there is nothing (or nothing readable)."""
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
    state = State(**known)
    return state if state.boot == clock.boot_id() else _since_boot(state)


def _since_boot(state: State) -> State:
    """The state of a machine that was booted since: of a drain's deadlines no more is known than that it began."""
    return replace(
        state,
        directive=replace(state.directive, deadline=None),
        drain_began=None if state.drain_began is None else clock.now(),
        notice_until=None,
        boot=clock.boot_id(),
    )
