"""A node's rclone works on S3 with temporary keys that its agent serves: no key of the controller is on the node."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.server import ThreadedMotoServer

from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.token_server import TokenServer
from perdure.controller.buckets import s3_credentials
from perdure.controller.buckets.configured import _s3
from perdure.controller.buckets.s3 import S3Store
from perdure.controller.buckets.stores import Access, StorageError
from perdure.controller.clouds.bootstrap.artifacts import find_rclone
from perdure.controller.runtime.clock import ManualClock

OWN = "AKIAOFTHECONTROLLER0"
BUCKET = "models"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def server(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """S3 and the Security Token Service, and long-lived keys of the controller."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", OWN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-controller")
    bucket_client(moto).create_bucket(Bucket=BUCKET)
    return moto


def bucket_client(url: str) -> Any:
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1")


def store(server: str, **settings: Any) -> S3Store:
    return _s3({"endpoint": server, "region": "us-east-1", "sts_endpoint": server, **settings})


@pytest.mark.skipif(find_rclone() is None, reason="needs rclone")
def test_rclone__works_with_the_keys_that_the_agent_serves(server: str, tmp_path: Path) -> None:
    spec = store(server).rclone_remote(BUCKET, Access(prefix="run-1"))
    assert OWN not in json.dumps(spec)
    assert "secret-of-the-controller" not in json.dumps(spec)
    tokens = TokenServer(tmp_path / "mounts", lambda _path: spec)
    try:
        remote = Remote.from_spec({"bucket": BUCKET, "prefix": "run-1", "rclone": tokens.options("/ckpt", spec)})
        keys = spec["credentials"]
        assert isinstance(keys, dict)
        assert keys["secret_access_key"] not in json.dumps(remote.options | remote.variables), "rclone asks for them"
        (tmp_path / "file").write_text("saved")
        command = [
            str(find_rclone()),
            "copyto",
            str(tmp_path / "file"),
            f"{remote.url}/file",
            "-vv",
            "--dump",
            "headers,auth",
        ]
        environ = os.environ | {"AWS_ACCESS_KEY_ID": "of-the-user", "AWS_SECRET_ACCESS_KEY": "x"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            done = subprocess.run(
                command, env=remote.environ(), capture_output=True, text=True, check=False, timeout=60
            )
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"Credential={keys['access_key_id']}/" in done.stderr
        assert f"Credential={OWN}/" not in done.stderr
    finally:
        tokens.close()
    assert bucket_client(server).get_object(Bucket=BUCKET, Key="run-1/file")["Body"].read() == b"saved"


@pytest.mark.parametrize(
    ("action", "key", "writes", "reads"),
    [
        ("s3:GetObject", "run-1/file", True, True),
        ("s3:PutObject", "run-1/file", True, False),
        ("s3:DeleteObject", "run-1/a/file", True, False),
        ("s3:AbortMultipartUpload", "run-1/file", True, False),
        ("s3:GetObject", "run-10/file", False, False),
        ("s3:PutObject", "file", False, False),
        ("s3:DeleteBucket", "", False, False),
        ("ec2:RunInstances", "", False, False),
    ],
)
def test_policy__allows_the_prefix_alone(action: str, key: str, writes: bool, reads: bool) -> None:
    for can_write, expected in ((True, writes), (False, reads)):
        policy = IAMPolicy(json.dumps(s3_credentials.policy(BUCKET, "/run-1/", writes=can_write)))
        resource = f"arn:aws:s3:::{BUCKET}/{key}" if key else f"arn:aws:s3:::{BUCKET}"
        result = policy.is_action_permitted(action, resource)
        assert (result == PermissionResult.PERMITTED) is expected


def test_policy__lists_below_the_prefix_alone() -> None:
    listing = s3_credentials.policy(BUCKET, "run-1", writes=False)["Statement"][0]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["run-1", "run-1/*"]}}
    assert "Condition" not in s3_credentials.policy(BUCKET, "", writes=False)["Statement"][0]


