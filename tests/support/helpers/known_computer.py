"""Remembers what every controller with a new home finds out about this computer: it takes a quarter of a second of CPU.

A controller runs rclone and uv for their versions, reads them whole for their digests, and starts a machine to see how
it can be isolated. None of that changes while the tests run. What is remembered is passed on to forked processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from perdure.controller.clouds.bootstrap import artifacts
from perdure.controller.clouds.bootstrap.programs import Program
from perdure.controller.clouds.local.machine import isolation, machine_spec

Value = TypeVar("Value")


def remember() -> None:
    """Find each thing out once, from now on."""
    find_version, find_digest, find_isolation = Program.version_of, artifacts._digest, isolation.detect
    versions: dict[tuple[object, ...], tuple[int, ...]] = {}
    digests: dict[tuple[object, ...], str] = {}
    isolations: dict[int, isolation.Isolation] = {}

    def version_of(program: Program, path: Path) -> tuple[int, ...]:
        return _once(versions, path, lambda: find_version(program, path), of=program.name)

    def digest(path: Path) -> str:
        return _once(digests, path, lambda: find_digest(path))

    def detect(kind: str, plan: dict[str, Any], folder: Path) -> isolation.Isolation:
        if kind == "auto" and os.geteuid() in isolations:
            return isolations[os.geteuid()]
        detected = find_isolation(kind, plan, folder)
        if kind == "auto" and not detected.failures:
            isolations[os.geteuid()] = detected
        return detected

    Program.version_of = version_of  # type: ignore[assignment, method-assign]
    artifacts._digest = digest
    isolation.detect = detect


def find_out() -> None:
    """Do it now, for processes that are forked later."""
    with tempfile.TemporaryDirectory(prefix="perdure-known-") as folder:
        home = Path(folder)
        artifacts.build_artifacts(home / "artifacts")
        shared = machine_spec.SharedFolders(home, home / "artifacts", home / "buckets")
        shared.buckets.mkdir()
        isolation.detect("auto", machine_spec.rootfs_plan(shared, "perdure-probe", "127.0.0.1"), home)


def _once(known: dict[tuple[object, ...], Value], path: Path, find: Callable[[], Value], *, of: str = "") -> Value:
    if not path.is_relative_to(sys.prefix):  # a test made it
        return find()
    key = (of, *artifacts._identity(path))
    if key not in known:
        known[key] = find()
    return known[key]
