"""A region that an organization denies, as landing zones do, is given up alone, and the message says who denies it."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.faults import classify
from perdure.controller.clouds.aws.iam import denial
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.partial_listing import PartialListing, list_known
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.ec2 import FakeEc2

Requests = Callable[..., LaunchRequest]


def test_list_owned__lists_the_regions_that_are_not_denied(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    ec2.faults.denied_regions = {"us-west-2"}
    with pytest.raises(PartialListing):
        cloud.list_owned("ctl")
    listed, failures = list_known(cloud, "ctl")
    assert [one.id for one in listed] == [machine.id]
    assert failures.keys() == {"us-west-2"}
    assert cloud.classify(failures["us-west-2"]).kind is FaultKind.AVOID_REGION


def test_list_owned__raises_the_error_of_a_region_if_all_fail(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.denied_regions = set(ec2.regions)
    with pytest.raises(Exception, match="explicit deny") as caught:
        cloud.list_owned("ctl")
    assert not isinstance(caught.value, PartialListing)


def test_launch__names_the_statement_that_denies_it(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    image = cloud.launch(request_of("t0"))  # it knows the image from now on
    assert image
    ec2.faults.denied_regions = {"us-east-1"}
    with pytest.raises(Exception, match="explicit deny in a service control policy") as caught:
        cloud.launch(request_of("t1"))
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.whole_region, fault.code) == (FaultKind.AVOID_REGION, True, denial.CODE)
    assert "ec2:RunInstances on arn:aws:ec2:us-east-1:1:instance/*" in fault.message
    assert "statement DenyRegions of p-FullAWSAccess" in fault.message
    assert "Encoded" not in fault.message
    assert len(fault.message) < 600


def test_launch__that_is_denied_says_what_decodes_the_reason(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    cloud.launch(request_of("t0"))
    ec2.faults.denied_regions, ec2.faults.forbid = {"us-east-1"}, {"sts:DecodeAuthorizationMessage"}
    with pytest.raises(Exception, match="allow the controller sts:DecodeAuthorizationMessage") as caught:
        cloud.launch(request_of("t1"))
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.whole_region, fault.any_instance_type) == (FaultKind.GIVE_UP, True, False)


@pytest.mark.parametrize(
    ("keys", "denies_region"),
    [
        (["aws:RequestedRegion"], True),
        (["aws:RequestedRegion", "aws:PrincipalARN"], True),
        (["ec2:InstanceType"], False),
        (["aws:RequestedRegion", "ec2:InstanceType"], False),
        (["aws:PrincipalARN"], False),
        ([], False),
    ],
    ids=str,
)
def test_explained__says_whether_the_region_is_denied_or_the_request(keys: list[str], denies_region: bool) -> None:
    statement = {"statementId": "s", "conditions": {"items": [{"key": key, "values": {}} for key in keys]}}
    decoded = json.dumps({"explicitDeny": True, "matchedStatements": {"items": [statement]}})
    text = "perform: ec2:RunInstances with an explicit deny in a policy. Encoded authorization failure message: x"
    sts = SimpleNamespace(decode_authorization_message=lambda EncodedMessage: {"DecodedMessage": decoded})
    explained = denial.explained(CloudRejected(denial.CODE, text), lambda: sts)
    assert (denial.DENIES_REGION in str(explained)) is denies_region
    assert (classify(explained).kind is FaultKind.AVOID_REGION) is denies_region


def test_explained__leaves_other_errors_as_they_are() -> None:
    error = ValueError("You are not authorized to perform this operation.")
    assert denial.explained(error, lambda: pytest.fail("there is nothing to decode")) is error
