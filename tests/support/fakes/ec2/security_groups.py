"""Security groups, with a rule of EC2 that moto lacks: a security group cannot be deleted while a machine has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from support.fakes.ec2 import validation


def named(parameters: Mapping[str, Any]) -> list[str]:
    """The ids of the groups that a call names."""
    one = parameters.get("GroupId")
    return [one] if one is not None else list(parameters.get("SecurityGroupIds") or ())


def require_unused(region: str, action: str, parameters: Mapping[str, Any]) -> None:
    """Raises Invalid for the deletion of a group that is in use."""
    if action != "DeleteSecurityGroup":
        return
    group = parameters["GroupId"]
    for instance in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_instances():
        groups = {one.id for nic in instance.nics.values() for one in nic.group_set}
        if instance._state.name != "terminated" and group in groups:
            raise validation.Invalid("DependencyViolation", f"resource {group} has a dependent object")
