"""Which workdir a job of a cluster runs in, so that the files of a running job never change.

Jobs share `~/sky_workdir` as long as they bring the same files, or none. A job with other files updates it, if no job
runs in it; otherwise the job gets a copy in `~/.sky_workdirs`. What jobs have written there, such as a virtual
environment that `setup` made, is part of the copy. `workload.shared_workdir` puts the files in place, on the agent of
the job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.agent.lifecycle.folder_removals import FolderRemovals
from perdure.agent.state_file import read_json, write_json
from perdure.agent.workload.environment import WORKDIR, home_dir

MAIN = "main"
COPIES = ".sky_workdirs"
_COPY = "copy-"
GIT = "git-"
"""How the id of a workdir begins that is cloned from a git repository: it has a folder of its own."""


@dataclass(frozen=True)
class Workdir:
    """A folder, and the file that says which snapshot it holds. `source`: what it is a copy of, if it is one."""

    path: Path
    record: Path
    source: Workdir | None = None


class SlotWorkdirs:
    """The workdirs of one node. Their assignment is stored, so that a restarted agent knows which are in use."""

    def __init__(self, state_dir: Path, environ: Mapping[str, str], removals: FolderRemovals) -> None:
        self._state_dir = state_dir
        self._environ = environ
        self._removals = removals

    def restore(self) -> None:
        """Remove what an earlier agent has left to be removed."""
        self._removals.resume(home_dir(self._environ) / COPIES)

    def assign(self, slot_id: str, wanted: str | None, running: Collection[str]) -> Workdir:
        """The workdir of a slot that starts. `wanted`: the id of its files, None if it brings none. Raises OSError."""
        self._state_dir.mkdir(mode=0o700, exist_ok=True)
        state = self._load()
        name = self._choose(state, wanted, {state["slots"].get(slot) for slot in running})
        state["current"] = name
        state["slots"][slot_id] = name
        self._store(state)
        workdir = self._workdir(name)
        workdir.path.mkdir(parents=True, exist_ok=True)
        return replace(workdir, source=self._workdir(MAIN)) if name.startswith(_COPY) else workdir

    def release(self, slot_id: str) -> None:
        """Forget a slot that has ended, and remove the copies that nothing uses any more. Raises OSError."""
        if not self._state_dir.is_dir():
            return
        state = self._load()
        state["slots"].pop(slot_id, None)
        kept = {MAIN, state["current"], *state["slots"].values()}
        unused = [name for name in state["ids"] if name not in kept]
        for name in unused:
            del state["ids"][name]
        self._store(state)
        for name in unused:
            self._removals.add(self._workdir(name).path)
            self._workdir(name).record.unlink(missing_ok=True)

    def _choose(self, state: dict[str, Any], wanted: str | None, in_use: Collection[str | None]) -> str:
        current: str = state["current"]
        if wanted is None or state["ids"].get(current) == wanted:
            return current
        if wanted.startswith(GIT):
            name = wanted[: len(GIT) + 12]
        elif MAIN not in in_use:
            name = MAIN
        else:
            state["copies"] += 1
            name = f"{_COPY}{state['copies']}"
        state["ids"][name] = wanted
        return name

    def _workdir(self, name: str) -> Workdir:
        home = home_dir(self._environ)
        path = home / WORKDIR if name == MAIN else home / COPIES / name
        return Workdir(path, self._state_dir / f"{name}.json")

    def _load(self) -> dict[str, Any]:
        return read_json(self._state_dir / "state.json") or {"current": MAIN, "ids": {}, "slots": {}, "copies": 0}

    def _store(self, state: dict[str, Any]) -> None:
        write_json(self._state_dir / "state.json", state)
