"""A node that has ended, and is asked to save its home after all."""

from __future__ import annotations

from typing import Any, cast

import pytest

from perdure.agent.lifecycle import home_rescue
from perdure.agent.lifecycle.home_rescue import HomeRescue
from perdure.agent.link.client import ControllerClient, TokenRevoked, Unreachable
from perdure.agent.storage.node_storage import HomeNotKept, NodeStorage

TARGET = {"path": "~", "mode": "MOUNT", "bucket": "perdure-home-1"}


class FakeController:
    """Asks for the home from the second look on."""

    def __init__(self) -> None:
        self.specs: list[dict[str, Any]] = [{"home": None}, {"home": TARGET, "rescue": True}]
        self.reports: list[str] = []

    def spec(self) -> dict[str, Any]:
        return self.specs.pop(0)

    def report_home(self, problem: str) -> None:
        self.reports.append(problem)


class FakeStorage:
    """Saves the home, or cannot: `problem`."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.targets: list[Any] = []

    def rescue_home(self, target: Any) -> None:
        self.targets.append(target)
        if self.problem:
            raise HomeNotKept(self.problem)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_rescue, "RETRY_S", 0.0)


@pytest.mark.parametrize("problem", ["", "saving the home of rank 0: no space left"])
def test_home__is_saved_once_the_controller_asks_for_it(problem: str) -> None:
    controller, storage = FakeController(), FakeStorage(problem)
    rescue = HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, storage), lambda _line: None)
    assert not rescue.save_if_asked()
    assert (storage.targets, controller.reports) == ([], [])
    assert rescue.save_if_asked()
    assert (set(map(str, storage.targets)), controller.reports) == ({str(TARGET)}, [problem])


def test_save__that_fails_once_is_repeated() -> None:
    class Flaky(FakeStorage):
        def rescue_home(self, target: Any) -> None:
            super().rescue_home(target)
            if len(self.targets) == 1:
                raise HomeNotKept("503 SlowDown")

    controller, storage = FakeController(), Flaky("")
    HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, storage), lambda _line: None).wait(
        limit_s=60, poll_s=0
    )
    assert (storage.targets, controller.reports) == ([TARGET] * 2, [""])


class Gone(FakeController):
    """The attempt is gone: the machine was stopped or ended by now."""

    def spec(self) -> dict[str, Any]:
        raise TokenRevoked


@pytest.mark.parametrize(("controller", "reports"), [(FakeController(), [""]), (Gone(), [])])
def test_wait__ends_once_the_home_is_saved_or_the_attempt_is_gone(
    controller: FakeController, reports: list[str]
) -> None:
    storage = FakeStorage("")
    HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, storage), lambda _line: None).wait(poll_s=0.0)
    assert controller.reports == reports


def test_wait__without_a_controller_is_over_at_its_limit() -> None:
    controller = FakeController()
    controller.specs = [{"home": None}] * 100_000
    HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, FakeStorage("")), lambda _line: None).wait(
        poll_s=0.01, limit_s=0.05
    )
    assert controller.reports == []


class BrokenStorage:
    def rescue_home(self, _target: Any) -> None:
        raise RuntimeError("a bug")


def test_problem__of_any_kind_is_reported() -> None:
    controller = FakeController()
    rescue = HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, BrokenStorage()), lambda _line: None)
    rescue.wait(limit_s=60, poll_s=0)
    assert controller.reports == ["saving the home: RuntimeError: a bug"]


def test_report__that_is_lost_is_repeated_without_another_save(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, storage = FakeController(), FakeStorage("")
    controller.specs += controller.specs[1:]
    errors: list[Exception] = [Unreachable("refused"), ValueError("no JSON")]
    controller.specs += controller.specs[1:2]

    def report(problem: str) -> None:
        if errors:
            raise errors.pop(0)
        controller.reports.append(problem)

    monkeypatch.setattr(controller, "report_home", report)
    HomeRescue(cast(ControllerClient, controller), cast(NodeStorage, storage), lambda _line: None).wait(
        limit_s=60, poll_s=0
    )
    assert (storage.targets, controller.reports) == ([TARGET], [""])
