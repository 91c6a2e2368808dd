"""EC2 as a `Cloud`. Every call is made once, with a time-out; `faults` classifies failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.aws import controller_host, faults
from perdure.controller.clouds.aws.account_check import AwsAccountCheck
from perdure.controller.clouds.aws.iam import denial, roles
from perdure.controller.clouds.aws.machines import (
    console,
    launch_request,
    open_ports,
    parse,
    restart,
    simulate_interruption,
)
from perdure.controller.clouds.aws.machines.fabric import Fabric
from perdure.controller.clouds.aws.machines.launch_request import TAG, Image
from perdure.controller.clouds.aws.notices import SqsQueue
from perdure.controller.clouds.aws.pricing import catalog, region_prices, sizes
from perdure.controller.clouds.aws.pricing.catalog import TYPES, on_demand_price
from perdure.controller.clouds.aws.pricing.placement_scores import PlacementScores
from perdure.controller.clouds.aws.sdk.connections import HOME_REGION, AwsConnections
from perdure.controller.clouds.aws.sdk.slow_cache import TtlCache
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base import launch_rehearsal
from perdure.controller.clouds.base.account_checks import Finding
from perdure.controller.clouds.base.drivers import DriverFilter
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.notice_queue import NoticeQueue
from perdure.controller.clouds.base.partial_listing import combine
from perdure.controller.clouds.base.protocol import (
    Disk,
    Fault,
    HostRequirements,
    Instance,
    InstanceState,
    LaunchRequest,
    StoppedMachineLost,
)
from perdure.controller.clouds.base.recent_launches import RecentLaunches
from perdure.controller.clouds.pricing.cache import OfferCache
from perdure.controller.clouds.pricing.price_list import PriceList, PriceSource
from perdure.controller.clouds.pricing.region_catalog import RegionCatalog, host_offers
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.history import Advice
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Offer

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ReservationTypeDef

IDS_PER_CALL = 100
MAX_CONCURRENT_REGIONS = 16
IMAGE_AGE_S = 3600.0


class AwsCloud:
    """A `Cloud` with all optional abilities; `interrupt` needs `aws.fis_role`. `cache`: stores the offers."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, cache: OfferCache, settings: AwsSettings, clock: Clock, *, name: str = "aws") -> None:
        self.name = name
        self.settings = settings
        # In another zone, a machine would be in the default VPC, from which it may not reach the controller.
        self._driver_filter = DriverFilter("aws", settings.images.__contains__, zones=settings.subnets)
        self._clock = clock
        self._connections = AwsConnections(settings, clock)
        self._shapes = TtlCache("types", lambda region: sizes.fetch_shapes(self._connections.ec2(region)), clock)
        self._on_demand_prices = TtlCache(
            "prices", lambda region: region_prices.fetch_on_demand(self._connections.pricing(), region), clock
        )
        source = PriceSource(
            name,
            TYPES,
            self.regions,
            self._crawl,
            on_demand_price,
            faults.classify,
            fallback=catalog.fallback,
            fallback_regions=tuple(catalog.ZONES),
            catalog_month=catalog.CATALOG_MONTH,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)
        self._scores = PlacementScores(name, clock, regions=self.regions, client=self._connections.ec2)
        self._fabric = Fabric(self._connections.ec2)
        self._lock = threading.Lock()
        self._images: dict[tuple[str, str], tuple[float, Image]] = {}
        self._recent = RecentLaunches(clock)
        self._enabled: tuple[str, ...] = ()

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        prices = self.prices.table_in_use() or "prices are AWS's list prices, without your discounts"
        images = [] if self.settings.images else ["machines run the newest Ubuntu image of their region"]
        return list(dict.fromkeys([prices, *images, *self.prices.notes()]))

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self._driver_filter.select(self.prices.offers())

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        offer, usual = request.offer, self.settings.security_groups.get(request.offer.region)
        parameters = self._parameters(request)
        try:
            response = self._connections.ec2(offer.region).run_instances(**parameters)
        except Exception as error:
            if faults.code_of(error) in faults.MISSING_GROUP and usual is not None and usual in str(error):
                message = f"aws.security_groups: {usual} does not exist in {offer.region}"
                raise CloudRejected("InvalidParameterValue", message) from error
            if faults.code_of(error) == denial.CODE:
                raise denial.explained(error, lambda: self._connections.service("sts", offer.region)) from error
            if faults.code_of(error) != "IdempotentParameterMismatch":
                raise
            # The token was used with other parameters: the image or the agent has changed since.
            launched = self._tagged(offer.region, "token", request.owner.token)
            if not launched:
                raise
            return launched
        launched = parse.instances([response], offer.region)
        if len(launched) != request.num_nodes:
            self.terminate(offer.region, [instance["InstanceId"] for instance in response["Instances"]])
            message = (
                f"only {len(launched)} of {request.num_nodes} machines started in {offer.zone}; they are terminated"
            )
            raise CloudRejected("InsufficientInstanceCapacity", message)
        self._recent.add(launched)
        return launched

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        listed = {i.id: i for batch in _batches(ids) for i in self._find(region, {"instance-id": batch})}
        recent = {i.id: i for i in self._recent.find(region, ids)}
        return list({**recent, **listed}.values())

    def list_owned(self, controller: str) -> Sequence[Instance]:
        def of_region(region: str) -> Sequence[Instance] | Exception:
            try:
                return self._tagged(region, "controller", controller, living=True)
            except Exception as error:  # noqa: BLE001 - a region that is denied must not hide the others
                return error

        regions = self.regions()
        with ThreadPoolExecutor(MAX_CONCURRENT_REGIONS, thread_name_prefix="aws-list") as pool:
            return combine(dict(zip(regions, pool.map(of_region, regions), strict=True)))

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        for batch in _batches(ids):
            self._terminate(region, batch)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- the optional protocols ----

    def stop(self, region: str, ids: Sequence[str]) -> None:
        ec2, states = self._connections.ec2(region), (InstanceState.PENDING, InstanceState.RUNNING)
        for batch in _batches(ids):
            on = [one.id for one in self._find(region, {"instance-id": batch}) if one.state in states]
            if on:
                ec2.stop_instances(InstanceIds=on)

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        region = request.offer.region
        machines = {one.id: one for one in self._find(region, {"instance-id": list(ids)})}
        if any(id not in machines or machines[id].state is InstanceState.GONE for id in ids):
            raise StoppedMachineLost(", ".join(ids))
        off = [id for id in ids if machines[id].state is InstanceState.STOPPED]
        try:
            if off:
                restart.start(self._connections.ec2(region), request, off)
        except Exception as error:
            if self.classify(error).kind is not FaultKind.AMBIGUOUS:  # otherwise the call is repeated
                self.stop(region, off)
            raise
        return self._find(region, {"instance-id": list(ids)})

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        described = (
            one for part in self._reservations(region, {"instance-id": list(ids)}) for one in part["Instances"]
        )
        return {one["InstanceId"]: address for one in described if (address := one.get("PublicIpAddress"))}

    def close_ports(self, region: str, name: str) -> None:
        open_ports.close(self._connections.ec2(region), name)

    launch_warnings = staticmethod(launch_request.warnings)

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:
        return launch_request.disk_price_per_hour(disk_gib, disk_tier, has_gpus=offer.accelerators is not None)

    def console_output(self, region: str, id: str) -> str:
        return console.fetch_output(self._connections.ec2(region), id)

    def advice(self) -> Sequence[Advice]:
        return self._scores.advice() if self.settings.placement_scores else ()

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [SqsQueue(self.name, url, self._connections.sqs) for url in self.settings.interruption_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """EC2 determines the notice, two minutes. Raises CloudRejected if no such spot machine runs."""
        if self.settings.fis_role is None:
            message = "EC2 simulates interruptions under a role: set aws.fis_role in config.yaml"
            raise CloudRejected("UnsupportedOperation", message)
        # The service reports a missing target only in its console.
        reservations = self._reservations(region, {"instance-id": [instance_id]})
        if not any(parse.is_running_spot(one) for reservation in reservations for one in reservation["Instances"]):
            raise CloudRejected("IncorrectInstanceState", f"{instance_id} is not a running spot instance")
        simulate_interruption.interrupt(self._connections.fis(region), self.settings.fis_role, region, instance_id)

    def environment_settings(self) -> Mapping[str, str]:
        return {}

    def host_offers(self, region: str) -> Sequence[Offer]:
        zones = region_prices.fetch_zones(self._connections.ec2(region), catalog.HOST_TYPES)
        usable = {
            zone: names for zone, names in zones.items() if not self.settings.subnets or zone in self.settings.subnets
        }
        return host_offers(self.name, region, usable, catalog.HOST_TYPES, on_demand_price)

    def store_settings(self, role: str) -> Mapping[str, Mapping[str, str]]:
        arn = roles.node_role(self._connections.iam(HOME_REGION), role)
        return {"s3": {"node_role": arn}} if arn else {}

    def renew_roles(self, role: str) -> None:
        roles.renew_roles(self._connections.iam(HOME_REGION), role)

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        return controller_host.state_disk(self._connections.ec2(region), name, zone, gib)

    def launch_host(self, request: LaunchRequest, needs: HostRequirements) -> Instance:
        region, zone = request.offer.region, request.offer.zone
        ec2, subnet = self._connections.ec2(region), self.settings.subnets.get(zone)
        roles.ensure_roles(self._connections.iam(region), needs.role)
        group = controller_host.open_port(ec2, request, needs, subnet)
        of_node = launch_request.run_instances(
            request, self._image(request), subnet=subnet, instance_profile=needs.role
        )
        response = controller_host.run(ec2, controller_host.parameters(of_node, request, needs, group=group))
        (launched,) = parse.instances([response], region)
        self._recent.add([launched])
        return launched

    def attach_disk(self, instance: Instance, disk: Disk) -> str | None:
        ec2 = self._connections.ec2(instance.region)
        if instance.state is not InstanceState.RUNNING or not controller_host.attach(ec2, instance.id, disk):
            return None
        return controller_host.assign_address(ec2, instance.owner.controller, instance.id)

    def release(self, name: str, region: str) -> None:
        controller_host.release_address(self._connections.ec2(region), name)
        controller_host.close_port(self._connections.ec2(region), name)

    def remove_disk(self, name: str, region: str) -> None:
        controller_host.remove_disk(self._connections.ec2(region), name)

    def check(self) -> Sequence[Finding]:
        return AwsAccountCheck(self.settings, self._connections, self.regions).findings()

    def rehearse(self) -> Sequence[Finding]:
        return launch_rehearsal.rehearse(launch_rehearsal.sample_offers(self.offers()), self._dry_run, faults.classify)

    # ---- private ----

    def _parameters(self, request: LaunchRequest) -> dict[str, Any]:
        """The parameters of RunInstances. Creates the security group of open ports. Raises CloudRejected."""
        offer, subnet = request.offer, self.settings.subnets.get(request.offer.zone)
        is_best, usual = request.network_tier == "best", self.settings.security_groups.get(offer.region)
        groups = [] if usual is None else [usual]
        if request.open_ports is not None:
            ec2 = self._connections.ec2(offer.region)
            controller = request.owner.controller
            groups = open_ports.groups(ec2, request.open_ports, controller=controller, subnet=subnet, usual=usual)
        return launch_request.run_instances(
            request,
            self._image(request),
            subnet=subnet,
            adapters=self._fabric.cards(offer.region, offer.instance_type, subnet) if is_best else (),
            instance_profile=self.settings.instance_profile,
            security_groups=groups,
        )

    def _dry_run(self, offer: Offer) -> None:
        """Raises EC2's error for a machine of the offer that it would not launch for lack of anything but capacity."""
        parameters = self._parameters(launch_rehearsal.request_for(offer))
        del parameters["ClientToken"]
        try:
            self._connections.ec2(offer.region).run_instances(**parameters, DryRun=True)
        except Exception as error:
            if faults.code_of(error) == denial.CODE:
                raise denial.explained(error, lambda: self._connections.service("sts", offer.region)) from error
            if faults.code_of(error) != "DryRunOperation":
                raise

    def regions(self) -> Sequence[str]:
        """The regions in use: the configured ones, or all that the account has enabled."""
        if self.settings.regions:
            return self.settings.regions
        if not self._enabled:
            enabled = self._connections.ec2(HOME_REGION).describe_regions()["Regions"]
            self._enabled = tuple(sorted(region["RegionName"] for region in enabled))
        return self._enabled

    def _crawl(self, region: str, now: float) -> RegionCatalog:
        shapes = self._shapes.get(region)
        types = TYPES.keys() | shapes.keys()
        zones = region_prices.fetch_spot(self._connections.ec2(region), now, types)
        listed = self._on_demand_prices.get(region)
        return RegionCatalog(zones, {name: listed[name] for name in types if name in listed}, dict(shapes))

    def _terminate(self, region: str, ids: Sequence[str]) -> None:
        """An unknown id makes EC2 reject the whole call: then repeat it with the known ids."""
        ec2 = self._connections.ec2(region)
        try:
            ec2.terminate_instances(InstanceIds=ids)
        except Exception as error:
            if not faults.code_of(error).startswith("InvalidInstanceID."):
                raise
            known = [instance.id for instance in self._find(region, {"instance-id": ids})]
            if known:
                ec2.terminate_instances(InstanceIds=known)

    def _tagged(self, region: str, tag: str, value: str, *, living: bool = False) -> list[Instance]:
        states = {"instance-state-name": parse.LIVING} if living else {}
        return self._find(region, {f"tag:{TAG}{tag}": [value], **states})

    def _find(self, region: str, filters: dict[str, Sequence[str]]) -> list[Instance]:
        """Filters, unlike ids, may name instances that do not exist."""
        return parse.instances(self._reservations(region, filters), region)

    def _reservations(self, region: str, filters: dict[str, Sequence[str]]) -> Iterator[ReservationTypeDef]:
        pages = (
            self._connections.ec2(region)
            .get_paginator("describe_instances")
            .paginate(Filters=[{"Name": name, "Values": values} for name, values in filters.items()])
        )
        return (reservation for page in pages for reservation in page["Reservations"])

    def _image(self, request: LaunchRequest) -> Image:
        """The image to boot, cached for an hour. Raises CloudRejected if it does not exist."""
        region = request.offer.region
        named = launch_request.wanted_image(request, self.settings.images)
        key = (region, named or launch_request.image_parameter(request.offer))
        with self._lock:
            at, image = self._images.get(key, (0.0, None))
        now = self._clock.now()
        if image is None or now - at >= IMAGE_AGE_S:
            image = self._describe_image(region, named or self._public_image(*key))
            with self._lock:
                self._images[key] = (now, image)
        return image

    def _public_image(self, region: str, parameter: str) -> str:
        response = self._connections.ssm(region).get_parameter(Name=parameter)
        return str(response["Parameter"]["Value"])

    def _describe_image(self, region: str, id: str) -> Image:
        images = self._connections.ec2(region).describe_images(ImageIds=[id])["Images"]
        if not images:
            raise CloudRejected("InvalidAMIID.NotFound", f"there is no image {id} in {region}")
        root = images[0].get("RootDeviceName") or "/dev/sda1"
        disks = {disk.get("DeviceName"): disk.get("Ebs", {}) for disk in images[0].get("BlockDeviceMappings", ())}
        return Image(id, root, disks.get(root, {}).get("VolumeSize", 0))


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_PER_CALL):
        yield list(ids[start : start + IDS_PER_CALL])
