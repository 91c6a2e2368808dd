"""How directives and notices add up to the state that a node must reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent import clock
from perdure.agent.lifecycle import desired_state
from perdure.agent.lifecycle.desired_state import DesiredState, DrainNow, StopNow
from perdure.agent.notices.notice import Notice
from perdure.agent.state_file import Directive, StateFile
from perdure.controller.runtime.clock import SystemClock
from support.helpers.module_time import replace_time

wall = SystemClock().now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture
def desired(path: Path) -> DesiredState:
    return new_state(path)


def new_state(path: Path) -> DesiredState:
    return DesiredState(StateFile(path), log=lambda _: None)


def direct(desired: DesiredState, target: str, **fields: object) -> None:
    desired.apply_directive({"target": target, "node_ips": ["10.0.0.1"], **fields})


def test_directive__only_moves_forward(desired: DesiredState) -> None:
    direct(desired, "run")
    direct(desired, "wait")
    direct(desired, "setup")
    assert desired.state.directive.target == "run"
    desired.raise_if_interrupted()
    direct(desired, "drain")
    with pytest.raises(DrainNow):
        desired.raise_if_interrupted()
    desired.raise_if_interrupted(drainable=False)
    direct(desired, "stop")
    direct(desired, "drain")
    with pytest.raises(StopNow):
        desired.raise_if_interrupted(drainable=False)


def test_directive__unknown_target_is_rejected(desired: DesiredState) -> None:
    direct(desired, "run")
    with pytest.raises(ValueError, match="dance"):
        direct(desired, "dance")
    assert desired.state.directive.target == "run"


def test_state__survives_an_agent_restart(desired: DesiredState, path: Path) -> None:
    began = clock.now()
    direct(desired, "drain", deadline=began + 123.0, reason="preempted")
    desired.record_notice(Notice(clock.to_wall(began + 99.0), "terminate", "imds-v2"))
    desired.update(prepared=True, ended={"phase": "ended"})
    restarted = new_state(path)
    assert restarted.state == desired.state
    assert restarted.state.directive == Directive("drain", ("10.0.0.1",), began + 123.0, "preempted")
    assert restarted.state.drain_started_at is not None
    assert restarted.deadline(60) == pytest.approx(began + 99.0, abs=0.01)


def test_state__drops_times_of_an_earlier_boot(
    desired: DesiredState, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock has restarted: a deadline of the earlier boot would be days away."""
    direct(desired, "drain", deadline=clock.now() + 10**6)
    desired.record_notice(Notice(clock.to_wall(clock.now() + 10**6), "terminate", "imds-v2"))
    monkeypatch.setattr(clock, "boot_id", lambda: "another")
    restarted = new_state(path)
    assert restarted.state.directive.target == "drain"
    assert restarted.state.notice == desired.state.notice, "it is still sent"
    deadline = restarted.deadline(60)
    assert deadline is not None
    assert deadline <= clock.now() + 60


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_deadline__ignores_changes_of_the_wall_clock(
    desired: DesiredState, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    desired.record_notice(Notice(wall() + 100, "terminate", "imds-v2"))
    direct(desired, "drain")
    before = desired.deadline(60)
    assert before is not None
    replace_time(monkeypatch, clock, time=lambda: wall() + by_s)
    assert desired.deadline(60) == before
    assert 90 < before - clock.now() <= 100
    assert clock.to_wall(before) == pytest.approx(wall() + by_s + 100, abs=5), "as the workload reads it now"


def test_state__is_empty_when_the_file_is_damaged(path: Path) -> None:
    path.write_text('{"directive": {"wa')
    assert new_state(path).state.directive.target == "wait"


def test_state__is_readable_by_its_owner_alone(desired: DesiredState, path: Path) -> None:
    direct(desired, "run")
    assert path.stat().st_mode & 0o077 == 0


def test_notice__becomes_a_drain_without_a_reply(desired: DesiredState, monkeypatch: pytest.MonkeyPatch) -> None:
    direct(desired, "run")
    notice = Notice(wall() + 500.0, "terminate", "imds-v2")
    assert desired.record_notice(notice) is True
    assert desired.record_notice(notice) is False
    desired.raise_if_interrupted()
    monkeypatch.setattr(desired_state, "NOTICE_REPLY_TIMEOUT_S", 0.0)
    with pytest.raises(DrainNow):
        desired.raise_if_interrupted()
    assert desired.deadline(60) == pytest.approx(clock.now() + 500.0, abs=5)
    assert desired.state.directive.node_ips == ("10.0.0.1",)


def test_notice__rebalance_does_not_drain(desired: DesiredState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired_state, "NOTICE_REPLY_TIMEOUT_S", 0.0)
    direct(desired, "run")
    assert desired.record_notice(Notice(None, "rebalance", "imds-v2")) is True
    desired.raise_if_interrupted()


def test_deadline__is_the_earliest_known(desired: DesiredState) -> None:
    assert desired.deadline(60) is None
    direct(desired, "drain")
    began = desired.state.drain_started_at
    assert began is not None
    assert abs(began - clock.now()) < 5
    assert desired.deadline(60) == began + 60
    direct(desired, "drain", deadline=began + 40)
    assert desired.deadline(60) == began + 40
    desired.record_notice(Notice(clock.to_wall(began + 20), "terminate", "imds-v2"))
    assert desired.deadline(60) == pytest.approx(began + 20, abs=0.01)
    assert desired.state.drain_started_at == began


def test_deadline__is_that_of_the_earliest_notice(desired: DesiredState) -> None:
    direct(desired, "drain")
    began = clock.now()
    for left_s, expected_s in ((50, 50), (20, 20), (40, 20)):
        assert desired.record_notice(Notice(clock.to_wall(began + left_s), "terminate", "imds-v2")) is True
        assert desired.deadline(60) == pytest.approx(began + expected_s, abs=0.01)


def test_revoke__stops_the_node(desired: DesiredState) -> None:
    desired.revoke()
    with pytest.raises(StopNow):
        desired.wait_for(lambda: True)
