"""What the agent must remember when it is killed and started again on the same machine.

Little is kept here, because most of it lies on the disk anyway: a stage's progress in its folder (`stages`), the log's
length in the log, the checkpoints in their file. Files hold secrets, so the folder is the owner's alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

WANTS = ("wait", "setup", "run", "drain", "stop")


@dataclass(frozen=True)
class Directive:
    """What the controller wants of this node. `deadline` in epoch seconds."""

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
        return newer if newer.reaches(self.want) else self


@dataclass(frozen=True)
class State:
    """`prepared`: files are in place and were not only begun. `ended`: the report of the end, once there is one.

    `notice`: the interruption notice as it is said to the controller. `drain_began`: epoch seconds.
    """

    directive: Directive = Directive()
    prepared: bool = False
    drain_began: float | None = None
    notice: dict[str, Any] | None = None
    ended: dict[str, Any] | None = None


class StateFile:
    """The state, on disk as soon as it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = _read(path)

    def change(self, **changes: Any) -> None:
        """Replace fields of the state and store it, whole or not at all."""
        self.state = replace(self.state, **changes)
        write_json(self._path, asdict(self.state))


def write_json(path: Path, value: Any) -> None:
    """Store JSON so that a reader sees the old or the new, never a part. Readable by the owner alone."""
    aside = path.with_name(path.name + ".new")
    with open(os.open(str(aside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    os.replace(aside, path)


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
    return State(**known)
