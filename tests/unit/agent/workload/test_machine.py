"""Background upgrades are stopped on a machine of our own, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.agent.workload import machine


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of a `systemctl` that fails, and apt's folder."""
    path = tmp_path / "calls"
    path.touch()
    command = tmp_path / "systemctl"
    command.write_text(f'#!/bin/sh\necho "$*" >> {path}\necho no such unit >&2\nexit 1\n')
    command.chmod(0o755)
    (tmp_path / "apt").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "APT_SETTINGS", tmp_path / "apt" / "90perdure")
    return path


def test_machine_of_our_own__is_prepared_once(calls: Path) -> None:
    lines: list[str] = []
    for _ in range(2):
        machine.prepare({"PERDURE_OWNS_MACHINE": "1"}, log=lines.append)
    made = calls.read_text().splitlines()
    assert len(made) == 3
    assert "mask --now apt-daily.timer apt-daily-upgrade.timer" in made
    assert not any("--now" in line and "service" in line for line in made), "a run that has begun is not killed"
    assert all("no such unit" in line for line in lines), "a failure is logged, and the job goes on"
    assert machine.APT_SETTINGS.stat().st_mode & 0o777 == 0o644
    assert "Lock::Timeout" in machine.APT_SETTINGS.read_text()


def test_machine_of_others__is_left_alone(calls: Path) -> None:
    machine.prepare({}, log=pytest.fail)
    assert calls.read_text() == ""
    assert not machine.APT_SETTINGS.exists()
