"""When a node of a cluster ends by itself because no controller answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.agent.lifecycle.slot_host import SlotHost
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.main import AUTOSTOP_POWER_OFF_S, _silence_limit_s
from perdure.agent.paths import NodePaths

IDLE_S = 300.0


class Host(SlotHost):
    """A host whose controller has been silent for long, and the clock that it reads."""

    def __init__(self, root: Path) -> None:
        self.now = 1000.0
        paths = NodePaths(root)
        paths.create()
        outbox = Outbox(Report(ip=""), notices=[], sizes=dict)
        super().__init__(paths, outbox, library=root, environ={}, log=print, monotonic=lambda: self.now)
        self.last_contact = lambda: -1e9

    def receive(self, **autostop: Any) -> None:
        self.handle_message({"type": "slots", "slots": [], **autostop})

    def ends_after(self, seconds: float) -> bool:
        """Whether it ends when so much time has passed, and not just before."""
        self.now += seconds - 1.0
        assert not self.is_done()
        self.now += 1.0
        return self.is_done()


def test_idle_node__ends_unless_autostop_is_off(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.receive(autostop_s=None)
    assert not host.ends_after(10 * IDLE_S)
    host.receive(autostop_s=11 * IDLE_S)
    assert host.ends_after(IDLE_S)


def test_node__does_not_end_while_a_controller_answers(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.receive(autostop_s=IDLE_S)
    host.last_contact = lambda: host.now - IDLE_S + 1.0
    assert not host.ends_after(10 * IDLE_S)


def test_session__keeps_a_node_while_it_is_waited_for(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.used_at = lambda: host.now
    host.receive(autostop_s=IDLE_S, wait_for="jobs_and_ssh")
    assert not host.ends_after(10 * IDLE_S)
    host.receive(autostop_s=IDLE_S, wait_for="jobs")
    assert host.is_done()


def test_node_that_waits_for_nothing__counts_from_each_change(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.used_at = lambda: host.now
    host.now += IDLE_S
    host.receive(autostop_s=IDLE_S, wait_for="none", active_at=1.0)
    assert host.ends_after(IDLE_S)
    host.receive(autostop_s=IDLE_S, wait_for="none", active_at=1.0)
    assert host.is_done(), "nothing has changed"
    host.receive(autostop_s=IDLE_S, wait_for="none", active_at=2.0)
    assert host.ends_after(IDLE_S)


@pytest.mark.parametrize(
    ("is_host", "outcome", "limit_s"),
    [
        (True, {"exit_code": 0, "interrupted": False}, AUTOSTOP_POWER_OFF_S),
        (True, {"exit_code": None, "interrupted": True}, 3600.0),
        (True, {"exit_code": 0, "interrupted": True}, 3600.0),
        (True, None, 3600.0),
        (False, {"exit_code": 0, "interrupted": False}, 3600.0),
    ],
)
def test_node_that_stopped_itself__soon_powers_off(
    is_host: bool, outcome: dict[str, object] | None, limit_s: float
) -> None:
    spec: Any = SimpleNamespace(is_host=is_host, power_off_after_s=3600.0)
    assert _silence_limit_s(spec, outcome) == limit_s
    sooner: Any = SimpleNamespace(is_host=is_host, power_off_after_s=5.0)
    assert _silence_limit_s(sooner, outcome) == 5.0


@pytest.mark.parametrize("wait_for", ["jobs", "none"])
def test_setting__survives_a_restart_of_the_agent(tmp_path: Path, wait_for: str) -> None:
    Host(tmp_path).receive(autostop_s=IDLE_S, wait_for=wait_for)
    host = Host(tmp_path)
    host.used_at = lambda: host.now
    host.restore()
    assert host.ends_after(IDLE_S)
