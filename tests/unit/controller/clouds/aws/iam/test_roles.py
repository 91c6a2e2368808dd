"""Looking up the role of nodes, by callers with fewer permissions than this version lists."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from perdure.controller.clouds.aws.iam import roles


class Missing(Exception):
    """As boto3's class of a client."""


class Iam:
    """An IAM whose every look-up fails."""

    class exceptions:
        NoSuchEntityException = Missing

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get_role(self, RoleName: str) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error", [Missing(), ClientError({"Error": {"Code": "AccessDenied", "Message": "no."}}, "GetRole")], ids=repr
)
def test_node_role__is_none_if_there_is_none_or_it_may_not_be_seen(error: Exception) -> None:
    """`aws-up.json` of earlier versions does not allow the look-up: an upgrade must not fail for it."""
    assert roles.node_role(Iam(error), "perdure-controller") is None


def test_node_role__raises_any_other_error() -> None:
    with pytest.raises(ClientError, match="Throttling"):
        roles.node_role(Iam(ClientError({"Error": {"Code": "Throttling"}}, "GetRole")), "perdure-controller")
