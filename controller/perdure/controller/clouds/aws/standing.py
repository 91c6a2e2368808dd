"""What a controller's own machine needs in EC2 beside the machine: a disk, an address, an open port, a role.

All of it is found again by its tag or name, so that each step can be done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.aws.launching import TAG
from perdure.controller.clouds.base import Disk, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.faulting import Refused
from perdure.controller.hosting.cloud_config import cloud_config

STATE_TAG = f"{TAG}state"
DEVICE = "/dev/sdf"
_POLICY = Path(__file__).with_name("controller_policy.json")  # deploy/iam/aws-controller.json
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


def state_disk(ec2: Any, name: str, zone: str, gib: int) -> Disk:
    """The volume with that tag; made, encrypted, in `zone` if there is none."""
    found = _volumes(ec2, name)
    volume = found[0] if found else _make_disk(ec2, name, zone, gib)
    is_ready = volume["State"] in ("available", "in-use")
    return Disk(volume["VolumeId"], volume["AvailabilityZone"], volume["Size"], is_ready)


def remove_disk(ec2: Any, name: str) -> None:
    """Raises NotYet while a machine has it."""
    for volume in _volumes(ec2, name):
        if volume["State"] != "available":
            raise NotYet(f"{volume['VolumeId']} is {volume['State']}")
        ec2.delete_volume(VolumeId=volume["VolumeId"])


def _volumes(ec2: Any, name: str) -> list[Any]:
    filters = [
        {"Name": f"tag:{STATE_TAG}", "Values": [name]},
        {"Name": "status", "Values": ["creating", "available", "in-use"]},
    ]
    return list(ec2.describe_volumes(Filters=filters)["Volumes"])


def _make_disk(ec2: Any, name: str, zone: str, gib: int) -> Any:
    tags = [{"Key": STATE_TAG, "Value": name}, {"Key": "Name", "Value": "perdure-controller-state"}]
    return ec2.create_volume(
        AvailabilityZone=zone,
        Size=gib,
        VolumeType="gp3",
        Encrypted=True,
        ClientToken=hashlib.sha256(f"{name}:{zone}".encode()).hexdigest(),
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )


def parameters(launch: Mapping[str, Any], request: LaunchRequest, standing: Standing, *, group: str) -> dict[str, Any]:
    """RunInstances for a controller's machine, from those of a node's."""
    device = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{standing.disk.id.replace('-', '')}"
    return {
        **launch,
        "UserData": cloud_config(standing.program, home=standing.home, device=device),
        "SecurityGroupIds": [group],
        "ClientToken": request.owner.token,
    }


def open_port(ec2: Any, request: LaunchRequest, standing: Standing, subnet: str | None) -> str:
    """The id of a security group that lets `standing.callers` reach the port, and nobody anything else."""
    vpc, name = _vpc(ec2, subnet), _group(request.owner.controller)
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    found = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    if found:
        id, open_now = found[0]["GroupId"], found[0]["IpPermissions"]
    else:
        made = ec2.create_security_group(GroupName=name, Description="Calls to the Perdure controller", VpcId=vpc)
        id, open_now = made["GroupId"], []
    callers = [{"CidrIp": standing.callers}] if ":" not in standing.callers else []
    callers_6 = [] if callers else [{"CidrIpv6": standing.callers}]
    wanted = {"IpProtocol": "tcp", "FromPort": standing.port, "ToPort": standing.port}
    wanted |= {"IpRanges": callers} if callers else {"Ipv6Ranges": callers_6}
    if not (len(open_now) == 1 and all(open_now[0].get(name) == value for name, value in wanted.items())):
        if open_now:
            ec2.revoke_security_group_ingress(GroupId=id, IpPermissions=open_now)
        ec2.authorize_security_group_ingress(GroupId=id, IpPermissions=[wanted])
    return str(id)


def close_port(ec2: Any, name: str) -> None:
    """The security group is no more. Raises NotYet while a machine that ends has it still."""
    filters = [{"Name": "group-name", "Values": [_group(name)]}]
    for group in ec2.describe_security_groups(Filters=filters)["SecurityGroups"]:
        try:
            ec2.delete_security_group(GroupId=group["GroupId"])
        except Exception as error:
            if faults.code_of(error) != "DependencyViolation":
                raise
            raise NotYet(str(error)) from error


def _group(name: str) -> str:
    return f"perdure-{name}"


def _vpc(ec2: Any, subnet: str | None) -> str:
    if subnet is not None:
        return str(ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"])
    found = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not found:
        raise Refused("VPCIdNotSpecified", "this region has no default VPC")
    return str(found[0]["VpcId"])


def give_role(iam: Any, name: str) -> None:
    """An instance profile of that name with a role. A role that is made here may do what deploy/iam lists; one that
    was there before is used as it is."""
    marks = [{"Key": f"{TAG}made", "Value": "controller up"}]
    try:
        tags = iam.get_role(RoleName=name)["Role"].get("Tags", [])
    except iam.exceptions.NoSuchEntityException:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_TRUST), Tags=marks)
        tags = marks
    if marks[0] in tags:
        iam.put_role_policy(RoleName=name, PolicyName="perdure-controller", PolicyDocument=_POLICY.read_text())
    try:
        roles = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    except iam.exceptions.NoSuchEntityException:
        iam.create_instance_profile(InstanceProfileName=name)
        roles = []
    if not roles:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def run(ec2: Any, wanted: dict[str, Any]) -> Any:
    """RunInstances. Raises NotYet for a role that EC2 has not heard of yet: IAM is slow to tell."""
    try:
        return ec2.run_instances(**wanted)
    except Exception as error:
        if faults.code_of(error) == "InvalidParameterValue" and "iamInstanceProfile" in str(error):
            raise NotYet(str(error)) from error
        raise


def attach(ec2: Any, instance: str, disk: Disk) -> bool:
    """Whether the volume is the machine's now; False while it is another's, or not ready."""
    (volume,) = ec2.describe_volumes(VolumeIds=[disk.id])["Volumes"]
    holders = {held["InstanceId"] for held in volume.get("Attachments", ()) if held["State"] != "detached"}
    if instance in holders:
        return True
    if not holders and volume["State"] == "available":
        ec2.attach_volume(VolumeId=disk.id, InstanceId=instance, Device=DEVICE)
        return True
    return False


def give_address(ec2: Any, name: str, instance: str) -> str:
    """The public address that is kept for machines of that name, and leads to this one now."""
    found = _addresses(ec2, name)
    if not found:
        tags = [{"Key": STATE_TAG, "Value": name}, {"Key": "Name", "Value": "perdure-controller"}]
        marks = [{"ResourceType": "elastic-ip", "Tags": tags}]
        found = [ec2.allocate_address(Domain="vpc", TagSpecifications=marks)]
    if found[0].get("InstanceId") != instance:
        ec2.associate_address(AllocationId=found[0]["AllocationId"], InstanceId=instance, AllowReassociation=True)
    return str(found[0]["PublicIp"])


def give_address_back(ec2: Any, name: str) -> None:
    """An address is billed as long as it is kept."""
    for one in _addresses(ec2, name):
        ec2.release_address(AllocationId=one["AllocationId"])


def _addresses(ec2: Any, name: str) -> list[Any]:
    return list(ec2.describe_addresses(Filters=[{"Name": f"tag:{STATE_TAG}", "Values": [name]}])["Addresses"])
