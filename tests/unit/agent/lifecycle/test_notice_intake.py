"""The way of a notice: into the desired state and onto the connection, once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from perdure.agent import clock
from perdure.agent.lifecycle.desired_state import DesiredState, DrainNow
from perdure.agent.lifecycle.notice_intake import NoticeIntake
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.notices.notice import Notice
from perdure.agent.state_file import StateFile
from support.helpers.timing import scaled

TERMINATE = Notice(2_000_000_000.0, "terminate", "imds-v2")


class Node:
    def __init__(self, path: Path) -> None:
        self.file = StateFile(path)
        self.desired = DesiredState(self.file, log=lambda _: None)
        self.outbox = Outbox(Report(), notices=[], sizes=dict)
        self.handler = NoticeIntake(self.desired, self.outbox, drain_s=30.0, log=lambda _: None)

    def sent(self) -> list[tuple[object, ...]]:
        frames = self.outbox.take_pending()
        assert {frame["type"] for frame in frames} <= {"notice"}
        return [(frame["deadline"], frame["action"], frame["source"]) for frame in frames]

    def sigterm(self) -> None:
        self.handler.on_sigterm()
        for thread in threading.enumerate():
            if thread.name == "shutdown":
                thread.join(scaled(10))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state.json")


def test_on_notice__stores_and_sends_a_notice_once(node: Node, tmp_path: Path) -> None:
    node.handler.on_notice(TERMINATE)
    node.handler.on_notice(TERMINATE)
    assert node.sent() == [(2_000_000_000.0, "terminate", "imds-v2")]
    assert StateFile(tmp_path / "state.json").state.notice == TERMINATE


def test_on_notice__sends_a_rebalance_and_stores_nothing(node: Node) -> None:
    node.handler.on_notice(Notice(None, "rebalance", "imds-v2"))
    assert node.sent() == [(None, "rebalance", "imds-v2")]
    assert node.desired.state.notice is None


def test_on_notice__is_sent_again_on_every_connection(node: Node) -> None:
    node.handler.on_notice(TERMINATE)
    for _ in range(2):
        hello, notice = node.outbox.opening_frames()
        assert (hello["type"], notice["type"], notice["action"]) == ("hello", "notice", "terminate")


def test_on_sigterm__is_a_notice_with_the_time_of_a_drain(node: Node) -> None:
    node.sigterm()
    ((deadline, action, source),) = node.sent()
    assert (action, source) == ("shutdown", "SIGTERM")
    assert isinstance(deadline, float)
    left_s = node.desired.deadline(30.0)
    assert left_s is None, "a drain begins when the controller does not reply"


def test_on_sigterm__does_not_replace_a_notice_with_less_time(node: Node) -> None:
    notice = Notice(clock.to_wall(clock.now() + 20.0), "terminate", "imds-v2")
    node.handler.on_notice(notice)
    node.sigterm()
    assert node.sent() == [(notice.deadline, "terminate", "imds-v2")]
    assert node.desired.state.notice == notice


def test_on_sigterm__shortens_a_notice_with_more_time(node: Node) -> None:
    node.handler.on_notice(TERMINATE)
    node.sigterm()
    assert [action for _, action, _ in node.sent()] == ["terminate", "shutdown"]
    deadline = node.desired.state.notice_deadline
    assert deadline is not None
    assert deadline <= clock.now() + 30.0


def test_notice__drains_without_a_reply(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.agent.lifecycle.desired_state.NOTICE_REPLY_TIMEOUT_S", 0.0)
    node.handler.on_notice(TERMINATE)
    with pytest.raises(DrainNow):
        node.desired.raise_if_interrupted()
