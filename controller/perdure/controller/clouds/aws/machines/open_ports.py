"""Opens ports of machines to the internet: a security group with exactly these, beside the one that they would have."""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.aws.machines.launch_request import TAG
from perdure.controller.clouds.aws.machines.network import vpc_of
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent, OpenPorts

ANYBODY = ({"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, {"Ipv6Ranges": [{"CidrIpv6": "::/0"}]})


def groups(ec2: Any, ports: OpenPorts, *, controller: str, subnet: str | None, usual: str | None) -> list[str]:
    """The security groups of a machine. `usual`: the one that it would have alone; None: the default of its VPC.

    `controller`: the one that a new group is tagged with. The policy of deploy/iam allows no change of other groups.
    """
    vpc = vpc_of(ec2, subnet)
    return [usual or _find(ec2, "default", vpc)["GroupId"], _ensure(ec2, ports, vpc, controller)]


def close(ec2: Any, name: str) -> None:
    """Delete the group. Raises EventuallyConsistent while a machine that is ending still uses it."""
    filters = [{"Name": "group-name", "Values": [name]}]
    for group in ec2.describe_security_groups(Filters=filters)["SecurityGroups"]:
        try:
            ec2.delete_security_group(GroupId=group["GroupId"])
        except Exception as error:
            if faults.code_of(error) in faults.MISSING_GROUP:
                continue
            if faults.code_of(error) != "DependencyViolation":
                raise
            raise EventuallyConsistent(str(error)) from error


def _ensure(ec2: Any, ports: OpenPorts, vpc: str, controller: str) -> str:
    """The group of that name with these ports open, and no others. Repeatable, whatever an earlier call left undone.

    A new group may not be visible to the next call: that raises EC2's error, which is transient (`faults`).
    """
    group = _find(ec2, ports.name, vpc)
    if group is None:
        text = "Ports of a cluster that Perdure has opened"
        tags = [{"Key": f"{TAG}controller", "Value": controller}, {"Key": "Name", "Value": ports.name}]
        marks = [{"ResourceType": "security-group", "Tags": tags}]
        try:
            created = ec2.create_security_group(
                GroupName=ports.name, Description=text, VpcId=vpc, TagSpecifications=marks
            )
            group = {"GroupId": created["GroupId"], "IpPermissions": []}
        except Exception as error:
            if faults.code_of(error) != "InvalidGroup.Duplicate":  # another call has created it meanwhile
                raise
            group = _find(ec2, ports.name, vpc)
    if group is None:
        raise CloudRejected("InvalidGroup.NotFound", f"the new security group {ports.name} is not visible yet")
    wanted = {(first, last) for first, last in ports.ranges}
    present = {(rule.get("FromPort"), rule.get("ToPort")) for rule in group["IpPermissions"]}
    if extra := [rule for rule in group["IpPermissions"] if (rule.get("FromPort"), rule.get("ToPort")) not in wanted]:
        ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=extra)
    if missing := sorted(wanted - present):
        rules = [
            {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, **ANYBODY[0], **ANYBODY[1]}
            for first, last in missing
        ]
        ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)
    return str(group["GroupId"])


def _find(ec2: Any, name: str, vpc: str) -> Any:
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    groups = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return groups[0] if groups else None
