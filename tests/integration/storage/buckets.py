"""Buckets on this disk and on fake servers, each read without rclone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config

from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.gcs import GcsStore
from perdure.controller.runtime.clock import SystemClock
from support.fakes.azurite import ACCOUNT, KEY, Azurite
from support.fakes.gcs import FakeGcs

KEY_ID, SECRET = "AKIATESTKEY", "secret-that-no-argument-list-may-show"

SLOW_BUT_ON_S3 = pytest.mark.parametrize(
    "bucket", ["s3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("local", "gcs", "azure"))], indirect=True
)
"""Of a test that takes long on every store, and whose subject is the mount: `make test` runs it on S3 alone."""


@dataclass
class S3Server:
    """moto's server in a separate process that can be frozen and continued."""

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


@dataclass
class LocalBucket:
    """A bucket of a local store, read without rclone."""

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
    """A bucket of the S3 server, read with boto3."""

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
        for entry in self.server.client.list_objects_v2(Bucket=self.name).get("Contents", []):
            self.server.client.delete_object(Bucket=self.name, Key=entry["Key"])
        self.server.client.delete_bucket(Bucket=self.name)


@dataclass
class GcsBucket:
    """A bucket of Google, read directly from the fake; nodes get the credentials that a controller gives them."""

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
    """An Azure container, read with Microsoft's client; nodes get the credentials that a controller gives them."""

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


class Mountable(Protocol):
    """What a mount has to know of a bucket. `backend`: rclone's configuration, with current credentials."""

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> Mapping[str, Any]: ...


NewS3Bucket = Callable[[], S3Bucket]
Bucket = LocalBucket | S3Bucket | GcsBucket | AzureBucket
