"""Servers for buckets, every store with a bucket, and an environment without other credentials."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.gcs import GcsStore
from perdure.controller.buckets.s3 import S3Store
from perdure.controller.buckets.stores import LocalStore, Store
from perdure.controller.runtime.clock import SystemClock
from support.fakes import azurite
from support.fakes.azurite import ACCOUNT, KEY, Azurite
from support.fakes.gcs import FakeGcs

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="package")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="package")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="package")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    if why := azurite.problem():
        pytest.skip(why)
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.fixture
def client(s3_endpoint: str) -> S3Client:
    return boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")


@pytest.fixture(params=["local", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return LocalStore(tmp_path / "buckets")
        case "gcs":
            server = request.getfixturevalue("gcs")
            return GcsStore(endpoint=server.url, key_file=str(server.key_file))
        case "azure":
            endpoint = request.getfixturevalue("blobs").endpoint
            return AzureStore(SystemClock(), account=ACCOUNT, account_key=KEY, endpoint=endpoint)
        case _:
            return S3Store(endpoint=request.getfixturevalue("s3_endpoint"))


@pytest.fixture
def bucket(store: Store) -> Iterator[str]:
    name = f"{ACCOUNT}/ckpt-7" if store.name == "azure" else "ckpt-7"
    yield name
    store.remove(name)


@pytest.fixture
def read(store: Store, request: pytest.FixtureRequest) -> Callable[[str, str], bytes]:
    if isinstance(store, LocalStore):
        return lambda bucket, key: (store.root / bucket / key).read_bytes()
    if isinstance(store, GcsStore):
        return lambda bucket, key: request.getfixturevalue("gcs").objects(bucket)[key]
    if isinstance(store, AzureStore):
        blobs = request.getfixturevalue("blobs")
        return lambda bucket, key: blobs.objects(bucket.partition("/")[2])[key]
    client = request.getfixturevalue("client")
    return lambda bucket, key: client.get_object(Bucket=bucket, Key=key)["Body"].read()
