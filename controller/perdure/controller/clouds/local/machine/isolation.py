"""Detects, by trying, which kind of isolation this computer supports for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.clouds.local.machine import process_tree

NOTES = {
    process_tree.OVERLAY: (),
    process_tree.BIND: (
        "overlay mounts are unavailable: in a machine, this computer's folders are read-only, "
        "and new folders can be created next to them",
    ),
    process_tree.PROCESSES: (
        "namespaces are unavailable: machines share this computer's file system and processes. "
        "Keep a task's paths below ~, or run the daemon as root for better isolation",
    ),
}
PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Isolation:
    """The isolation of machines on this computer."""

    kind: str  # the best one that works
    failures: dict[str, str]  # better kind → why it does not work

    @property
    def notes(self) -> tuple[str, ...]:
        return (*NOTES[self.kind], *(f"{kind} machines do not work: {why}" for kind, why in self.failures.items()))


def host_python() -> list[str]:
    """The command prefix for this package's own processes: this interpreter, without the site's start-up files."""
    return [sys.executable, "-S", "-m"]


def host_environment() -> dict[str, str]:
    """The environment of such a process. The daemon's own may contain secrets."""
    import_root = Path(__file__).parents[5]
    return {"PYTHONPATH": str(import_root), "LC_ALL": "C.UTF-8"}


def detect(kind: str, plan: dict[str, Any], folder: Path) -> Isolation:
    """Try the kinds, best first, each with a machine that ends immediately. A `kind` other than "auto" is not tried."""
    if kind != "auto":
        return Isolation(kind, {})
    failures: dict[str, str] = {}
    for candidate in (process_tree.OVERLAY, process_tree.BIND) if os.geteuid() == 0 else (process_tree.BIND,):
        if (failure := _probe(candidate, plan, folder)) is None:
            return Isolation(candidate, failures)
        failures[candidate] = failure
    return Isolation(process_tree.PROCESSES, failures)


def _probe(kind: str, plan: dict[str, Any], folder: Path) -> str | None:
    with tempfile.TemporaryDirectory(prefix=".try-", dir=folder) as disk:
        try:
            done = subprocess.run(
                [*host_python(), process_tree.__name__, kind, json.dumps(plan)],
                cwd=disk,
                env=host_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not start within {PROBE_TIMEOUT_S:g} s"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None
