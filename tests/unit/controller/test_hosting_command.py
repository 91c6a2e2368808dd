"""What `controller up|upgrade|down` refuse: one sentence that says what to do, and nothing is made."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.controller.__main__ import main
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import NotYet
from perdure.controller.clouds.fake import FakeCloud, FakeError
from perdure.controller.hosting import asking
from perdure.sdk import hosted
from perdure.sdk.hosted import Hosted


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("words", "config", "said"),
    [
        ("--infra aws", "", "name a cloud and its region"),
        ("--infra mars/x", "", "unknown cloud 'mars'"),
        ("--infra aws/us-east-1", "", "add a section `aws:`"),
        ("--infra kubernetes/mine", "kubernetes: {}", "choose another cloud"),
        ("--infra local", "local: false", "turns it off"),
        ("--infra local/nowhere", "", "sells nothing in local/nowhere"),
        ("--infra local --instance-type big", "", "choose among local-1"),
        ("--infra local --callers everybody", "", "write an IP network"),
        ("--infra local", "listen: {prot: 1}", "no such setting"),
    ],
)
def test_up(words: str, config: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(config)
    assert main(["host", "up", "--home", str(tmp_path), *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / hosted.FILE).exists()
    assert not (tmp_path / "controllers").exists()


def test_another_place_than_that_of_the_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Hosted(hosted.DOWN, "hosting-1", "aws/us-east-1", 8443, cloud="aws", region="us-east-1", disk="vol-1")
    hosted.write(tmp_path, before)
    assert main(["host", "up", "--home", str(tmp_path), "--infra", "local"]) == 2
    assert "has its state in aws/us-east-1" in capsys.readouterr().err
    assert hosted.read(tmp_path) == before


def test_who_may_not_bring_one_up_is_told_what_it_takes() -> None:
    cloud = FakeCloud(ManualClock())
    cloud.name = "gcp"

    def refused() -> None:
        raise FakeError("BadCredentials", "no")

    with pytest.raises(
        asking.CannotHost, match=r"making the disk: .*no; .*needs what deploy/iam/gcp-up\.yaml lists, too"
    ):
        asking.asked("making the disk", cloud, refused)


def test_what_takes_too_long_is_told_with_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MACHINE_S", 0.0)

    def never() -> None:
        raise NotYet("the disk is not ready yet")

    with pytest.raises(asking.CannotHost, match="buying a machine: the disk is not ready yet; do it again"):
        asking.step("buying a machine", FakeCloud(ManualClock()), never, pause_s=0.0)


def test_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "upgrade", "--home", str(tmp_path)]) == 2
    assert "bring one up" in capsys.readouterr().err
    assert main(["host", "down", "--home", str(tmp_path)]) == 0
    assert "No controller is up" in capsys.readouterr().out
