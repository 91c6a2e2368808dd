"""Buckets on this disk and on servers of clouds, and mounts of them that are taken away after each test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

import azurite
from azurite import ACCOUNT, KEY, Azurite
from fake_gcs import FakeGcs
from perdure.agent import fuse
from perdure.agent.mounts import Mounts
from perdure.controller.clock import SystemClock
from perdure.controller.storage.azure import AzureStore
from perdure.controller.storage.gcs import GcsStore

KEY_ID, SECRET = "AKIATESTKEY", "secret-that-no-argument-list-may-show"


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """`until(condition, timeout_s=10)`: the condition's first true value."""

    def wait(condition: Callable[[], Any], *, timeout_s: float = 10.0) -> Any:
        end, pause = time.monotonic() + timeout_s, threading.Event()
        while not (value := condition()):
            assert time.monotonic() < end, "the condition did not come true in time"
            pause.wait(0.01)
        return value

    return wait


@pytest.fixture(scope="session")
def rclone() -> Path:
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None:
        pytest.skip("rclone is not installed")
    return Path(found)


@pytest.fixture(autouse=True)
def _fuse_or_skip(request: pytest.FixtureRequest) -> None:
    problem = fuse.fuse_problem() if request.node.get_closest_marker("fuse") else None
    if problem:
        pytest.skip(problem)


@dataclass
class S3Server:
    """moto's server in a process of its own, which can be made to hang and to go on."""

    endpoint: str
    process: subprocess.Popen[bytes]
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(retries={"max_attempts": 1}),
        )

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., Any]) -> Iterator[S3Server]:
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


@dataclass
class LocalBucket:
    """A bucket of a local store, looked into without rclone."""

    directory: Path
    kind: str = "local"

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def backend(self) -> dict[str, Any]:
        return {"type": "local", "root": str(self.directory.parent)}

    def read(self, key: str) -> bytes | None:
        path = self.directory / key
        return path.read_bytes() if path.is_file() else None

    def put(self, key: str, body: bytes) -> None:
        (self.directory / key).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / key).write_bytes(body)

    def remove(self) -> None:
        shutil.rmtree(self.directory)


@dataclass
class S3Bucket:
    """A bucket of the S3 server, looked into with boto3."""

    server: S3Server
    name: str
    kind: str = "s3"

    @property
    def backend(self) -> dict[str, Any]:
        return {
            "type": "s3",
            "provider": "Other",
            "endpoint": self.server.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "env_auth": False,
        }

    def read(self, key: str) -> bytes | None:
        try:
            return bytes(self.server.client.get_object(Bucket=self.name, Key=key)["Body"].read())
        except self.server.client.exceptions.NoSuchKey:
            return None

    def put(self, key: str, body: bytes) -> None:
        self.server.client.put_object(Bucket=self.name, Key=key, Body=body)

    def remove(self) -> None:
        for found in self.server.client.list_objects_v2(Bucket=self.name).get("Contents", []):
            self.server.client.delete_object(Bucket=self.name, Key=found["Key"])
        self.server.client.delete_bucket(Bucket=self.name)


@dataclass
class GcsBucket:
    """A bucket of Google's, looked into past its API; nodes are given what a controller gives them."""

    server: FakeGcs
    name: str
    kind: str = "gcs"

    @property
    def backend(self) -> dict[str, Any]:
        return GcsStore(endpoint=self.server.url, key_file=str(self.server.key_file)).rclone_remote(self.name)

    def read(self, key: str) -> bytes | None:
        return self.server.objects(self.name).get(key)

    def put(self, key: str, body: bytes) -> None:
        self.server.put(self.name, key, body)

    def remove(self) -> None:
        self.server.remove(self.name)


@dataclass
class AzureBucket:
    """A container, looked into with Microsoft's client; nodes are given what a controller gives them."""

    server: Azurite
    name: str
    kind: str = "azure"
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.server.client().get_container_client(self.name)

    @property
    def backend(self) -> dict[str, Any]:
        store = AzureStore(SystemClock(), account=ACCOUNT, account_key=KEY, endpoint=self.server.endpoint)
        return store.rclone_remote(f"{ACCOUNT}/{self.name}")

    def read(self, key: str) -> bytes | None:
        blob = self.client.get_blob_client(key)
        return bytes(blob.download_blob().readall()) if blob.exists() else None

    def put(self, key: str, body: bytes) -> None:
        self.client.upload_blob(key, body, overwrite=True)

    def remove(self) -> None:
        self.client.delete_container()


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
def new_s3_bucket(s3_server: S3Server) -> Iterator[Callable[[], S3Bucket]]:
    s3_server.resume()

    def make() -> S3Bucket:
        bucket = S3Bucket(s3_server, f"ckpt-{uuid.uuid4().hex[:12]}")
        s3_server.client.create_bucket(Bucket=bucket.name)
        return bucket

    yield make
    s3_server.resume()


@pytest.fixture
def s3_bucket(new_s3_bucket: Callable[[], S3Bucket]) -> S3Bucket:
    return new_s3_bucket()


Bucket = LocalBucket | S3Bucket | GcsBucket | AzureBucket


# What is particular to Google's and Azure's has its own tests; that all else holds there too is a slow one.
@pytest.fixture(
    params=["local", "s3", pytest.param("gcs", marks=pytest.mark.slow), pytest.param("azure", marks=pytest.mark.slow)]
)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return request.getfixturevalue(f"{request.param}_bucket")


@dataclass
class Node:
    """A node's directory: where mounts, state and processes of one test lie."""

    directory: Path
    rclone: Path
    lines: list[str] = field(default_factory=list)
    made: list[Mounts] = field(default_factory=list)
    buckets: dict[str, Bucket] = field(default_factory=dict)  # path → what was mounted there last

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def spec(self, bucket: Any, **changes: Any) -> dict[str, Any]:
        spec = {
            "path": str(self.directory / "checkpoint"),
            "mode": "MOUNT_CACHED",
            "bucket": bucket.name,
            "prefix": "",
            "read_only": False,
            "rclone": bucket.backend,
            "options": {},
        }
        spec |= changes
        self.buckets[str(spec["path"])] = bucket
        return spec

    def mounts(self, *specs: dict[str, Any], with_rclone: bool = True) -> Mounts:
        made = Mounts(
            specs,
            state_dir=self.state_dir,
            rclone=self.rclone if with_rclone else None,
            log=self.lines.append,
            renew=lambda path: self.buckets[path].backend,
        )
        self.made.append(made)
        return made

    def pids(self) -> list[int]:
        """Processes that have this node's directory in their arguments."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if argv[1:2] == [b"mount"] and any(bytes(self.directory) in part for part in argv):
                    found.append(int(name))
        return found

    def mountpoints(self) -> list[str]:
        return [path for path in fuse.mount_table() if path.startswith(str(self.directory))]


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
