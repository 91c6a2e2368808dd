"""Translates a launch request into the parameters of RunInstances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.controller.clouds.aws.machines import fabric
from perdure.controller.clouds.base import tags
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.launch_warnings import gang_on_ethernet
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.bootstrap.render import RankSource, render_boot_program
from perdure.recovery.market.view import Market, Offer

RANK_SOURCE = RankSource(
    "http://169.254.169.254",
    "/latest/meta-data/ami-launch-index",
    token_path="/latest/api/token",  # noqa: S106
    token_headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"},
    token_header="X-aws-ec2-metadata-token",  # noqa: S106
)
USER_DATA_SOURCE = replace(RANK_SOURCE, path="/latest/user-data")
TAG = "perdure:"
DEFAULT_DISK_GIB = 100

# SkyPilot's disk tiers as EBS volumes.
DISK_TIERS: dict[str | None, dict[str, Any]] = {
    None: {"VolumeType": "gp3"},
    "none": {"VolumeType": "gp3"},
    "low": {"VolumeType": "gp2"},
    "medium": {"VolumeType": "gp3"},
    "high": {"VolumeType": "gp3", "Iops": 6000, "Throughput": 500},
    "ultra": {"VolumeType": "io2", "Iops": 16000},
    "best": {"VolumeType": "gp3", "Iops": 16000, "Throughput": 1000},
}

# Of machines with GPUs, if the task names no tier: the usual 125 MiB/s write a checkpoint of 15 GiB in the two minutes
# of a notice, these one of 58 GiB, for two cents an hour.
GPU_DISK: dict[str, Any] = {"VolumeType": "gp3", "Iops": 3000, "Throughput": 500}

# docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html and provisioned-iops.html
MAX_IOPS_PER_GIB = {"gp3": 500, "io2": 500}
MIN_IOPS = {"gp3": 3000, "io2": 100}
MAX_THROUGHPUT_PER_IOPS = 0.25  # MiB/s

# aws.amazon.com/ebs/pricing, us-east-1, 2026. A gp3 volume includes some operations and throughput; io2 has a lower
# price above 32,000 operations, which no tier reaches.
HOURS_PER_MONTH = 730
PRICE_PER_GIB_MONTH = {"gp2": 0.10, "gp3": 0.08, "io2": 0.125}
PRICE_PER_IOPS_MONTH = {"gp2": 0.0, "gp3": 0.005, "io2": 0.065}
PRICE_PER_MIBPS_MONTH = 0.04
FREE_OF_VOLUME = {"gp2": (0, 0), "gp3": (3000, 125), "io2": (0, 0)}

# Public parameters that name the newest image of a region.
CPU_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


@dataclass(frozen=True)
class Image:
    """A machine image."""

    id: str
    root_device: str  # the device name of the boot disk
    disk_gib: int  # the minimum size of the boot disk


def image_parameter(offer: Offer) -> str:
    """The public parameter that names the default image for a machine."""
    return GPU_IMAGE if offer.accelerators else CPU_IMAGE


def wanted_image(request: LaunchRequest, images: Mapping[str, str]) -> str | None:
    """The AMI of the task or the configuration; None if neither names one. Raises CloudRejected."""
    named = request.image_id or images.get(request.offer.region)
    if named is not None and not named.startswith("ami-"):
        raise CloudRejected(
            "InvalidAMIID.Malformed", f"image_id {named!r} is not an EC2 image: write ami-…, or remove it"
        )
    return named


def run_instances(
    request: LaunchRequest,
    image: Image,
    *,
    subnet: str | None = None,
    instance_profile: str | None = None,
    security_groups: Sequence[str] = (),
    adapters: Sequence[int] = (),
) -> dict[str, Any]:
    """The parameters of RunInstances for all of the request's machines, in one batch, or none.

    `adapters`: the indexes of the network cards that get an Elastic Fabric Adapter (see `fabric`).
    """
    offer = request.offer
    tags = [{"Key": key, "Value": value} for key, value in tags_of(request).items()]
    parameters: dict[str, Any] = {
        "ClientToken": request.owner.token,
        "ImageId": image.id,
        "InstanceType": offer.instance_type,
        "MinCount": request.num_nodes,
        "MaxCount": request.num_nodes,
        "Placement": {"AvailabilityZone": offer.zone},
        "InstanceInitiatedShutdownBehavior": "stop" if request.keeps_disks else "terminate",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": _disk(request, image)}],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        "UserData": user_data(request),
    }
    if offer.market is Market.SPOT:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    if adapters:
        parameters["NetworkInterfaces"] = fabric.interfaces(adapters, subnet=subnet, security_groups=security_groups)
    else:
        parameters |= {} if subnet is None else {"SubnetId": subnet}
        parameters |= {"SecurityGroupIds": list(security_groups)} if security_groups else {}
    if instance_profile is not None:
        parameters["IamInstanceProfile"] = {"Name": instance_profile}
    return parameters


def user_data(request: LaunchRequest) -> str:
    """The first program of the machines. EC2 runs it at the first boot; a machine that is started again asks for it."""
    source = USER_DATA_SOURCE if request.keeps_disks else None
    return render_boot_program(request.bootstrap, RANK_SOURCE, user_data=source)


def disk_price_per_hour(disk_gib: int | None, disk_tier: str | None, *, has_gpus: bool = False) -> float:
    """USD per hour for the volume of one machine that is stopped, by the list price of us-east-1."""
    disk = _disk_options(max(disk_gib or DEFAULT_DISK_GIB, 8), disk_tier, has_gpus=has_gpus)
    kind, iops, throughput = disk["VolumeType"], disk.get("Iops", 0), disk.get("Throughput", 0)
    free_iops, free_throughput = FREE_OF_VOLUME[kind]
    monthly = PRICE_PER_GIB_MONTH[kind] * disk["VolumeSize"]
    monthly += PRICE_PER_IOPS_MONTH[kind] * max(0, iops - free_iops)
    monthly += PRICE_PER_MIBPS_MONTH * max(0, throughput - free_throughput)
    return float(monthly / HOURS_PER_MONTH)


def warnings(options: Mapping[str, Any], accelerators: tuple[str, float] | None, num_nodes: int) -> list[str]:
    """`WarnsOfLaunches.launch_warnings`."""
    if options.get("network_tier") == "best":
        return []
    hint = "without Elastic Fabric Adapters: `network_tier: best` attaches them"
    return gang_on_ethernet(accelerators, num_nodes, "aws", hint)


def tags_of(request: LaunchRequest) -> dict[str, str]:
    """The user's labels and the owner's tags, which take precedence."""
    return {**request.labels, "Name": request.name, **tags.to_tags(request.owner, TAG)}


def _disk(request: LaunchRequest, image: Image) -> dict[str, Any]:
    size_gib = max(request.disk_gib or DEFAULT_DISK_GIB, image.disk_gib)
    return {
        "DeleteOnTermination": True,
        "Encrypted": True,
        **_disk_options(size_gib, request.disk_tier, has_gpus=request.offer.accelerators is not None),
    }


def _disk_options(size_gib: int, disk_tier: str | None, *, has_gpus: bool) -> dict[str, Any]:
    tier = dict(GPU_DISK if disk_tier is None and has_gpus else DISK_TIERS.get(disk_tier, DISK_TIERS[None]))
    if "Iops" in tier:
        # More is InvalidParameterCombination. Every gp3 volume has 3,000, whatever its size.
        allowed = size_gib * MAX_IOPS_PER_GIB[tier["VolumeType"]]
        tier["Iops"] = min(tier["Iops"], max(allowed, MIN_IOPS[tier["VolumeType"]]))
    if "Throughput" in tier:
        tier["Throughput"] = min(tier["Throughput"], int(tier["Iops"] * MAX_THROUGHPUT_PER_IOPS))
    return {"VolumeSize": size_gib, **tier}
