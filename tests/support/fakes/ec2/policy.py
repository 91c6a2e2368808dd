"""IAM's decisions on calls of EC2, by the statements of an identity-based policy.

docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html, and for the tags of new
resources docs.aws.amazon.com/AWSEC2/latest/UserGuide/supported-iam-actions-tagging.html. Only what our policies use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from support.fakes.ec2 import validation
from support.fakes.ec2.faults import TEXTS

Statement = Mapping[str, Any]

# The parameters that name the resources which a call changes.
_OF_RESOURCES = ("InstanceId", "InstanceIds", "GroupId", "Resources")


def require_allowed(statements: Sequence[Statement], region: str, action: str, parameters: Mapping[str, Any]) -> None:
    """Raises Invalid for a call that no statement allows."""
    for name, context in _decisions(region, action, parameters):
        if not any(_allows(statement, f"ec2:{name}", context) for statement in statements):
            raise validation.Invalid("UnauthorizedOperation", f"{TEXTS['UnauthorizedOperation']} ec2:{name}")


def _decisions(region: str, action: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """What IAM decides for a call: actions, each with the context that conditions see. All must be allowed."""
    named = [parameters.get(field) or [] for field in _OF_RESOURCES]
    ids = [id for value in named for id in ([value] if isinstance(value, str) else value)]
    tags = ec2_backends[DEFAULT_ACCOUNT_ID][region].tags
    for id in ids:
        yield action, {f"aws:ResourceTag/{key}": value for key, value in tags.get(id, {}).items()}
    if not ids:
        yield action, {}
    if parameters.get("TagSpecifications"):
        yield "CreateTags", {"ec2:CreateAction": action}


def _allows(statement: Statement, action: str, context: Mapping[str, str]) -> bool:
    assert statement["Effect"] == "Allow"
    if action not in _list(statement["Action"]):
        return False
    assert statement["Resource"] == "*", "of EC2, the policy narrows by tags"
    conditions = statement.get("Condition", {}).items()
    return all(_holds(kind, key, _list(wanted), context) for kind, keys in conditions for key, wanted in keys.items())


def _holds(kind: str, key: str, wanted: Sequence[str], context: Mapping[str, str]) -> bool:
    match kind:
        case "StringEquals":
            return context.get(key) in wanted
        case "Null":
            return str(key not in context).lower() in wanted
    raise NotImplementedError(f"the fake has no condition {kind}")


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
