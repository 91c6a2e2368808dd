"""What a node goes by, from all that it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent import clock
from perdure.agent import orders as orders_module
from perdure.agent.notices import Notice
from perdure.agent.orders import DrainNow, Orders, StopNow
from perdure.agent.state import Directive, StateFile
from perdure.controller.clock import SystemClock

wall = SystemClock().now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture
def orders(path: Path) -> Orders:
    return fresh(path)


def fresh(path: Path) -> Orders:
    return Orders(StateFile(path), log=lambda _: None)


def direct(orders: Orders, want: str, **fields: object) -> None:
    orders.direct({"want": want, "node_ips": ["10.0.0.1"], **fields})


def test_directives_only_move_forward(orders: Orders) -> None:
    direct(orders, "run")
    direct(orders, "wait")
    direct(orders, "setup")
    assert orders.state.directive.want == "run"
    orders.look()
    direct(orders, "drain")
    with pytest.raises(DrainNow):
        orders.look()
    orders.look(drainable=False)
    direct(orders, "stop")
    direct(orders, "drain")
    with pytest.raises(StopNow):
        orders.look(drainable=False)


def test_an_unknown_directive_changes_nothing(orders: Orders) -> None:
    direct(orders, "run")
    with pytest.raises(ValueError, match="dance"):
        direct(orders, "dance")
    assert orders.state.directive.want == "run"


def test_all_of_it_outlives_the_agent(orders: Orders, path: Path) -> None:
    began = clock.now()
    direct(orders, "drain", deadline=began + 123.0, reason="preempted")
    orders.give_notice(Notice(clock.to_wall(began + 99.0), "terminate", "imds-v2"))
    orders.remember(prepared=True, ended={"phase": "ended"})
    again = fresh(path)
    assert again.state == orders.state
    assert again.state.directive == Directive("drain", ("10.0.0.1",), began + 123.0, "preempted")
    assert again.state.drain_began is not None
    assert again.deadline(60) == pytest.approx(began + 99.0, abs=0.01)


def test_times_of_another_boot_are_worth_nothing(orders: Orders, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock began anew: a deadline of before would be days away."""
    direct(orders, "drain", deadline=clock.now() + 10**6)
    orders.give_notice(Notice(clock.to_wall(clock.now() + 10**6), "terminate", "imds-v2"))
    monkeypatch.setattr(clock, "boot_id", lambda: "another")
    again = fresh(path)
    assert again.state.directive.want == "drain"
    assert again.state.notice == orders.state.notice, "it is still said"
    deadline = again.deadline(60)
    assert deadline is not None
    assert deadline <= clock.now() + 60


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_a_wall_clock_that_is_set_moves_no_deadline(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    orders.give_notice(Notice(wall() + 100, "terminate", "imds-v2"))
    direct(orders, "drain")
    before = orders.deadline(60)
    assert before is not None
    monkeypatch.setattr(clock.time, "time", lambda: wall() + by_s)
    assert orders.deadline(60) == before
    assert 90 < before - clock.now() <= 100
    assert clock.to_wall(before) == pytest.approx(wall() + by_s + 100, abs=5), "as the workload is told now"


def test_a_broken_state_file_is_an_empty_one(path: Path) -> None:
    path.write_text('{"directive": {"wa')
    assert fresh(path).state.directive.want == "wait"


def test_the_state_is_the_owners_alone(orders: Orders, path: Path) -> None:
    direct(orders, "run")
    assert path.stat().st_mode & 0o077 == 0


def test_an_unanswered_notice_becomes_a_drain(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    direct(orders, "run")
    notice = Notice(wall() + 500.0, "terminate", "imds-v2")
    assert orders.give_notice(notice) is True
    assert orders.give_notice(notice) is False
    orders.look()
    monkeypatch.setattr(orders_module, "UNANSWERED_S", 0.0)
    with pytest.raises(DrainNow):
        orders.look()
    assert orders.deadline(60) == pytest.approx(clock.now() + 500.0, abs=5)
    assert orders.state.directive.node_ips == ("10.0.0.1",)


def test_a_rebalance_becomes_nothing(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "UNANSWERED_S", 0.0)
    direct(orders, "run")
    assert orders.give_notice(Notice(None, "rebalance", "imds-v2")) is True
    orders.look()


def test_the_earliest_deadline_counts(orders: Orders) -> None:
    assert orders.deadline(60) is None
    direct(orders, "drain")
    began = orders.state.drain_began
    assert began is not None
    assert abs(began - clock.now()) < 5
    assert orders.deadline(60) == began + 60
    direct(orders, "drain", deadline=began + 40)
    assert orders.deadline(60) == began + 40
    orders.give_notice(Notice(clock.to_wall(began + 20), "terminate", "imds-v2"))
    assert orders.deadline(60) == pytest.approx(began + 20, abs=0.01)
    assert orders.state.drain_began == began


def test_who_is_written_off_stops(orders: Orders) -> None:
    orders.write_off()
    with pytest.raises(StopNow):
        orders.until(lambda: True)
