"""The network of machines."""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.base.faults import CloudRejected


def vpc_of(ec2: Any, subnet: str | None) -> str:
    """The id of the VPC of a subnet; None: the region's default VPC. Raises CloudRejected if there is none."""
    if subnet is not None:
        return str(ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"])
    vpcs = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not vpcs:
        raise CloudRejected("VPCIdNotSpecified", "this region has no default VPC")
    return str(vpcs[0]["VpcId"])