def test_role__gives_keys_of_its_own(server: str) -> None:
    spec = store(server, node_role="arn:aws:iam::123456789012:role/perdure-node").rclone_remote(BUCKET)
    keys = spec["credentials"]
    assert isinstance(keys, dict)
    client = boto3.client(
        "sts", endpoint_url=server, region_name="us-east-1", aws_access_key_id=keys["access_key_id"],
        aws_secret_access_key=keys["secret_access_key"], aws_session_token=keys["session_token"],
    )  # fmt: skip
    assert ":assumed-role/perdure-node/perdure-node" in client.get_caller_identity()["Arn"]


class _Service:
    """A token service that notes what it is asked for. `limit_s`: the longest session of its role."""

    def __init__(self, now: float, limit_s: int = 10**6, denies: bool = False) -> None:
        from botocore.exceptions import ClientError

        self.now, self.limit_s, self.denies = now, limit_s, denies
        self.asked: list[dict[str, Any]] = []
        self.exceptions = type("Exceptions", (), {"ClientError": ClientError})

    def get_federation_token(self, **request: Any) -> dict[str, Any]:
        return self._answer(request)

    def assume_role(self, **request: Any) -> dict[str, Any]:
        return self._answer(request)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        code = "AccessDenied" if self.denies else "ValidationError"
        if self.denies or request["DurationSeconds"] > self.limit_s:
            raise self.exceptions.ClientError({"Error": {"Code": code, "Message": "not authorized"}}, "AssumeRole")
        ends_at = datetime.datetime.fromtimestamp(self.now + request["DurationSeconds"], datetime.UTC)
        keys = {"AccessKeyId": f"ASIA{len(self.asked)}", "SecretAccessKey": "s", "SessionToken": "t"}
        return {"Credentials": {**keys, "Expiration": ends_at}}


def test_keys__are_shared_by_nodes_of_one_place_until_half_their_life() -> None:
    clock = ManualClock()
    service = _Service(clock.now())
    credentials = s3_credentials.S3NodeCredentials(lambda: service, None, clock.now)
    first = credentials.keys_for(BUCKET, Access(prefix="a"))
    assert credentials.keys_for(BUCKET, Access(prefix="a")) is first
    others = [credentials.keys_for(BUCKET, other) for other in (Access(prefix="b"), Access(prefix="a", writes=False))]
    assert len({first.access_key_id, *(one.access_key_id for one in others)}) == 3
    clock.advance(s3_credentials.LIFETIME_S / 2 + 1)
    assert credentials.keys_for(BUCKET, Access(prefix="a")).access_key_id == "ASIA4"


def test_keys__of_a_role_last_as_long_as_it_allows() -> None:
    clock = ManualClock()
    service = _Service(clock.now(), limit_s=s3_credentials.ROLE_LIFETIME_S)
    credentials = s3_credentials.S3NodeCredentials(lambda: service, "arn:role", clock.now)
    for prefix in ("a", "b"):
        keys = credentials.keys_for(BUCKET, Access(prefix=prefix))
        assert keys.expires_at == clock.now() + s3_credentials.ROLE_LIFETIME_S
    assert [one["DurationSeconds"] for one in service.asked] == [43200, 3600, 3600]


def test_keys__that_are_refused_say_what_to_allow() -> None:
    clock = ManualClock()
    credentials = s3_credentials.S3NodeCredentials(lambda: _Service(clock.now(), denies=True), None, clock.now)
    with pytest.raises(StorageError, match=r"sts:GetFederationToken.*s3\.share_keys"):
        credentials.keys_for(BUCKET, Access())


def test_controller__keeps_its_own_keys_for_itself(server: str) -> None:
    """Its backups are made by rclone, without an agent. `share_keys` gives them to nodes, too."""
    assert store(server).rclone_remote(BUCKET, Access(is_controller=True))["access_key_id"] == OWN
    assert store(server, share_keys=True).rclone_remote(BUCKET)["access_key_id"] == OWN
