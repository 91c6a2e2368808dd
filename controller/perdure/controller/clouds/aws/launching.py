"""A launch in EC2's words: the parameters of RunInstances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.controller.clouds import booting, owners
from perdure.controller.clouds.aws import fabric
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.faulting import Refused
from perdure.recovery.market import Market, Offer

TAG = "perdure:"
DEFAULT_DISK_GIB = 100

# What EBS gives for SkyPilot's disk tiers.
DISK_TIERS: dict[str | None, dict[str, Any]] = {
    None: {"VolumeType": "gp3"},
    "none": {"VolumeType": "gp3"},
    "low": {"VolumeType": "gp2"},
    "medium": {"VolumeType": "gp3"},
    "high": {"VolumeType": "gp3", "Iops": 6000, "Throughput": 500},
    "ultra": {"VolumeType": "io2", "Iops": 16000},
    "best": {"VolumeType": "gp3", "Iops": 16000, "Throughput": 1000},
}

# Public parameters that name the newest image of a region.
CPU_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


@dataclass(frozen=True)
class Image:
    """`root_device`: the name under which the disk is given its size. `disk_gib`: the least it may be."""

    id: str
    root_device: str
    disk_gib: int


def image_parameter(offer: Offer) -> str:
    """The public parameter that names the image for a machine, when nobody names another."""
    return GPU_IMAGE if offer.accelerators else CPU_IMAGE


def wanted_image(request: LaunchRequest, images: Mapping[str, str]) -> str | None:
    """The AMI that the task, or the configuration, names; None if neither does. Raises Refused."""
    named = request.image_id or images.get(request.offer.region)
    if named is not None and not named.startswith("ami-"):
        raise Refused("InvalidAMIID.Malformed", f"image_id {named!r} is no EC2 image: write ami-…, or leave it out")
    return named


def run_instances(
    request: LaunchRequest,
    image: Image,
    *,
    subnet: str | None = None,
    instance_profile: str | None = None,
    security_group: str | None = None,
    adapters: Sequence[int] = (),
) -> dict[str, Any]:
    """The parameters of RunInstances: all of the request's machines, in one batch, or none.

    `adapters`: the network cards that are to carry an Elastic Fabric Adapter (see `fabric`).
    """
    offer = request.offer
    tags = [{"Key": key, "Value": value} for key, value in tags_of(request).items()]
    wanted: dict[str, Any] = {
        "ClientToken": request.owner.token,
        "ImageId": image.id,
        "InstanceType": offer.instance_type,
        "MinCount": request.num_nodes,
        "MaxCount": request.num_nodes,
        "Placement": {"AvailabilityZone": offer.zone},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": _disk(request, image)}],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        "UserData": booting.first_program(request.bootstrap, PERDURE_RANK_FROM="ec2"),
    }
    if offer.market is Market.SPOT:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        wanted["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    if adapters:
        wanted["NetworkInterfaces"] = fabric.interfaces(adapters, subnet=subnet, security_group=security_group)
    else:
        wanted |= {} if subnet is None else {"SubnetId": subnet}
        wanted |= {} if security_group is None else {"SecurityGroupIds": [security_group]}
    if instance_profile is not None:
        wanted["IamInstanceProfile"] = {"Name": instance_profile}
    return wanted


def tags_of(request: LaunchRequest) -> dict[str, str]:
    """The user's labels and, over them, whose the machine is."""
    return {**request.labels, "Name": request.name, **owners.written(request.owner, TAG)}


def _disk(request: LaunchRequest, image: Image) -> dict[str, Any]:
    size_gib = max(request.disk_gib or DEFAULT_DISK_GIB, image.disk_gib)
    tier = DISK_TIERS.get(request.disk_tier, DISK_TIERS[None])
    return {"VolumeSize": size_gib, "DeleteOnTermination": True, **tier}
