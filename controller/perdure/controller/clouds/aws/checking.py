"""What the account allows: who calls, what they may do, which regions are enabled, how many vCPUs they may have.

Permissions are found out by IAM's simulator where it may be asked, for it knows the conditions of policies; else by
calls that EC2 only pretends to make (`DryRun`), which tell of some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from perdure.controller.clouds.aws import faults, notices
from perdure.controller.clouds.aws.connections import HOME_REGION, Connections
from perdure.controller.clouds.aws.launching import TAG
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.checks import (
    Finding,
    Look,
    Outcome,
    Permission,
    Quota,
    look_through,
    permissions,
    quotas,
    side_by_side,
)

POLICY_FIX = "attach the policy of deploy/iam/aws-controller.json to it"
QUOTA_FIX = "ask for more in the console's Service Quotas, Amazon EC2 (it takes hours to days), or use other machines"
REGION_FIX = "enable the region in the account's settings, or leave it out of aws.regions"

# Quotas of EC2 are of vCPUs, by market and family of instance types:
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html and …/ec2-on-demand-instances.html
QUOTAS = {
    "L-34B43A08": "spot vCPUs of C, M and R types",
    "L-1216C47A": "on-demand vCPUs of C, M and R types",
    "L-3819A6DF": "spot vCPUs of G types",
    "L-DB2E81BA": "on-demand vCPUs of G types",
    "L-7212CCBC": "spot vCPUs of P3 and P4 types",
    "L-C4BD4855": "spot vCPUs of P5 types",
    "L-417A185B": "on-demand vCPUs of P types",
}

# What simulated conditions are told of a call that Perdure would make.
CONTEXT = {
    f"aws:ResourceTag/{TAG}controller": "a-controller",
    "ec2:CreateAction": "RunInstances",
    "iam:AWSServiceName": "spot.amazonaws.com",
    "iam:PassedToService": "ec2.amazonaws.com",
}
# What is asked of one kind of resource alone; of queues, those that are named are asked of; all else is asked of any.
NARROW = {
    "ssm:GetParameter": "arn:aws:ssm:us-east-1::parameter/aws/service/canonical",
    "iam:CreateServiceLinkedRole": "arn:aws:iam::000000000000:role/aws-service-role/spot.amazonaws.com/any",
}


def wanted(settings: AwsSettings) -> Iterator[Permission]:
    """What is used of deploy/iam/aws-controller.json with these settings."""
    yield Permission("ec2:RunInstances", "machines are bought with it")
    yield Permission("ec2:CreateTags", "machines are marked with it as Perdure's")
    yield Permission("ec2:TerminateInstances", "machines are ended with it")
    yield Permission("ec2:DescribeInstances", "machines are watched with it")
    yield Permission("ec2:DescribeInstanceTypeOfferings", "it tells what zones sell")
    yield Permission("ec2:DescribeInstanceTypes", "it tells of types, and of their adapters", is_needed=False)
    yield Permission("ec2:DescribeSpotPriceHistory", "it tells spot prices")
    yield Permission("pricing:GetProducts", "it tells on-demand prices, which are estimated else", is_needed=False)
    yield Permission("ec2:DescribeImages", "it tells what an image needs")
    yield Permission("ec2:DescribeSubnets", "it tells `network_tier: best` if addresses are public", is_needed=False)
    if not settings.regions:
        yield Permission("ec2:DescribeRegions", "it tells the regions, as aws.regions names none")
    if not settings.images:
        yield Permission("ssm:GetParameter", "it finds the newest image, as aws.images names none")
    if settings.placement_scores:
        yield Permission("ec2:GetSpotPlacementScores", "aws.placement_scores wants it", is_needed=False)
    if settings.notice_queues:
        yield Permission("sqs:ReceiveMessage", "aws.notice_queues are read with it", is_needed=False)
        yield Permission("sqs:DeleteMessage", "what was read in aws.notice_queues is deleted with it", is_needed=False)
    lets = "without it the account's first spot machine can not be bought, if there was never one before"
    yield Permission("iam:CreateServiceLinkedRole", lets, is_needed=False)


class Checking:
    """`regions`: those that are used. Asks when it is told to, and remembers nothing."""

    def __init__(self, settings: AwsSettings, connections: Connections, regions: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._connections = connections
        self._regions = regions

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return look_through(
            Look("credentials", self._who, "correct the credentials: see the README, AWS"),
            (
                Look("permissions", self._permissions, POLICY_FIX),
                Look("regions", self._enabled, POLICY_FIX),
                Look("quotas", self._quotas, POLICY_FIX),
            ),
            faults.classify,
        )

    def _who(self) -> Iterator[Finding]:
        told = self._connections.service("sts", HOME_REGION).get_caller_identity()
        yield Finding("credentials", Outcome.OK, f"{told['Arn']} of account {told['Account']}")

    # ---- permissions ----

    def _permissions(self) -> Iterable[Finding]:
        found = list(wanted(self._settings))
        try:
            missing = self._simulated([one.name for one in found])
        except Exception as error:  # noqa: BLE001 - who may not ask is asked in another way
            return self._tried(found, faults.classify(error).message)
        return permissions(found, missing, POLICY_FIX)

    def _simulated(self, names: Sequence[str]) -> set[str]:
        """Those that IAM says are denied. Raises what IAM raises, to those who may not ask."""
        arn = self._connections.service("sts", HOME_REGION).get_caller_identity()["Arn"]
        pages = self._connections.service("iam", HOME_REGION).get_paginator("simulate_principal_policy")
        denied = set()
        resources = {name: self._resources(name) for name in names}
        for some in dict.fromkeys(resources.values()):
            asked = pages.paginate(
                PolicySourceArn=principal(arn),
                ActionNames=[name for name in names if resources[name] == some],
                ResourceArns=list(some),
                ContextEntries=[
                    {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
                    for key, value in CONTEXT.items()
                ],
            )
            told = [one for page in asked for one in page["EvaluationResults"]]
            denied |= {one["EvalActionName"] for one in told if one["EvalDecision"] != "allowed"}
        return denied

    def _resources(self, name: str) -> tuple[str, ...]:
        if name.startswith("sqs:"):
            return tuple(notices.arn(url) for url in self._settings.notice_queues)
        return (NARROW.get(name, "*"),)

    def _tried(self, found: Sequence[Permission], why_not: str) -> Iterator[Finding]:
        """By dry runs of the calls that only look; of the others EC2 tells nothing without a machine or an image."""
        region = self._regions()[0]
        ec2 = self._connections.ec2(region)
        dry: dict[str, Callable[..., Any]] = {
            "ec2:DescribeInstances": ec2.describe_instances,
            "ec2:DescribeInstanceTypeOfferings": ec2.describe_instance_type_offerings,
            "ec2:DescribeInstanceTypes": ec2.describe_instance_types,
            "ec2:DescribeSpotPriceHistory": ec2.describe_spot_price_history,
            "ec2:DescribeImages": ec2.describe_images,
            "ec2:DescribeRegions": ec2.describe_regions,
        }
        tried = [one for one in found if one.name in dry]
        missing = {one.name for one in tried if not _would_work(dry[one.name])}
        yield from permissions(tried, missing, POLICY_FIX)
        untold = ", ".join(one.name for one in found if one.name not in dry)
        fix = "to have them checked too, allow iam:SimulatePrincipalPolicy, as deploy/iam/aws-controller.json does"
        yield Finding("permissions", Outcome.UNKNOWN, f"it is not known of {untold}: {why_not}", fix)

    # ---- regions and quotas ----

    def _enabled(self) -> Iterator[Finding]:
        told = self._connections.ec2(HOME_REGION).describe_regions(AllRegions=False)["Regions"]
        enabled = {one["RegionName"] for one in told}
        wanted_regions = self._settings.regions or tuple(sorted(enabled))
        missing = [region for region in wanted_regions if region not in enabled]
        there = len(wanted_regions) - len(missing)
        if there:
            yield Finding("regions", Outcome.OK, f"{there} of {len(wanted_regions)} that are used are enabled")
        for region in missing:
            text = f"{region} is not enabled for this account"
            yield Finding("regions", Outcome.LIMITS if there else Outcome.FAILS, text, REGION_FIX)

    def _quotas(self) -> list[Finding]:
        told = side_by_side(self._quotas_of, self._regions())
        order = list(QUOTAS.values())
        return list(quotas(sorted(told, key=lambda one: order.index(one.name)), QUOTA_FIX))

    def _quotas_of(self, region: str) -> Iterator[Quota]:
        pages = self._connections.service("service-quotas", region).get_paginator("list_service_quotas")
        for page in pages.paginate(ServiceCode="ec2"):
            for one in page["Quotas"]:
                if one["QuotaCode"] in QUOTAS:
                    yield Quota(QUOTAS[one["QuotaCode"]], region, float(one["Value"]))


def principal(arn: str) -> str:
    """Whose policies count for a caller: of a role's session, the role's. Its path is not told: taken to be `/`."""
    kind, _, rest = arn.partition(":assumed-role/")
    if not rest:
        return arn
    return f"{kind.replace(':sts:', ':iam:')}:role/{rest.split('/')[0]}"


def _would_work(call: Callable[..., Any]) -> bool:
    try:
        call(DryRun=True)
    except Exception as error:
        code = faults.code_of(error)
        if code not in ("DryRunOperation", "UnauthorizedOperation"):
            raise
        return code == "DryRunOperation"
    return True
