"""A store that does not respond while a node prepares: the node waits, reports it, and can be cancelled."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from integration.storage.buckets import S3Bucket, S3Server
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.lifecycle.background_task import BackgroundTask
from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.storage import node_storage, rclone_mount
from perdure.agent.storage.fetch import FetchCancelled, Fetcher
from perdure.agent.storage.node_storage import NodeStorage, StorageFailed

pytestmark = pytest.mark.fuse


class Door:
    """A port that refuses every connection until it is opened; then it forwards to another port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def open(self) -> None:
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                came, _ = self._socket.accept()
                beyond = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((came, beyond), (beyond, came)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Tools:
    """The controller's artifacts: only rclone exists."""

    def __init__(self, rclone: Path) -> None:
        self.rclone = rclone

    def fetch_files(self, spec: NodeSpec) -> None:
        assert spec.uploads == []

    def fetch_tool(self, digest: str) -> Path:
        assert digest == "rclone's"
        return self.rclone

    def cancel(self) -> None: ...


@pytest.fixture
def door(s3_server: S3Server) -> Iterator[Door]:
    door = Door(int(s3_server.endpoint.rpartition(":")[2]))
    yield door
    door.close()


Prepared = Callable[..., NodeStorage]


@pytest.fixture
def prepared(
    node: Node, s3_bucket: S3Bucket, rclone: Path, door: Door, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Prepared]:
    """`prepared(**changes of the mount)`: the storage of a node that reaches its bucket through the door."""
    monkeypatch.setattr(rclone_mount, "READY_S", 1.0)
    monkeypatch.setattr(node_storage, "STORE_RETRY_S", 0.05)
    paths = NodePaths(node.state_dir)
    paths.create()
    made: list[NodeStorage] = []

    def make(**changes: Any) -> NodeStorage:
        mount = node.spec(s3_bucket, rclone={**s3_bucket.backend, "endpoint": door.endpoint}) | changes
        raw: dict[str, Any] = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1}
        raw |= {
            "drain_s": 60.0,
            "uploads": [],
            "mounts": [mount],
            "artifacts": {"rclone": "rclone's"},
            "power_off_after_s": 600.0,
        }
        made.append(NodeStorage(NodeSpec.parse(raw), cast(Fetcher, Tools(rclone)), paths, copies_exist=False))
        return made[-1]

    yield make
    for one in made:
        one.unmount()


def job_log(node: Node) -> str:
    log = node.state_dir / "log"
    return str(log.read_text()) if log.exists() else ""


def test_unavailable_store__is_mounted_once_it_is_back(
    prepared: Prepared, door: Door, node: Node, s3_bucket: S3Bucket, until: Until
) -> None:
    s3_bucket.put("step-7", b"saved before")
    mounted = prepared()
    work = BackgroundTask("prepare", lambda: mounted.prepare(with_files=True))
    until(lambda: "trying again" in job_log(node), timeout_s=30)
    assert not work.is_done()
    door.open()
    until(work.is_done, timeout_s=30)
    work.result()
    assert (node.directory / "checkpoint" / "step-7").read_bytes() == b"saved before"
    assert job_log(node).count("trying again") == 1


def test_unavailable_store__wait_can_be_cancelled(prepared: Prepared, node: Node, until: Until) -> None:
    mounted = prepared()
    work = BackgroundTask("prepare", lambda: mounted.prepare(with_files=True))
    until(lambda: "trying again" in job_log(node), timeout_s=30)
    mounted.cancel_prepare()
    until(work.is_done, timeout_s=10)
    with pytest.raises(FetchCancelled):
        work.result()


def test_permanent_error__is_not_retried(prepared: Prepared, door: Door, node: Node) -> None:
    door.open()
    with pytest.raises(StorageFailed, match="the bucket does not exist"):
        prepared(bucket="not-there-at-all").prepare(with_files=True)
    assert "trying again" not in job_log(node)
