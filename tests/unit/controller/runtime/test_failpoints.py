"""Failpoints are enabled by name, and every declared name is used exactly once in the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.controller.runtime import failpoints

CONTROLLER = Path(failpoints.__file__).parents[1]


def test_failpoints__each_is_used_once_in_the_controller() -> None:
    sources = [path.read_text() for path in CONTROLLER.rglob("*.py")]
    used = [name for text in sources for name in re.findall(r"\bfailpoint\(\"([^\"]+)\"\)", text)]
    of_features = failpoints.CLUSTER_FAILPOINTS + failpoints.SERVICE_FAILPOINTS + failpoints.NOTIFICATION_FAILPOINTS
    assert sorted(used) == sorted(failpoints.FAILPOINTS + failpoints.COMMAND_FAILPOINTS + of_features)


@pytest.mark.parametrize(
    ("spec", "error"),
    [("launch.caled", "there is no failpoint 'launch.caled'"), ("launch.called:0", "'0' is not a number")],
)
def test_serve__unknown_failpoint_prevents_start_and_changes_nothing(tmp_path: Path, spec: str, error: str) -> None:
    home = tmp_path / "home"
    process = subprocess.run(
        [sys.executable, "-m", "perdure.controller", "serve", "--home", str(home)],
        env={**os.environ, failpoints.VARIABLE: spec},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert f"PERDURE_FAILPOINT: {error}" in process.stderr
    assert "Traceback" not in process.stderr
    assert not home.exists()


def test_failpoint__kills_only_when_enabled_and_only_the_nth_time() -> None:
    code = (
        "from perdure.controller.runtime import failpoints as f\n"
        "f.enable('launch.called:2')\n"
        "for point in ('launch.calling', 'launch.calling', 'launch.called'): f.failpoint(point)\n"
        "print('alive', flush=True)\n"
        "f.failpoint('launch.called'); print('never')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == -9
    assert process.stdout == "alive\n"
    assert process.stderr == "failpoint launch.called:2 reached\n"
