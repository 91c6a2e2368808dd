"""A store that does not answer while a node prepares: the node waits for it, says so, and can be called off."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.agent import fuse_mount, storage
from perdure.agent.fetch import Abandoned, Fetcher
from perdure.agent.places import Places
from perdure.agent.spec import NodeSpec
from perdure.agent.storage import NodeStorage, StorageFailed
from perdure.agent.work import Work

pytestmark = pytest.mark.fuse


class Door:
    """A port that refuses every connection until it is opened; then it leads to another one."""

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
    """Stands for the controller's files: there is nothing but rclone."""

    def __init__(self, rclone: Path) -> None:
        self.rclone = rclone

    def files(self, spec: NodeSpec) -> None:
        assert spec.uploads == []

    def tool(self, digest: str) -> Path:
        assert digest == "rclone's"
        return self.rclone

    def abandon(self) -> None: ...


@pytest.fixture
def door(s3_server: Any) -> Iterator[Door]:
    door = Door(int(s3_server.endpoint.rpartition(":")[2]))
    yield door
    door.close()


@pytest.fixture
def prepared(
    node: Any, s3_bucket: Any, rclone: Path, door: Door, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., NodeStorage]]:
    """`prepared(**changes of the mount)`: the storage of a node that reaches its bucket through `door`."""
    monkeypatch.setattr(fuse_mount, "READY_S", 1.0)
    monkeypatch.setattr(storage, "STORE_RETRY_S", 0.05)
    places = Places(node.state_dir)
    places.make()
    made: list[NodeStorage] = []

    def make(**changes: Any) -> NodeStorage:
        mount = node.spec(s3_bucket, rclone={**s3_bucket.backend, "endpoint": door.endpoint}) | changes
        raw = {"version": 1, "job_id": 1, "task_index": 0, "generation": 1, "rank": 0, "num_nodes": 1, "drain_s": 60.0}
        raw |= {"uploads": [], "mounts": [mount], "artifacts": {"rclone": "rclone's"}, "power_off_after_s": 600.0}
        made.append(NodeStorage(NodeSpec.parse(raw), cast(Fetcher, Tools(rclone)), places, keeps_copies=False))
        return made[-1]

    yield make
    for one in made:
        one.unmount()


def told(node: Any) -> str:
    log = node.state_dir / "log"
    return str(log.read_text()) if log.exists() else ""


def test_a_store_that_is_back_is_mounted(prepared: Any, door: Door, node: Any, s3_bucket: Any, until: Any) -> None:
    s3_bucket.put("step-7", b"saved before")
    mounted = prepared()
    work = Work("prepare", lambda: mounted.prepare(with_files=True))
    until(lambda: "trying again" in told(node), timeout_s=30)
    assert not work.is_done()
    door.open()
    until(work.is_done, timeout_s=30)
    work.result()
    assert (node.directory / "checkpoint" / "step-7").read_bytes() == b"saved before"
    assert told(node).count("trying again") == 1


def test_waiting_for_a_store_can_be_called_off(prepared: Any, node: Any, until: Any) -> None:
    mounted = prepared()
    work = Work("prepare", lambda: mounted.prepare(with_files=True))
    until(lambda: "trying again" in told(node), timeout_s=30)
    mounted.abandon_preparing()
    until(work.is_done, timeout_s=10)
    with pytest.raises(Abandoned):
        work.result()


def test_what_can_not_pass_is_not_waited_for(prepared: Any, door: Door, node: Any) -> None:
    door.open()
    with pytest.raises(StorageFailed, match="the bucket does not exist"):
        prepared(bucket="not-there-at-all").prepare(with_files=True)
    assert "trying again" not in told(node)
