"""The same contract over every store: the local one, and those of clouds against servers on this computer."""

from __future__ import annotations

import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from azurite import ACCOUNT, KEY
from perdure.controller.clock import SystemClock
from perdure.controller.storage.azure import AzureStore
from perdure.controller.storage.gcs import GcsStore
from perdure.controller.storage.mounts import BucketWish, fill, make, node_mounts, plan
from perdure.controller.storage.s3 import S3Store
from perdure.controller.storage.stores import ANYWHERE, LocalStore, StorageError, Store
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason


@pytest.fixture
def client(s3_endpoint: str) -> Any:
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
def read(store: Store, request: pytest.FixtureRequest) -> Any:
    if isinstance(store, LocalStore):
        return lambda bucket, key: (store.root / bucket / key).read_bytes()
    if isinstance(store, GcsStore):
        return lambda bucket, key: request.getfixturevalue("gcs").objects(bucket)[key]
    if isinstance(store, AzureStore):
        blobs = request.getfixturevalue("blobs")
        return lambda bucket, key: blobs.objects(bucket.partition("/")[2])[key]
    client = request.getfixturevalue("client")
    return lambda bucket, key: client.get_object(Bucket=bucket, Key=key)["Body"].read()


def test_a_bucket_is_made_once(store: Store, bucket: str) -> None:
    assert not store.exists(bucket)
    assert store.ensure(bucket)
    assert store.exists(bucket)
    assert not store.ensure(bucket)


def test_objects_are_written_and_replaced(store: Store, bucket: str, read: Any) -> None:
    store.ensure(bucket)
    store.put(bucket, "deep/er/a.txt", io.BytesIO(b"one"))
    store.put(bucket, "deep/er/a.txt", io.BytesIO(b"two"))
    assert read(bucket, "deep/er/a.txt") == b"two"


def test_a_bucket_goes_with_what_it_holds(store: Store, bucket: str) -> None:
    store.ensure(bucket)
    store.put(bucket, "a/b", io.BytesIO(b"x"))
    store.remove(bucket)
    assert not store.exists(bucket)
    store.remove(bucket)


def test_nothing_is_put_into_a_missing_bucket(store: Store, bucket: str) -> None:
    with pytest.raises(
        Exception, match=r"no bucket|NoSuchBucket|bucket does not exist|container does not exist"
    ) as caught:
        store.put(bucket, "a", io.BytesIO(b"x"))
    assert store.classify(caught.value).kind is FaultKind.GIVE_UP
    assert not store.exists(bucket)


@pytest.mark.parametrize("key", ["../escape", "/absolute", "a/../../b", ""])
def test_keys_that_lead_out_are_refused(store: Store, bucket: str, key: str) -> None:
    store.ensure(bucket)
    with pytest.raises(StorageError, match="can not be an object's name"):
        store.put(bucket, key, io.BytesIO(b"x"))


@pytest.mark.parametrize("name", ["../x", "UPPER", "a"])
def test_names_are_checked_before_anything_is_done(store: Store, name: str) -> None:
    for method in (store.ensure, store.exists, store.remove, lambda name: store.rclone_remote(name, ANYWHERE)):
        with pytest.raises(StorageError, match=r"can not be a (bucket|container)'s name"):
            method(name)


def test_a_wish_for_a_missing_bucket_fails_and_makes_none(store: Store, bucket: str) -> None:
    wish = BucketWish(store.name, bucket, create=False)
    with pytest.raises(StorageError, match="create it") as caught:
        make(wish, {store.name: store})
    assert store.classify(caught.value).kind is FaultKind.GIVE_UP
    assert not store.exists(bucket)


