"""The wheel of the whole distribution: it is built and serves the dashboard on a machine without Node.js."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from perdure.controller.api.dashboard.assets import FOLDER, load_assets
from support.helpers.controllers import ROOT
from support.helpers.timing import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAX_DASHBOARD_BYTES = 400_000  # in the wheel
STATIC = str(FOLDER.relative_to(ROOT / "controller"))


@pytest.fixture(scope="module")
def without_node() -> dict[str, str]:
    """An environment in which no program is found by its name."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")} | {"PATH": "/nowhere"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, without_node: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), "."]
    built = subprocess.run(
        command, cwd=ROOT, env=without_node, capture_output=True, text=True, timeout=scaled(120), check=False
    )
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("the build backend cannot be downloaded")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_wheel__has_the_built_dashboard_without_its_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {one.filename: one for one in archive.infolist()}
    built = {name: one.compress_size for name, one in files.items() if name.startswith(STATIC)}
    assert {Path(name).name for name in built} >= set(load_assets())
    assert sum(built.values()) < MAX_DASHBOARD_BYTES
    assert not [name for name in files if name.endswith((".ts", ".tsx", ".map")) or "node_modules" in name]


def test_controller__of_the_wheel_serves_the_dashboard(
    wheel: Path, tmp_path: Path, without_node: dict[str, str]
) -> None:
    site, home = tmp_path / "site", tmp_path / "home"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], env=without_node, check=True, timeout=scaled(120))
    environ = {**without_node, "PYTHONPATH": str(site), "PERDURE_HOME": str(home)}

    def perdure(*words: str) -> None:
        command = [sys.executable, "-m", "perdure.cli", *words]
        subprocess.run(command, env=environ, cwd="/", check=True, capture_output=True, timeout=scaled(120))

    perdure("controller", "start")
    try:
        endpoint = json.loads((home / "controller.json").read_text())
        code = Path(f"/proc/{endpoint['pid']}/environ").read_bytes()
        assert str(site).encode() in code, "it is the controller of the wheel"
        for name, asset in load_assets().items():
            path = "/" if name == "index.html" else f"/assets/{name}"
            with urllib.request.urlopen(endpoint["endpoint"] + path, timeout=scaled(10)) as response:
                assert response.read() == asset.plain, name
    finally:
        perdure("controller", "stop")
