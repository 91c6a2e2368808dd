"""The wheel that is sent to a controller's machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perdure.controller.hosting import bundle


def test_build_wheel__contains_all_packages_and_is_reproducible(tmp_path: Path) -> None:
    name, content = bundle.build_wheel()
    assert bundle.build_wheel() == (name, content)
    (tmp_path / name).write_bytes(content)
    process = subprocess.run(
        [sys.executable, "-I", "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", "lib", name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
    for path in ("recovery/step.py", "agent/main.py", "checkpoint/py.typed", "controller/hosting/installer.py"):
        assert (tmp_path / "lib" / "perdure" / path).is_file()
    assert not list((tmp_path / "lib" / "perdure").glob("__init__.py"))
