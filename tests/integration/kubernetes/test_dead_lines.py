"""A line to an API server that swallows everything, behind a proxy that keeps it open: nothing is lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.notice_queue import MachineSignal, Signal
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.controller.runtime.clock import SystemClock
from support.fakes.kube import FakeKube
from support.helpers.timing import wait_until

MAX_UNNOTICED_S = 30.0


class Line:
    """A TCP proxy to the API server. Once cut, it still accepts connections, and forwards nothing.

    A connection from before the cut never carries anything again, as through a router that has forgotten it. What
    later ones sent arrives when the line is mended.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._carries = threading.Event()
        self._carries.set()
        self._cuts = 0
        self._sockets: list[socket.socket] = []
        self.accepted_at: list[float] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cuts += 1
        self._carries.clear()

    def mend(self) -> None:
        self._carries.set()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted_at.append(time.monotonic())
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, target, self._cuts), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, cuts: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._carries.wait()
                if self._cuts == cuts:
                    target.sendall(data)
            if self._cuts == cuts:
                target.shutdown(socket.SHUT_WR)


@pytest.fixture
def line(kube: FakeKube, tmp_path: Path) -> Iterator[Line]:
    line = Line(int(kube.url.rpartition(":")[2]))
    config = kube.kubeconfig_data()
    config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{line.port}"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    yield line
    line.close()


@pytest.mark.slow
def test_line_that_swallows_everything__is_noticed_and_the_notice_comes_late_but_comes(
    kube: FakeKube,
    line: Line,
    new_cloud: Callable[..., KubernetesCloud],
    request_of: Callable[..., LaunchRequest],
    tmp_path: Path,
) -> None:
    kube.add_node("n1")
    cloud = new_cloud(kubeconfig=str(tmp_path / "kubeconfig"))
    (queue,) = cloud.notice_queues()
    assert isinstance(queue, ContextWatch)
    signals: list[MachineSignal] = []

    def consume() -> None:
        while not queue._stopped.is_set():
            messages = queue.receive()
            signals.extend(signal for message in messages for signal in queue.parse(message))
            queue.delete(messages)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    try:
        kept, ended = (cloud.launch(request_of(token))[0].id for token in ("kept", "ended"))
        for id in (kept, ended):
            wait_until(lambda id=id: queue.pods.find(id), "the pods in the watch", 10)  # type: ignore[misc]
        assert queue.nodes.find("n1") is not None
        line.cut()
        cut_at, watches = time.monotonic(), kube.calls["WATCH pods"]
        kube.delete_pod(ended, 120)
        wait_until(lambda: [one for one in line.accepted_at if one > cut_at][1:], "new lines of both watches", 60)
        assert [one for one in line.accepted_at if one > cut_at][1] - cut_at < MAX_UNNOTICED_S
        assert not signals, "what nobody can see is the end of no pod"
        line.mend()
        notice = wait_until(lambda: next(iter(signals), None), "the notice", 10)
        assert (notice.signal, notice.instance_id) == (Signal.NOTICE, ended)
        assert notice.deadline is not None
        assert 60 < notice.deadline - SystemClock().now() < 120, "the deadline that the API server stated"
        wait_until(lambda: kube.calls["WATCH pods"] > watches, "the next watch", 10)
        assert kept not in [one.instance_id for one in signals]
    finally:
        queue.stop()
