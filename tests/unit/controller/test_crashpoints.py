"""The hook by which tests kill the daemon: armed by name alone, and every name is somewhere in the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.controller import crashpoints

CONTROLLER = Path(crashpoints.__file__).parent


def test_every_declared_point_is_somewhere_in_the_daemon_and_only_there() -> None:
    sources = [path.read_text() for path in CONTROLLER.rglob("*.py")]
    reached = [name for text in sources for name in re.findall(r"\breach\(\"([^\"]+)\"\)", text)]
    assert sorted(reached) == sorted(crashpoints.POINTS)


@pytest.mark.parametrize(
    ("wanted", "said"), [("launch.caled", "no crash point 'launch.caled'"), ("launch.called:0", "'0' is no number")]
)
def test_a_daemon_with_an_unknown_point_does_not_start_and_changes_nothing(
    tmp_path: Path, wanted: str, said: str
) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-m", "perdure.controller", "serve", "--home", str(home)],
        env={**os.environ, crashpoints.VARIABLE: wanted},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"PERDURE_CRASH_AT: {'there is ' if 'no crash' in said else ''}{said}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.exists()


def test_only_the_armed_point_kills_and_only_at_its_time() -> None:
    code = (
        "from perdure.controller import crashpoints as c\n"
        "c.arm('launch.called:2')\n"
        "c.reach('launch.calling'); c.reach('launch.calling'); c.reach('launch.called'); print('alive', flush=True)\n"
        "c.reach('launch.called'); print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    assert done.stdout == "alive\n"
    assert done.stderr == "crash point launch.called:2 is reached\n"
