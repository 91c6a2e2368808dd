"""EC2 as a `Cloud`. Every call is made once, with a time-out; what it means when it fails, `faults` says."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from perdure.controller.clock import Clock
from perdure.controller.clouds.aws import (
    catalog,
    faults,
    launching,
    pricelists,
    prices,
    reading,
    rehearsal,
    sizes,
    standing,
)
from perdure.controller.clouds.aws.catalog import TYPES, on_demand_price
from perdure.controller.clouds.aws.checking import Checking
from perdure.controller.clouds.aws.connections import HOME_REGION, Connections
from perdure.controller.clouds.aws.fabric import Fabric
from perdure.controller.clouds.aws.launching import TAG, Image
from perdure.controller.clouds.aws.notices import SqsQueue
from perdure.controller.clouds.aws.placement import PlacementScores
from perdure.controller.clouds.aws.seldom import Seldom
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base import Disk, Fault, Instance, InstanceState, LaunchRequest, Standing
from perdure.controller.clouds.checks import Finding
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.fresh import Fresh
from perdure.controller.clouds.offercache import OfferCache
from perdure.controller.clouds.pricelist import PriceList, Source
from perdure.controller.clouds.queues import NoticeQueue
from perdure.controller.clouds.sold import Sold
from perdure.recovery.history import Advice
from perdure.recovery.market import Offer

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ReservationTypeDef

IDS_AT_ONCE = 100
REGIONS_AT_ONCE = 16
IMAGE_AGE_S = 3600.0


class AwsCloud:
    """A `Cloud`, and `Interruptible` if `aws.fis_role` is set. `cache`: where what it sells is kept."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, cache: OfferCache, settings: AwsSettings, clock: Clock, *, name: str = "aws") -> None:
        self.name = name
        self.settings = settings
        self._clock = clock
        self._connections = Connections(settings, clock)
        self._shapes = Seldom("types", lambda region: sizes.of_region(self._connections.ec2(region)), clock)
        self._listed = Seldom("prices", lambda region: pricelists.of_region(self._connections.pricing(), region), clock)
        source = Source(
            name,
            TYPES,
            self.regions,
            self._crawl,
            on_demand_price,
            faults.classify,
            table=catalog.sold,
            table_regions=tuple(catalog.ZONES),
            table_of=catalog.TYPED,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)
        self._scores = PlacementScores(name, clock, regions=self.regions, client=self._connections.ec2)
        self._fabric = Fabric(self._connections.ec2)
        self._lock = threading.Lock()
        self._images: dict[tuple[str, str], tuple[float, Image]] = {}
        self._fresh = Fresh(clock)
        self._enabled: tuple[str, ...] = ()

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        where = "prices are AWS's own, without what you have agreed upon with it"
        images = [] if self.settings.images else ["machines run the newest Ubuntu image of their region"]
        return [where, *images, *self.prices.notes()]

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self.prices.offers()

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        offer = request.offer
        image = self._image(request)
        subnet = self.settings.subnets.get(offer.zone)
        is_best = request.network_tier == "best"
        parameters = launching.run_instances(
            request,
            image,
            subnet=subnet,
            adapters=self._fabric.cards(offer.region, offer.instance_type, subnet) if is_best else (),
            instance_profile=self.settings.instance_profile,
            security_group=self.settings.security_groups.get(offer.region),
        )
        try:
            answer = self._connections.ec2(offer.region).run_instances(**parameters)
        except Exception as error:
            if faults.code_of(error) != "IdempotentParameterMismatch":
                raise
            # The token has bought, with other words: an image or an agent that has changed since.
            bought = self._tagged(offer.region, "token", request.owner.token)
            if not bought:
                raise
            return bought
        bought = reading.instances([answer], offer.region)
        if len(bought) != request.num_nodes:
            self.terminate(offer.region, [told["InstanceId"] for told in answer["Instances"]])
            message = f"{len(bought)} of {request.num_nodes} machines came to be in {offer.zone}, and were given back"
            raise Refused("InsufficientInstanceCapacity", message)
        self._fresh.remember(bought)
        return bought

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        seen = {i.id: i for some in _portions(ids) for i in self._find(region, {"instance-id": some})}
        fresh = {i.id: i for i in self._fresh.among(region, ids)}
        return list({**fresh, **seen}.values())

    def list_owned(self, controller: str) -> Sequence[Instance]:
        regions = self.regions()
        with ThreadPoolExecutor(REGIONS_AT_ONCE, thread_name_prefix="aws-list") as pool:
            found = pool.map(lambda region: self._tagged(region, "controller", controller, living=True), regions)
            return [instance for some in found for instance in some]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        for some in _portions(ids):
            self._terminate(region, some)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- what only some clouds can do ----

    def advice(self) -> Sequence[Advice]:
        return self._scores.advice() if self.settings.placement_scores else ()

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [SqsQueue(self.name, url, self._connections.sqs) for url in self.settings.notice_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """EC2 alone says how long the notice is (two minutes). Raises Refused if there is nothing to take."""
        if self.settings.fis_role is None:
            message = "EC2 rehearses an interruption only under a role: name it in aws.fis_role of config.yaml"
            raise Refused("UnsupportedOperation", message)
        # The service itself would only note in its console that it found nothing.
        found = self._reservations(region, {"instance-id": [instance_id]})
        if not any(reading.is_running_spot(one) for reservation in found for one in reservation["Instances"]):
            raise Refused("IncorrectInstanceState", f"{instance_id} is no spot instance that runs")
        rehearsal.interrupt(self._connections.fis(region), self.settings.fis_role, region, instance_id)

    def found_here(self) -> Mapping[str, str]:
        return {}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        return standing.state_disk(self._connections.ec2(region), name, zone, gib)

    def stand(self, request: LaunchRequest, needs: Standing) -> Instance:
        region, zone = request.offer.region, request.offer.zone
        ec2, subnet = self._connections.ec2(region), self.settings.subnets.get(zone)
        standing.give_role(self._connections.iam(region), needs.role)
        group = standing.open_port(ec2, request, needs, subnet)
        of_node = launching.run_instances(request, self._image(request), subnet=subnet, instance_profile=needs.role)
        answer = standing.run(ec2, standing.parameters(of_node, request, needs, group=group))
        (bought,) = reading.instances([answer], region)
        self._fresh.remember([bought])
        return bought

    def settle(self, instance: Instance, disk: Disk) -> str | None:
        ec2 = self._connections.ec2(instance.region)
        if instance.state is not InstanceState.RUNNING or not standing.attach(ec2, instance.id, disk):
            return None
        return standing.give_address(ec2, instance.owner.controller, instance.id)

    def leave(self, name: str, region: str) -> None:
        standing.give_address_back(self._connections.ec2(region), name)
        standing.close_port(self._connections.ec2(region), name)

    def remove_disk(self, name: str, region: str) -> None:
        standing.remove_disk(self._connections.ec2(region), name)

    def check(self) -> Sequence[Finding]:
        return Checking(self.settings, self._connections, self.regions).findings()

    # ---- private ----

    def regions(self) -> Sequence[str]:
        """The regions that are used: those of the configuration, or all that the account has enabled."""
        if self.settings.regions:
            return self.settings.regions
        if not self._enabled:
            told = self._connections.ec2(HOME_REGION).describe_regions()["Regions"]
            self._enabled = tuple(sorted(region["RegionName"] for region in told))
        return self._enabled

    def _crawl(self, region: str, now: float) -> Sold:
        shapes = self._shapes.of_region(region)
        types = TYPES.keys() | shapes.keys()
        zones = prices.crawl_region(self._connections.ec2(region), now, types)
        listed = self._listed.of_region(region)
        return Sold(zones, {name: listed[name] for name in types if name in listed}, dict(shapes))

    def _terminate(self, region: str, ids: Sequence[str]) -> None:
        """One id that EC2 does not know spoils the whole call: then it is made again with those that it knows."""
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
        states = {"instance-state-name": reading.LIVING} if living else {}
        return self._find(region, {f"tag:{TAG}{tag}": [value], **states})

    def _find(self, region: str, filters: dict[str, Sequence[str]]) -> list[Instance]:
        """By filters, which, unlike ids, may name what does not exist."""
        return reading.instances(self._reservations(region, filters), region)

    def _reservations(self, region: str, filters: dict[str, Sequence[str]]) -> Iterator[ReservationTypeDef]:
        pages = (
            self._connections.ec2(region)
            .get_paginator("describe_instances")
            .paginate(Filters=[{"Name": name, "Values": values} for name, values in filters.items()])
        )
        return (reservation for page in pages for reservation in page["Reservations"])

    def _image(self, request: LaunchRequest) -> Image:
        """The image to boot, looked up once an hour. Raises Refused if it does not exist."""
        region = request.offer.region
        named = launching.wanted_image(request, self.settings.images)
        key = (region, named or launching.image_parameter(request.offer))
        with self._lock:
            at, image = self._images.get(key, (0.0, None))
        now = self._clock.now()
        if image is None or now - at >= IMAGE_AGE_S:
            image = self._look_up_image(region, named or self._public_image(*key))
            with self._lock:
                self._images[key] = (now, image)
        return image

    def _public_image(self, region: str, parameter: str) -> str:
        answer = self._connections.ssm(region).get_parameter(Name=parameter)
        return str(answer["Parameter"]["Value"])

    def _look_up_image(self, region: str, id: str) -> Image:
        told = self._connections.ec2(region).describe_images(ImageIds=[id])["Images"]
        if not told:
            raise Refused("InvalidAMIID.NotFound", f"there is no image {id} in {region}")
        root = told[0].get("RootDeviceName") or "/dev/sda1"
        disks = {disk.get("DeviceName"): disk.get("Ebs", {}) for disk in told[0].get("BlockDeviceMappings", ())}
        return Image(id, root, disks.get(root, {}).get("VolumeSize", 0))


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield list(ids[start : start + IDS_AT_ONCE])
