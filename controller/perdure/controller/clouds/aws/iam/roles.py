"""The roles that `controller up` creates: of the controller's machine, and the one whose rights nodes get for buckets.

A role that is created here is tagged and gets the policies of deploy/iam, the current ones at every `up` and `upgrade`.
A role of the user's own is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.aws.machines.launch_request import TAG

DEFAULT_ROLE = "perdure-controller"
NODE_ROLE = "perdure-node"  # the policies of deploy/iam allow roles whose names begin like this
_MAX_NAME_LENGTH = 64
_MARK = {"Key": f"{TAG}made", "Value": "controller up"}
_HERE = Path(__file__).parent
_MACHINES = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}


def ensure_roles(iam: Any, name: str) -> None:
    """Ensure that there is an instance profile of that name with a role.

    If the role is created here, it may use buckets, and there is a role for its nodes (`node_role`).
    """
    role = _ensure_role(
        iam, name, _trust(_MACHINES), {"perdure-controller": "controller_policy", "perdure-buckets": "buckets_policy"}
    )
    if _is_ours(role):
        _ensure_role(iam, node_role_name(name), _trust(_assumed_by(role)), {"perdure-node": "node_policy"})
    try:
        roles = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    except iam.exceptions.NoSuchEntityException:
        iam.create_instance_profile(InstanceProfileName=name)
        roles = []
    if not roles:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def renew_roles(iam: Any, name: str) -> None:
    """Give a role that was created here, by this version or an earlier one, what `ensure_roles` gives it."""
    role = _find(iam, name)
    if role is not None and _is_ours(role):
        ensure_roles(iam, name)


def node_role(iam: Any, name: str) -> str | None:
    """The ARN of the role whose rights the nodes of a controller with role `name` get.

    None if Perdure has created no such role, or if the caller may not look it up: the permissions of earlier versions
    do not include that.
    """
    try:
        role = _find(iam, node_role_name(name))
    except Exception as error:
        if faults.code_of(error) != "AccessDenied":
            raise
        return None
    return str(role["Arn"]) if role is not None and _is_ours(role) else None


def node_role_name(name: str) -> str:
    suffix = name.removeprefix(DEFAULT_ROLE) if name.startswith(DEFAULT_ROLE) else f"-{name}"
    return f"{NODE_ROLE}{suffix}"[:_MAX_NAME_LENGTH]


def _ensure_role(iam: Any, name: str, trust: Mapping[str, Any], policies: Mapping[str, str]) -> Any:
    role = _find(iam, name)
    if role is None:
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust), Tags=[_MARK])["Role"]
        role = {**made, "Tags": [_MARK]}
    if _is_ours(role):
        for policy, file in policies.items():
            document = (_HERE / f"{file}.json").read_text()
            iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=document)
    return role


def _find(iam: Any, name: str) -> Any:
    try:
        return iam.get_role(RoleName=name)["Role"]
    except iam.exceptions.NoSuchEntityException:
        return None


def _is_ours(role: Mapping[str, Any]) -> bool:
    return _MARK in role.get("Tags", ())


def _trust(statement: Mapping[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [statement]}


def _assumed_by(role: Mapping[str, Any]) -> dict[str, Any]:
    """That `role` may assume another role. As a principal, a role that is seconds old may be unknown to IAM yet."""
    arn = str(role["Arn"])
    partition, account = arn.split(":")[1], arn.split(":")[4]
    return {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:{partition}:iam::{account}:root"},
        "Action": "sts:AssumeRole",
        "Condition": {"ArnEquals": {"aws:PrincipalArn": arn}},
    }
