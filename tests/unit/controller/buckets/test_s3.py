"""S3 buckets: credentials for nodes, endpoints, regions and errors. The common contract is in `test_stores`."""

from __future__ import annotations

import http.server
import io
import threading
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import EndpointConnectionError

from perdure.controller.buckets.s3 import S3Store
from perdure.controller.buckets.stores import StorageError
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def test_rclone_remote__contains_the_keys_of_the_chain(s3_endpoint: str, client: S3Client) -> None:
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


def test_rclone_remote__contains_the_session_token(
    s3_endpoint: str, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_bucket(Bucket="for-nodes-2")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert S3Store(endpoint=s3_endpoint).rclone_remote("for-nodes-2")["session_token"] == "token"


def test_s3_store__endpoint_from_the_environment(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, client: S3Client
) -> None:
    client.create_bucket(Bucket="by-environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    store = S3Store()
    assert store.exists("by-environment")
    assert store.rclone_remote("by-environment")["endpoint"] == s3_endpoint


def test_s3_store__bucket_in_another_region(s3_endpoint: str) -> None:
    store = S3Store(endpoint=s3_endpoint, region="eu-west-3")
    assert store.ensure("in-paris")
    assert S3Store(endpoint=s3_endpoint).rclone_remote("in-paris")["region"] == "eu-west-3"
    store.remove("in-paris")


def test_remove__deletes_all_versions(s3_endpoint: str, client: S3Client) -> None:
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
    ids=["on HEAD", "only on creation"],
)
def test_ensure__rejects_a_bucket_of_another_account(on_head: int, on_put: int) -> None:
    """The server responds as S3 does for a bucket of another account, which moto does not."""
    methods = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            methods.append("HEAD")
            self.send_response(on_head)
            self.end_headers()

        def do_PUT(self) -> None:
            methods.append("PUT")
            body = b"<Error><Code>BucketAlreadyExists</Code><Message>taken</Message></Error>"
            self.send_response(on_put)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(StorageError, match=r"may not use it.*choose another name"):
                S3Store(endpoint=f"http://127.0.0.1:{server.server_port}").ensure("somebody-elses")
        finally:
            server.shutdown()
            thread.join()
    assert methods == (["HEAD"] if on_head == 403 else ["HEAD", "PUT"])


def test_classify__unreachable_endpoint_is_retried() -> None:
    store = S3Store(endpoint="http://127.0.0.1:9")
    with pytest.raises(EndpointConnectionError) as caught:
        store.exists("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert fault.retry_after_s


def test_classify__missing_credentials(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(endpoint=s3_endpoint)
    with pytest.raises(Exception, match="credentials") as caught:
        store.ensure("any-bucket")
    fault = store.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS)
