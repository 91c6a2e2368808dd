"""Checks an AWS account: the caller's identity, permissions, enabled regions and vCPU quotas.

IAM's simulator, if the caller may use it, evaluates permissions with the conditions of policies. Otherwise EC2's dry
runs reveal some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from perdure.controller.clouds.aws import faults, notices
from perdure.controller.clouds.aws.machines.launch_request import TAG
from perdure.controller.clouds.aws.sdk.connections import HOME_REGION, AwsConnections
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base.account_checks import (
    Check,
    Finding,
    Permission,
    Quota,
    Severity,
    parallel,
    permission_findings,
    quota_findings,
    run_checks,
)

POLICY_FIX = "attach the policy of deploy/iam/aws-controller.json to it"
BUCKET_FIX = "if tasks are to use buckets of AWS, attach the policy of deploy/iam/aws-buckets.json to it"
BUCKET_PERMISSIONS = ("s3:CreateBucket", "s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
QUOTA_FIX = "request more in the console's Service Quotas, Amazon EC2 (takes hours to days), or use other machines"
REGION_FIX = "enable the region in the account's settings, or remove it from aws.regions"

# EC2's quotas limit vCPUs by market and family of instance types:
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

# The context of the controller's calls, for the conditions of simulated policies.
CONTEXT = {
    f"aws:ResourceTag/{TAG}controller": "a-controller",
    "ec2:CreateAction": "RunInstances",
    "iam:AWSServiceName": "spot.amazonaws.com",
    "iam:PassedToService": "ec2.amazonaws.com",
}
# Permissions that are simulated for one resource. Those of queues are simulated for the configured queues, others for
# all resources.
NARROW = {
    "ssm:GetParameter": "arn:aws:ssm:us-east-1::parameter/aws/service/canonical",
    "iam:CreateServiceLinkedRole": "arn:aws:iam::000000000000:role/aws-service-role/spot.amazonaws.com/any",
    "sts:GetFederationToken": "arn:aws:sts::000000000000:federated-user/perdure-node",
    "sts:AssumeRole": "arn:aws:iam::000000000000:role/perdure-node",
    **dict.fromkeys(("s3:CreateBucket", "s3:ListBucket"), "arn:aws:s3:::perdure-check"),
    **dict.fromkeys(("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), "arn:aws:s3:::perdure-check/object"),
}
_OF_PORTS = (
    *("DescribeSecurityGroups", "DescribeVpcs", "CreateSecurityGroup", "DeleteSecurityGroup"),
    *("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"),
)


def required_permissions(settings: AwsSettings) -> Iterator[Permission]:
    """The permissions of deploy/iam/aws-controller.json that the controller uses with these settings."""
    yield Permission("ec2:RunInstances", "it launches machines")
    yield Permission("ec2:CreateTags", "it marks machines as Perdure's")
    yield Permission("ec2:TerminateInstances", "it terminates machines")
    purpose = "the log of a job shows the console of a machine that never called"
    yield Permission("ec2:GetConsoleOutput", purpose, is_required=False)
    purpose = "errors name the statement that denies a launch"
    yield Permission("sts:DecodeAuthorizationMessage", purpose, is_required=False)
    for action in ("StopInstances", "StartInstances", "ModifyInstanceAttribute"):
        yield Permission(f"ec2:{action}", "it keeps the disks of clusters that are stopped", is_required=False)
    for action in _OF_PORTS:
        yield Permission(f"ec2:{action}", "`resources.ports` of a cluster needs it", is_required=False)
    yield Permission("ec2:DescribeInstances", "it lists machines")
    yield Permission("ec2:DescribeInstanceTypeOfferings", "it lists the types of each zone")
    yield Permission("ec2:DescribeInstanceTypes", "it describes types and their adapters", is_required=False)
    yield Permission("ec2:DescribeSpotPriceHistory", "it returns spot prices")
    yield Permission("pricing:GetProducts", "without it on-demand prices are estimates", is_required=False)
    yield Permission("ec2:DescribeImages", "it describes the image to boot")
    purpose = "`network_tier: best` needs it to see whether a subnet assigns public addresses"
    yield Permission("ec2:DescribeSubnets", purpose, is_required=False)
    if not settings.regions:
        yield Permission("ec2:DescribeRegions", "it lists the regions, since aws.regions names none")
    if not settings.images:
        yield Permission("ssm:GetParameter", "it finds the newest image, since aws.images names none")
    if settings.placement_scores:
        yield Permission("ec2:GetSpotPlacementScores", "aws.placement_scores needs it", is_required=False)
    if settings.interruption_queues:
        yield Permission("sqs:ReceiveMessage", "it reads aws.interruption_queues", is_required=False)
        yield Permission("sqs:DeleteMessage", "it acknowledges messages of aws.interruption_queues", is_required=False)
    purpose = "an account that never had a spot machine cannot launch its first one without it"
    yield Permission("iam:CreateServiceLinkedRole", purpose, is_required=False)


class AwsAccountCheck:
    """Runs the checks, without caching. `regions`: returns the regions in use."""

    def __init__(
        self, settings: AwsSettings, connections: AwsConnections, regions: Callable[[], Sequence[str]]
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._regions = regions

    def findings(self) -> list[Finding]:
        """See `Checkable.check`."""
        return run_checks(
            Check("credentials", self._identity, "correct the credentials: see the README, AWS"),
            (
                Check("permissions", self._permissions, POLICY_FIX),
                Check("buckets", self._buckets, BUCKET_FIX),
                Check("regions", self._enabled_regions, POLICY_FIX),
                Check("quotas", self._quotas, POLICY_FIX),
            ),
            faults.classify,
        )

    def _identity(self) -> Iterator[Finding]:
        caller = self._connections.service("sts", HOME_REGION).get_caller_identity()
        yield Finding("credentials", Severity.OK, f"{caller['Arn']} of account {caller['Account']}")

    # ---- permissions ----

    def _permissions(self) -> Iterable[Finding]:
        required = list(required_permissions(self._settings))
        try:
            missing = self._simulate([permission.name for permission in required])
        except Exception as error:  # noqa: BLE001 - a caller that may not use the simulator can use dry runs
            return self._dry_run(required, faults.classify(error).message)
        return permission_findings(required, missing, POLICY_FIX)

    def _simulate(self, names: Sequence[str]) -> set[str]:
        """The permissions that IAM's simulator denies. Raises IAM's error if the caller may not use the simulator."""
        arn = self._connections.service("sts", HOME_REGION).get_caller_identity()["Arn"]
        pages = self._connections.service("iam", HOME_REGION).get_paginator("simulate_principal_policy")
        denied = set()
        resources = {name: self._resources(name) for name in names}
        for arns in dict.fromkeys(resources.values()):
            results = pages.paginate(
                PolicySourceArn=principal(arn),
                ActionNames=[name for name in names if resources[name] == arns],
                ResourceArns=list(arns),
                ContextEntries=[
                    {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
                    for key, value in CONTEXT.items()
                ],
            )
            decisions = [decision for page in results for decision in page["EvaluationResults"]]
            denied |= {one["EvalActionName"] for one in decisions if one["EvalDecision"] != "allowed"}
        return denied

    def _resources(self, name: str) -> tuple[str, ...]:
        if name.startswith("sqs:"):
            return tuple(notices.arn(url) for url in self._settings.interruption_queues)
        return (NARROW.get(name, "*"),)

    def _dry_run(self, required: Sequence[Permission], simulator_error: str) -> Iterator[Finding]:
        """Check by dry runs of read-only calls; dry runs of other calls need a real machine or image."""
        region = self._regions()[0]
        ec2 = self._connections.ec2(region)
        calls: dict[str, Callable[..., Any]] = {
            "ec2:DescribeInstances": ec2.describe_instances,
            "ec2:DescribeInstanceTypeOfferings": ec2.describe_instance_type_offerings,
            "ec2:DescribeInstanceTypes": ec2.describe_instance_types,
            "ec2:DescribeSpotPriceHistory": ec2.describe_spot_price_history,
            "ec2:DescribeImages": ec2.describe_images,
            "ec2:DescribeRegions": ec2.describe_regions,
        }
        tested = [permission for permission in required if permission.name in calls]
        missing = {permission.name for permission in tested if not _is_allowed(calls[permission.name])}
        yield from permission_findings(tested, missing, POLICY_FIX)
        untested = ", ".join(permission.name for permission in required if permission.name not in calls)
        fix = "to check them too, allow iam:SimulatePrincipalPolicy, as deploy/iam/aws-controller.json does"
        yield Finding("permissions", Severity.UNKNOWN, f"not checked: {untested}: {simulator_error}", fix)

    def _buckets(self) -> Iterator[Finding]:
        """Whether tasks may use buckets of AWS. Users and roles make the keys of nodes by different calls."""
        arn = self._connections.service("sts", HOME_REGION).get_caller_identity()["Arn"]
        makes_keys = "sts:AssumeRole" if principal(arn) != arn else "sts:GetFederationToken"
        try:
            missing = self._simulate([*BUCKET_PERMISSIONS, makes_keys])
        except Exception:  # noqa: BLE001 - the check of permissions reports that the simulator may not be used
            return
        if missing:
            text = f"tasks cannot use buckets of AWS: {', '.join(sorted(missing))} is missing"
            yield Finding("buckets", Severity.WARNING, text, BUCKET_FIX)
        else:
            yield Finding("buckets", Severity.OK, "tasks can use buckets of AWS")

    # ---- regions and quotas ----

    def _enabled_regions(self) -> Iterator[Finding]:
        response = self._connections.ec2(HOME_REGION).describe_regions(AllRegions=False)
        enabled = {region["RegionName"] for region in response["Regions"]}
        used = self._settings.regions or tuple(sorted(enabled))
        missing = [region for region in used if region not in enabled]
        num_enabled = len(used) - len(missing)
        if num_enabled:
            yield Finding("regions", Severity.OK, f"{num_enabled} of {len(used)} regions in use are enabled")
        for region in missing:
            text = f"{region} is not enabled for this account"
            yield Finding("regions", Severity.WARNING if num_enabled else Severity.ERROR, text, REGION_FIX)

    def _quotas(self) -> list[Finding]:
        quotas = parallel(self._quotas_of, self._regions())
        order = list(QUOTAS.values())
        return list(quota_findings(sorted(quotas, key=lambda quota: order.index(quota.name)), QUOTA_FIX))

    def _quotas_of(self, region: str) -> Iterator[Quota]:
        pages = self._connections.service("service-quotas", region).get_paginator("list_service_quotas")
        for page in pages.paginate(ServiceCode="ec2"):
            for quota in page["Quotas"]:
                if quota["QuotaCode"] in QUOTAS:
                    yield Quota(QUOTAS[quota["QuotaCode"]], region, float(quota["Value"]))


def principal(arn: str) -> str:
    """The ARN whose policies apply to a caller: of a role's session, the role, whose path is assumed to be `/`."""
    kind, _, rest = arn.partition(":assumed-role/")
    if not rest:
        return arn
    return f"{kind.replace(':sts:', ':iam:')}:role/{rest.split('/')[0]}"


def _is_allowed(call: Callable[..., Any]) -> bool:
    try:
        call(DryRun=True)
    except Exception as error:
        code = faults.code_of(error)
        if code not in ("DryRunOperation", "UnauthorizedOperation"):
            raise
        return code == "DryRunOperation"
    return True
