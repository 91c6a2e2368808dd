"""Finds out how far apart from this computer a machine can be here, by trying."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.clouds.local import machine

NOTES = {
    machine.OVERLAY: (),
    machine.BIND: (
        "an overlay could not be had: this computer's own folders are read-only in a machine, "
        "new ones can be made beside them",
    ),
    machine.PROCESSES: (
        "machines share this computer's file system and processes: namespaces could not be had. "
        "Keep a task's paths below ~, and run the daemon as root for more",
    ),
}
TRY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Isolation:
    """`kind`: the best that was had. `failures`: kind → why not, for those tried before it."""

    kind: str
    failures: dict[str, str]

    @property
    def notes(self) -> tuple[str, ...]:
        return (*NOTES[self.kind], *(f"no {kind} machine: {why}" for kind, why in self.failures.items()))


def host_python() -> list[str]:
    """How to start this package's own processes: this interpreter, without what the site's start-up files load."""
    return [sys.executable, "-S", "-m"]


def host_environment() -> dict[str, str]:
    """All that such a process gets of the daemon's environment, which may hold secrets."""
    import_root = Path(__file__).parents[4]
    return {"PYTHONPATH": str(import_root), "LC_ALL": "C.UTF-8"}


def find(wanted: str, plan: dict[str, Any], folder: Path) -> Isolation:
    """Try kinds, best first, with a machine that ends at once. `wanted` other than "auto": that kind, tried or not."""
    kinds = (machine.OVERLAY, machine.BIND) if os.geteuid() == 0 else (machine.BIND,)
    failures: dict[str, str] = {}
    if wanted != "auto":
        return Isolation(wanted, failures)
    for kind in kinds:
        if (why := _try(kind, plan, folder)) is None:
            return Isolation(kind, failures)
        failures[kind] = why
    return Isolation(machine.PROCESSES, failures)


def _try(kind: str, plan: dict[str, Any], folder: Path) -> str | None:
    with tempfile.TemporaryDirectory(prefix=".try-", dir=folder) as disk:
        try:
            done = subprocess.run(
                [*host_python(), machine.__name__, kind, json.dumps(plan)],
                cwd=disk,
                env=host_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TRY_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not start within {TRY_TIMEOUT_S:g} s"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None
