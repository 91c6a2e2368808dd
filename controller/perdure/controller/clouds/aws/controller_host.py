"""The EC2 resources of a controller's own machine: a disk, an address and an open port. Its role: `iam.roles`.

Each is identified by its tag or name, so that every step is idempotent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.aws.machines.launch_request import TAG
from perdure.controller.clouds.aws.machines.network import vpc_of
from perdure.controller.clouds.base.protocol import Disk, EventuallyConsistent, HostRequirements, LaunchRequest
from perdure.controller.clouds.bootstrap.cloud_config import render_cloud_config

STATE_TAG = f"{TAG}state"
DEVICE = "/dev/sdf"


def state_disk(ec2: Any, name: str, zone: str, gib: int) -> Disk:
    """The volume with that tag; created, encrypted, in `zone` if there is none."""
    volumes = _volumes(ec2, name)
    volume = volumes[0] if volumes else _create_disk(ec2, name, zone, gib)
    is_ready = volume["State"] in ("available", "in-use")
    return Disk(volume["VolumeId"], volume["AvailabilityZone"], volume["Size"], is_ready)


def remove_disk(ec2: Any, name: str) -> None:
    """Raises EventuallyConsistent while the disk is attached to a machine."""
    for volume in _volumes(ec2, name):
        if volume["State"] != "available":
            raise EventuallyConsistent(f"{volume['VolumeId']} is {volume['State']}")
        ec2.delete_volume(VolumeId=volume["VolumeId"])


def _volumes(ec2: Any, name: str) -> list[Any]:
    filters = [
        {"Name": f"tag:{STATE_TAG}", "Values": [name]},
        {"Name": "status", "Values": ["creating", "available", "in-use"]},
    ]
    return list(ec2.describe_volumes(Filters=filters)["Volumes"])


def _create_disk(ec2: Any, name: str, zone: str, gib: int) -> Any:
    tags = [{"Key": STATE_TAG, "Value": name}, {"Key": "Name", "Value": "perdure-controller-state"}]
    return ec2.create_volume(
        AvailabilityZone=zone,
        Size=gib,
        VolumeType="gp3",
        Encrypted=True,
        ClientToken=hashlib.sha256(f"{name}:{zone}".encode()).hexdigest(),
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )


def parameters(
    launch: Mapping[str, Any], request: LaunchRequest, needs: HostRequirements, *, group: str
) -> dict[str, Any]:
    """The parameters of RunInstances for a controller's machine, based on those of a node."""
    device = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{needs.disk.id.replace('-', '')}"
    return {
        **launch,
        "UserData": render_cloud_config(needs.program, home=needs.home, device=device),
        "SecurityGroupIds": [group],
        "ClientToken": request.owner.token,
    }


def open_port(ec2: Any, request: LaunchRequest, needs: HostRequirements, subnet: str | None) -> str:
    """The id of a security group that admits `needs.allowed_cidr` to the port, and nothing else."""
    vpc, name = vpc_of(ec2, subnet), _group(request.owner.controller)
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    groups = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    if groups:
        id, open_now = groups[0]["GroupId"], groups[0]["IpPermissions"]
    else:
        created = ec2.create_security_group(GroupName=name, Description="Calls to the Perdure controller", VpcId=vpc)
        id, open_now = created["GroupId"], []
    rule: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": needs.port, "ToPort": needs.port}
    if ":" in needs.allowed_cidr:
        rule["Ipv6Ranges"] = [{"CidrIpv6": needs.allowed_cidr}]
    else:
        rule["IpRanges"] = [{"CidrIp": needs.allowed_cidr}]
    if not (len(open_now) == 1 and all(open_now[0].get(name) == value for name, value in rule.items())):
        if open_now:
            ec2.revoke_security_group_ingress(GroupId=id, IpPermissions=open_now)
        ec2.authorize_security_group_ingress(GroupId=id, IpPermissions=[rule])
    return str(id)


def close_port(ec2: Any, name: str) -> None:
    """Delete the security group. Raises EventuallyConsistent while a machine that is ending still uses it."""
    filters = [{"Name": "group-name", "Values": [_group(name)]}]
    for group in ec2.describe_security_groups(Filters=filters)["SecurityGroups"]:
        try:
            ec2.delete_security_group(GroupId=group["GroupId"])
        except Exception as error:
            if faults.code_of(error) != "DependencyViolation":
                raise
            raise EventuallyConsistent(str(error)) from error


def _group(name: str) -> str:
    return f"perdure-{name}"


def run(ec2: Any, parameters: dict[str, Any]) -> Any:
    """Call RunInstances. Raises EventuallyConsistent for a new role that IAM has not propagated to EC2 yet."""
    try:
        return ec2.run_instances(**parameters)
    except Exception as error:
        if faults.code_of(error) == "InvalidParameterValue" and "iamInstanceProfile" in str(error):
            raise EventuallyConsistent(str(error)) from error
        raise


def attach(ec2: Any, instance: str, disk: Disk) -> bool:
    """Attach the volume. False while it is attached to another machine, or not ready."""
    (volume,) = ec2.describe_volumes(VolumeIds=[disk.id])["Volumes"]
    holders = {held["InstanceId"] for held in volume.get("Attachments", ()) if held["State"] != "detached"}
    if instance in holders:
        return True
    if not holders and volume["State"] == "available":
        ec2.attach_volume(VolumeId=disk.id, InstanceId=instance, Device=DEVICE)
        return True
    return False


def assign_address(ec2: Any, name: str, instance: str) -> str:
    """Assign the public address reserved for that name to this machine, and return it. Reserve one if there is none."""
    addresses = _addresses(ec2, name)
    if not addresses:
        tags = [{"Key": STATE_TAG, "Value": name}, {"Key": "Name", "Value": "perdure-controller"}]
        marks = [{"ResourceType": "elastic-ip", "Tags": tags}]
        addresses = [ec2.allocate_address(Domain="vpc", TagSpecifications=marks)]
    if addresses[0].get("InstanceId") != instance:
        ec2.associate_address(AllocationId=addresses[0]["AllocationId"], InstanceId=instance, AllowReassociation=True)
    return str(addresses[0]["PublicIp"])


def release_address(ec2: Any, name: str) -> None:
    """A reserved address is billed until it is released."""
    for address in _addresses(ec2, name):
        ec2.release_address(AllocationId=address["AllocationId"])


def _addresses(ec2: Any, name: str) -> list[Any]:
    return list(ec2.describe_addresses(Filters=[{"Name": f"tag:{STATE_TAG}", "Values": [name]}])["Addresses"])
