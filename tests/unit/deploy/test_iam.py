"""The policies of deploy/iam allow what the controller and its nodes do with buckets."""

from __future__ import annotations

import json

import pytest
from moto.iam.access_control import IAMPolicy, PermissionResult

from perdure.controller.buckets import s3_credentials
from support.helpers.controllers import ROOT

BUCKET = "arn:aws:s3:::models"


def allows(name: str, action: str, resource: str) -> bool:
    policy = IAMPolicy((ROOT / "deploy/iam" / name).read_text())
    return policy.is_action_permitted(action, resource) == PermissionResult.PERMITTED


@pytest.mark.parametrize("name", ["aws-node.json", "aws-buckets.json"])
def test_policies__allow_what_nodes_may_get(name: str) -> None:
    """The rights of a node are those of the session policy that its role, or the controller's user, has, too."""
    for statement in s3_credentials.policy("models", "run", writes=True)["Statement"]:
        for action in statement["Action"]:
            assert allows(
                name, action, BUCKET if action in ("s3:ListBucket", "s3:GetBucketLocation") else f"{BUCKET}/run/a"
            )


def test_policy_of_buckets__allows_what_the_controller_does() -> None:
    assert all(allows("aws-buckets.json", f"s3:{action}", BUCKET) for action in ("CreateBucket", "DeleteBucket"))
    assert allows("aws-buckets.json", "s3:DeleteObjectVersion", f"{BUCKET}/a")
    assert allows("aws-buckets.json", "sts:AssumeRole", "arn:aws:iam::123456789012:role/perdure-node-buckets")
    assert allows("aws-buckets.json", "sts:GetFederationToken", "arn:aws:sts::123456789012:federated-user/perdure-node")


def test_policy_of_buckets__gives_no_other_role() -> None:
    assert not allows("aws-buckets.json", "sts:AssumeRole", "arn:aws:iam::123456789012:role/admin")
    assert not allows("aws-node.json", "s3:DeleteBucket", BUCKET)


def test_policies__are_small_enough_for_a_role() -> None:
    """IAM's limit of a managed policy: 6,144 characters without white space."""
    for path in (ROOT / "deploy/iam").glob("aws-*.json"):
        assert len(json.dumps(json.loads(path.read_text()), separators=(",", ":"))) < 6144
