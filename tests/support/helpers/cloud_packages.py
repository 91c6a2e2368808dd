"""Packages that exist only in a test: modules and metadata in a folder on sys.path, as `pip install` leaves them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest


def install(
    site: Path, patch: pytest.MonkeyPatch, *, package: str, modules: Mapping[str, str], clouds: Mapping[str, str]
) -> None:
    """Install `package`, which provides `clouds` (name → `module:attribute`), until `patch` is undone."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    entry_points = "".join(f"{name} = {value}\n" for name, value in clouds.items())
    (info / "entry_points.txt").write_text(f"[perdure.clouds]\n{entry_points}")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
        patch.setitem(sys.modules, name, ModuleType(name))  # so that `patch` removes the module when it is undone
        del sys.modules[name]
    patch.syspath_prepend(str(site))
