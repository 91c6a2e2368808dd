"""An S3 server that a test can stop and read directly."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import boto3
from botocore.config import Config

KEY_ID, SECRET = "AKIATESTKEY", "secret-that-shows-nowhere"


@dataclass
class S3Server:
    """moto's server in a separate process that can be stopped and restarted; `client` reads it directly."""

    port: int
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}),
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            )
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            Event().wait(0.05)
        raise AssertionError(f"the S3 server does not answer: see {self.log}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def new_bucket(self, **objects: bytes) -> str:
        name = self.new_name()
        self.client.create_bucket(Bucket=name)
        for key, body in objects.items():
            self.client.put_object(Bucket=name, Key=key.replace("__", "/"), Body=body)
        return name

    def buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]}

    def objects(self, bucket: str) -> dict[str, bytes]:
        entries = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {one["Key"]: self.client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in entries}

    def remove(self, bucket: str) -> None:
        for key in self.objects(bucket):
            self.client.delete_object(Bucket=bucket, Key=key)
        self.client.delete_bucket(Bucket=bucket)

    @staticmethod
    def new_name() -> str:
        return f"ckpt-{uuid.uuid4().hex[:12]}"
