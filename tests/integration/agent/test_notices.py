"""A notice in the metadata is sent at once, and acted upon even without a controller."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.controller.runtime.clock import SystemClock

now = SystemClock().now


class Metadata(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, str] = {}

    def handle_error(self, *_: Any) -> None:
        """A node may die in the middle of a call: do not print it."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def interrupt(self, at: float) -> None:
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.documents["/latest/meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": when})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._answer(200, "metadata-token")

    def do_GET(self) -> None:
        assert isinstance(self.server, Metadata)
        if self.headers.get("X-aws-ec2-metadata-token") != "metadata-token":
            self._answer(401, "")
        elif self.path in self.server.documents:
            self._answer(200, self.server.documents[self.path])
        else:
            self._answer(404, "")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def watching(controller: Controller, node: Node, metadata: Metadata) -> Node:
    controller.spec.update(
        run="trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done",
        notice={"kind": "imds-v2", "endpoint": "http://127.0.0.1:9", "poll_s": 0.05},
    )
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.env["PERDURE_METADATA_ENDPOINT"] = metadata.endpoint
    node.start()
    controller.until_log(b"begun\n")
    return node


def test_notice__is_sent_at_once_and_on_every_connection(
    controller: Controller, watching: Node, metadata: Metadata
) -> None:
    controller.heartbeat_interval_s = 600.0  # at once, not with the next heartbeat
    controller.drop_connections()
    controller.until(lambda: len(controller.hellos) == 2)
    deadline = float(int(now()) + 30)
    metadata.interrupt(deadline)
    controller.until(lambda: controller.notices)
    controller.drop_connections()
    controller.until(lambda: len(controller.notices) == 2)
    for notice in controller.notices:
        assert abs(notice.pop("at") - now()) < 10
        assert notice == {"deadline": deadline, "action": "terminate", "source": "imds-v2"}


def test_notice__becomes_a_drain_without_a_reply(controller: Controller, watching: Node, metadata: Metadata) -> None:
    controller.stop()
    deadline = float(int(now()) + 30)
    metadata.interrupt(deadline)
    watching.until_file(watching.state_dir / "stages/run/result.json")
    controller.start()
    report = controller.until_phase("ended")
    assert report["interrupted"] is True
    controller.until_log(b"saved\n")
    notice = json.loads((watching.run_dir / "notice.json").read_text())
    assert notice == {"deadline": pytest.approx(deadline, abs=0.1), "reason": "notice"}


def test_rebalance__is_sent_and_drains_nothing(controller: Controller, watching: Node, metadata: Metadata) -> None:
    metadata.documents["/latest/meta-data/events/recommendations/rebalance"] = json.dumps(
        {"noticeTime": "2026-01-01T00:00:00Z"}
    )
    controller.until(lambda: controller.notices)
    (output,) = controller.notices
    assert (output["deadline"], output["action"], output["source"]) == (None, "rebalance", "imds-v2")
    heartbeats = controller.heartbeats
    controller.until(lambda: controller.heartbeats > heartbeats + 1)
    assert "ended" not in controller.phases()
    assert not (watching.run_dir / "notice.json").exists()
