"""Rejections of `host up|upgrade|down`: one sentence that says what to do, and nothing is created."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.controller.__main__ import main
from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.hosted_controller import Hosted


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("options", "config", "error"),
    [
        ("--infra aws", "", "name a cloud and its region"),
        ("--infra mars/x", "", "unknown cloud 'mars'"),
        ("--infra aws/us-east-1", "", "add a section `aws:`"),
        ("--infra kubernetes/mine", "kubernetes: {}", "cannot use kubernetes yet"),
        ("--infra local", "local: false", "turns it off"),
        ("--infra local/nowhere", "", "sells nothing in local/nowhere"),
        ("--infra local --instance-type big", "", "choose among local-1"),
        ("--infra local --allow-cidr everybody", "", "write an IP network"),
        ("--infra local", "listen: {prot: 1}", "no such setting"),
    ],
)
def test_host_up__rejects_bad_request(
    options: str, config: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    assert main(["host", "up", "--home", str(tmp_path), *options.split()]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / hosted_controller.FILE).exists()
    assert not (tmp_path / "controllers").exists()


def test_host_up__rejects_another_place_than_that_of_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Hosted(
        hosted_controller.DOWN, "hosting-1", "aws/us-east-1", 8443, cloud="aws", region="us-east-1", disk="vol-1"
    )
    hosted_controller.save(tmp_path, before)
    assert main(["host", "up", "--home", str(tmp_path), "--infra", "local"]) == 2
    assert "has its state in aws/us-east-1" in capsys.readouterr().err
    assert hosted_controller.load(tmp_path) == before


def test_host_upgrade_and_down__without_a_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "upgrade", "--home", str(tmp_path)]) == 2
    assert "bring one up" in capsys.readouterr().err
    assert main(["host", "down", "--home", str(tmp_path)]) == 0
    assert "No controller is up" in capsys.readouterr().out