def _archive(path: Path, files: dict[str, bytes], links: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def test_an_upload_is_unpacked_into_the_bucket(store: Store, bucket: str, tmp_path: Path, read: Any) -> None:
    archive = _archive(tmp_path / "x.tar.gz", {"a.txt": b"a", "sub/b.bin": b"b" * 100_000}, {"sub/link": "b.bin"})
    wish = BucketWish(store.name, bucket, create=True, uploads=("digest",))
    assert make(wish, {store.name: store})
    for _ in range(2):
        fill(wish, {store.name: store}, archive=lambda digest: archive)
    assert read(bucket, "a.txt") == b"a"
    assert read(bucket, "sub/b.bin") == read(bucket, "sub/link") == b"b" * 100_000


@pytest.mark.parametrize(
    ("files", "links", "words"),
    [
        ({"../evil": b"x"}, {}, "can not be an object's name"),
        ({}, {"link": "/etc/passwd"}, "is a link out of"),
    ],
)
def test_an_upload_can_not_reach_out(
    store: Store, bucket: str, tmp_path: Path, files: dict[str, bytes], links: dict[str, str], words: str
) -> None:
    archive = _archive(tmp_path / "x.tar.gz", files, links)
    store.ensure(bucket)
    with pytest.raises(StorageError, match=words):
        fill(BucketWish(store.name, bucket, True, uploads=("d",)), {store.name: store}, archive=lambda _: archive)


def test_an_upload_that_is_no_archive(store: Store, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no archive at all")
    store.ensure(bucket)
    with pytest.raises(StorageError, match="is no archive"):
        fill(
            BucketWish(store.name, bucket, True, uploads=("d",)), {store.name: store}, archive=lambda _: tmp_path / "x"
        )


def test_node_mounts_of_a_local_bucket(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, root_on_node="/run/perdure/buckets")
    mounts = plan({"/ckpt": {"name": "ckpt"}}, stores={"local"}, default_store="local").mounts
    assert node_mounts(mounts, {"local": store}) == [
        {
            "path": "/ckpt",
            "mode": "MOUNT",
            "bucket": "ckpt",
            "prefix": "",
            "read_only": False,
            "options": {},
            "rclone": {"type": "local", "root": "/run/perdure/buckets"},
        }
    ]


def test_local_objects_can_be_read_by_everybody(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buckets")
    store.ensure("ckpt")
    store.put("ckpt", "a", io.BytesIO(b"a"))
    assert (tmp_path / "buckets/ckpt/a").stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path / "buckets") == ["ckpt"]


def test_local_write_that_fails_leaves_no_object(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(28, "No space left on device")

    store = LocalStore(tmp_path / "buckets")
    store.ensure("ckpt")
    with pytest.raises(OSError, match="No space") as caught:
        store.put("ckpt", "a", Broken())
    assert list((tmp_path / "buckets").rglob("*")) == [tmp_path / "buckets/ckpt"]
    assert store.classify(caught.value).kind is FaultKind.RETRY_LATER
    assert store.classify(PermissionError(13, "denied")).kind is FaultKind.GIVE_UP


def test_keys_of_the_chain_go_to_the_node(s3_endpoint: str, client: Any) -> None:
    client.create_bucket(Bucket="for-nodes")
    assert S3Store(endpoint=s3_endpoint).rclone_remote("for-nodes") == {
        "type": "s3",
        "provider": "Other",
        "endpoint": s3_endpoint,
        "force_path_style": True,
        "region": "us-east-1",
        "env_auth": False,
        "access_key_id": "AKIATESTKEY",
        "secret_access_key": "test-secret",
    }


def test_session_token_goes_along(s3_endpoint: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_bucket(Bucket="for-nodes-2")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert S3Store(endpoint=s3_endpoint).rclone_remote("for-nodes-2")["session_token"] == "token"


def test_endpoint_of_the_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    client.create_bucket(Bucket="by-environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    store = S3Store()
    assert store.exists("by-environment")
    assert store.rclone_remote("by-environment")["endpoint"] == s3_endpoint


def test_bucket_in_a_region_of_its_own(s3_endpoint: str) -> None:
    store = S3Store(endpoint=s3_endpoint, region="eu-west-3")
    assert store.ensure("in-paris")
    assert S3Store(endpoint=s3_endpoint).rclone_remote("in-paris")["region"] == "eu-west-3"
    store.remove("in-paris")


def test_all_versions_go_with_the_bucket(s3_endpoint: str, client: Any) -> None:
    store = S3Store(endpoint=s3_endpoint)
    store.ensure("versioned")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2"):
        store.put("versioned", "a", io.BytesIO(body))
    client.delete_object(Bucket="versioned", Key="a")
    store.remove("versioned")
    assert not store.exists("versioned")


@pytest.mark.parametrize(
    ("on_head", "on_put"),
    [(403, 500), (404, 409)],
    ids=["the bucket says so", "only its making says so"],
)
def test_bucket_of_somebody_else_is_never_taken(on_head: int, on_put: int) -> None:
    """A server that answers as S3 does for a bucket of another account, which moto does not."""
    asked = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append("HEAD")
            self.send_response(on_head)
            self.end_headers()

        def do_PUT(self) -> None:
            asked.append("PUT")
            body = b"<Error><Code>BucketAlreadyExists</Code><Message>taken</Message></Error>"
            self.send_response(on_put)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(StorageError, match=r"may not use it.*choose another name"):
                S3Store(endpoint=f"http://127.0.0.1:{server.server_port}").ensure("somebody-elses")
        finally:
            server.shutdown()
            thread.join()
    assert asked == (["HEAD"] if on_head == 403 else ["HEAD", "PUT"])


def test_a_dead_endpoint_is_worth_another_try() -> None:
    store = S3Store(endpoint="http://127.0.0.1:9")
    with pytest.raises(EndpointConnectionError) as caught:
        store.exists("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert fault.retry_after_s


def test_missing_credentials_are_named(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(endpoint=s3_endpoint)
    with pytest.raises(Exception, match="credentials") as caught:
        store.ensure("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS)


def test_a_link_that_a_job_left_in_a_bucket_is_no_way_out(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "buckets")
    store.ensure("a-bucket")
    (tmp_path / "outside").mkdir()
    (tmp_path / "buckets/a-bucket/door").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="behind a link out of bucket"):
        store.put("a-bucket", "door/x/y", io.BytesIO(b"1"))
    assert list((tmp_path / "outside").iterdir()) == []
