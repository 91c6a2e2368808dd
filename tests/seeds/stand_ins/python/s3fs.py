"""Stands for s3fs: the calls that the demonstration makes."""

import boto3
from botocore.exceptions import ClientError


def client(key, secret, endpoint_url):
    return boto3.client(
        "s3", aws_access_key_id=key, aws_secret_access_key=secret, endpoint_url=endpoint_url, region_name="us-east-1"
    )


def split(path):
    bucket, _, key = path.removeprefix("s3://").lstrip("/").partition("/")
    return {"Bucket": bucket, "Key": key}


class S3FileSystem:
    def __init__(self, key, secret, endpoint_url):
        self._client = client(key, secret, endpoint_url)

    def exists(self, path):
        try:
            self._client.head_object(**split(path))
        except ClientError:
            return False
        return True

    def write_text(self, path, text):
        self._client.put_object(**split(path), Body=text.encode())
