"""Buckets on this disk and on fake servers, and mounts that are removed after each test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.storage.buckets import AzureBucket, Bucket, GcsBucket, LocalBucket, NewS3Bucket, S3Bucket, S3Server
from integration.storage.conditions import Until, Value
from integration.storage.node import Node
from perdure.agent.storage import fuse
from perdure.agent.storage.mounts import Mounts
from support.fakes import azurite
from support.fakes.azurite import Azurite
from support.fakes.gcs import FakeGcs
from support.helpers.timing import wait_until


@pytest.fixture(scope="session")
def until() -> Until:
    """`until(condition, timeout_s=10)`: waits for the condition's first true value."""

    def wait(condition: Callable[[], Value | None], *, timeout_s: float = 10.0) -> Value:
        return wait_until(condition, timeout_s=timeout_s, poll_s=0.01)

    return wait


@pytest.fixture(scope="session")
def rclone() -> Path:
    beside = Path(sys.executable).parent / "rclone"
    rclone = str(beside) if beside.exists() else shutil.which("rclone")
    if rclone is None:
        pytest.skip("rclone is not installed")
    return Path(rclone)


@pytest.fixture(autouse=True)
def _fuse_or_skip(request: pytest.FixtureRequest) -> None:
    problem = fuse.fuse_problem() if request.node.get_closest_marker("fuse") else None
    if problem:
        pytest.skip(problem)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory, until: Until) -> Iterator[S3Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    with open(tmp_path_factory.mktemp("s3") / "moto.log", "wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            env={key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"},
        )
    try:
        until(answers, timeout_s=60)
        yield S3Server(f"http://127.0.0.1:{port}", process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    if why := azurite.problem():
        pytest.skip(why)
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def gcs_bucket(gcs_server: FakeGcs) -> GcsBucket:
    bucket = GcsBucket(gcs_server, f"ckpt-{uuid.uuid4().hex[:12]}")
    gcs_server.make(bucket.name)
    return bucket


@pytest.fixture
def azure_bucket(azurite_server: Azurite) -> AzureBucket:
    bucket = AzureBucket(azurite_server, f"ckpt-{uuid.uuid4().hex[:12]}")
    bucket.client.create_container()
    return bucket


@pytest.fixture
def local_bucket(tmp_path: Path) -> LocalBucket:
    bucket = LocalBucket(tmp_path / "buckets" / "checkpoints")
    bucket.directory.mkdir(parents=True)
    return bucket


@pytest.fixture
def new_s3_bucket(s3_server: S3Server) -> Iterator[NewS3Bucket]:
    s3_server.resume()

    def make() -> S3Bucket:
        bucket = S3Bucket(s3_server, f"ckpt-{uuid.uuid4().hex[:12]}")
        s3_server.client.create_bucket(Bucket=bucket.name)
        return bucket

    yield make
    s3_server.resume()


@pytest.fixture
def s3_bucket(new_s3_bucket: NewS3Bucket) -> S3Bucket:
    return new_s3_bucket()


# Buckets of Google and Azure have their own tests of what differs; running all others on them is slow.
@pytest.fixture(
    params=["local", "s3", pytest.param("gcs", marks=pytest.mark.slow), pytest.param("azure", marks=pytest.mark.slow)]
)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    bucket: Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


@pytest.fixture
def node(tmp_path: Path, rclone: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node", rclone)
    node.directory.mkdir()
    yield node
    for mounts in node.made:
        mounts.unmount_all()
    for made in node.made[-1:]:
        Mounts(made._specs, state_dir=node.state_dir, rclone=rclone, log=node.lines.append).unmount_all()
    assert node.mountpoints() == []
    assert node.pids() == []
