"""URIs of buckets."""

from __future__ import annotations

import pytest

from perdure.sdk import Task
from perdure.sdk.spec.buckets import BucketURI, parse
from perdure.sdk.spec.problems import InvalidValue

URIS = {
    "s3://bucket": BucketURI("S3", "bucket"),
    "s3://bucket/a/b/": BucketURI("S3", "bucket", "a/b"),
    "gs://bucket/a": BucketURI("GCS", "bucket", "a"),
    "r2://bucket": BucketURI("R2", "bucket"),
    "https://acct.blob.core.windows.net/container/a": BucketURI("AZURE", "container", "a", "acct"),
    "cos://us-east/bucket/a": BucketURI("IBM", "bucket", "a", "us-east"),
    "oci://bucket": BucketURI("OCI", "bucket"),
    "nebius://bucket": BucketURI("NEBIUS", "bucket"),
    "cw://bucket": BucketURI("COREWEAVE", "bucket"),
    "vastdata://bucket": BucketURI("VASTDATA", "bucket"),
    "hf://datasets/org/name": BucketURI("HF", "datasets/org/name"),
    "local://bucket/a": BucketURI("LOCAL", "bucket", "a"),
}


@pytest.mark.parametrize(("uri", "parts"), URIS.items())
def test_bucket_uri__parses_every_scheme(uri: str, parts: BucketURI) -> None:
    assert parse(uri) == parts
    as_copy = Task.from_yaml_config({"file_mounts": {"/a": uri}})
    assert as_copy.file_mounts == {"/a": uri}
    assert as_copy.storage_mounts == {}
    mounted = Task.from_yaml_config({"file_mounts": {"/a": {"source": uri}}}).storage_mounts["/a"]
    assert mounted.bucket == parts
    assert mounted.store == parts.store


@pytest.mark.parametrize(
    "uri", ["s3://KEY:sesame@host/bucket", "https://u:sesame@acct.blob.core.windows.net/c", "zz://sesame@h/b"]
)
def test_bucket_uri__holds_no_credentials(uri: str) -> None:
    with pytest.raises(InvalidValue, match="holds a user or a password") as caught:
        parse(uri)
    assert "sesame" not in str(caught.value) + caught.value.fix
