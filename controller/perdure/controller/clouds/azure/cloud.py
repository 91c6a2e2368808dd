"""Azure as a `Cloud`. Every call is made once, with a time-out; `faults` classifies failures.

A launch starts the creation of its machines and returns them as PENDING. It raises what Azure rejects at once.
`describe` reports a machine that was accepted but for which Azure found no capacity later (see `machines/parse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from perdure.controller.clouds.azure import controller_host, faults
from perdure.controller.clouds.azure.account_check import AzureAccountCheck
from perdure.controller.clouds.azure.iam import managed_identity
from perdure.controller.clouds.azure.machines import launch_request, open_ports, parse
from perdure.controller.clouds.azure.machines.networks import Networks
from perdure.controller.clouds.azure.machines.tombstones import AzureTombstones
from perdure.controller.clouds.azure.notices import StorageQueue
from perdure.controller.clouds.azure.pricing import catalog, region_prices, skus
from perdure.controller.clouds.azure.sdk.connections import AzureConnections
from perdure.controller.clouds.azure.sdk.parallel_calls import parallel, unwrap
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import launch_rehearsal
from perdure.controller.clouds.base.account_checks import Finding
from perdure.controller.clouds.base.drivers import DriverFilter
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.notice_queue import NoticeQueue
from perdure.controller.clouds.base.partial_listing import combine
from perdure.controller.clouds.base.protocol import (
    Disk,
    EventuallyConsistent,
    Fault,
    HostRequirements,
    Instance,
    InstanceState,
    LaunchRequest,
    StoppedMachineLost,
)
from perdure.controller.clouds.pricing.cache import OfferCache
from perdure.controller.clouds.pricing.price_list import PriceList, PriceSource
from perdure.controller.clouds.pricing.region_catalog import RegionCatalog, host_offers
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

IMAGES_API = "2024-07-01"
# The group or network may have been deleted: the next launch looks it up again.
_NETWORK_IS_MISSING = {"InvalidResourceReference", "ResourceGroupNotFound"}
# The second: the machine exists with other properties, for example because the agent has changed since.
_MACHINE_EXISTS = {"PreconditionFailed", "PropertyChangeNotAllowed"}


class AzureCloud:
    """A `Cloud` that is `Interruptible`, `Stoppable`, `HasNoticeQueues` and `Hosting`. `cache`: stores the offers."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, cache: OfferCache, settings: AzureSettings, clock: Clock, *, name: str = "azure") -> None:
        self.name = name
        self.settings = settings
        self._driver_filter = DriverFilter("azure", settings.images.__contains__, regions=settings.subnets)
        self._connections = AzureConnections(settings, clock)
        self._networks = Networks(settings, self._connections)
        self._tombstones = AzureTombstones(clock)
        self._clock, self._closed_ports = clock, list[str]()
        source = PriceSource(
            name,
            catalog.TYPES,
            self.regions,
            self._crawl,
            catalog.on_demand_price,
            faults.classify,
            fallback=catalog.fallback,
            fallback_regions=tuple(catalog.REGIONS),
            catalog_month=catalog.CATALOG_MONTH,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        prices = self.prices.table_in_use() or "prices are Azure's retail prices, without your discounts"
        images = [] if self.settings.images else ["machines run the newest public Ubuntu image"]
        return list(dict.fromkeys([prices, *images, *self._closed_ports, *self.prices.notes()]))

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self._driver_filter.select(self.prices.offers())

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        region = request.offer.region
        names = [launch_request.name_of(request.owner.token, rank) for rank in range(request.num_nodes)]
        # Names that this process has launched are not launched again, although Azure may have deleted them since.
        existing = self.describe(region, self._tombstones.known(names))
        subnet = self._networks.subnet(region)
        firewall = self._firewall(request)
        bodies = {
            name: launch_request.virtual_machine(
                request, rank, self.settings, subnet=subnet, name=name, firewall=firewall
            )
            for rank, name in enumerate(names)
            if name not in {instance.id for instance in existing}
        }
        results = parallel(lambda item: self._create(region, *item), bodies.items())
        launched = [result for result in results if isinstance(result, Instance)]
        failed = [result for result in results if isinstance(result, Exception)]
        if failed:
            raise self._undo_launch(region, names, failed)
        self._tombstones.record_launched(launched, is_spot=request.offer.market is Market.SPOT)
        return sorted((*existing, *launched), key=lambda instance: instance.rank)

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        names = [id for id in ids if launch_request.is_name(id)]
        results = [unwrap(result) for result in parallel(lambda name: self._get(region, name), names)]
        existing = {instance.id: instance for instance in results if instance is not None}
        missing = [name for name in names if name not in existing]
        return [*existing.values(), *self._tombstones.describe_missing(region, missing)]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        regions = self.regions()
        return [
            one
            for one in combine(dict(zip(regions, parallel(self._list, regions), strict=True)))
            if one.owner.controller == controller
        ]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        names = [id for id in ids if launch_request.is_name(id)]
        self._tombstones.record_termination(region, names)
        for result in parallel(lambda name: self._delete(region, name), names):
            unwrap(result)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- the optional protocols ----

    def stop(self, region: str, ids: Sequence[str]) -> None:
        known = [
            one for one in self.describe(region, ids) if one.state not in (InstanceState.STOPPED, InstanceState.GONE)
        ]
        for result in parallel(lambda one: self._deallocate(region, one.id), known):
            unwrap(result)

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        region = request.offer.region
        known = {one.id: one for one in self.describe(region, ids)}
        if any(id not in known or known[id].state is InstanceState.GONE for id in ids):
            raise StoppedMachineLost(", ".join(ids))
        off = [known[id] for id in ids if known[id].state is InstanceState.STOPPED]
        results = parallel(lambda one: self._start(request, one), off)
        failed = [self._translate(region, result) for result in results if isinstance(result, Exception)]
        rejected = [error for error in failed if faults.classify(error).kind is not FaultKind.AMBIGUOUS]
        if rejected:
            for result in parallel(lambda one: self._deallocate(region, one.id), off):
                unwrap(result)  # of all of them: it may not show yet that they run
        if failed:
            raise (rejected or failed)[0]
        return self.describe(region, ids)

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        names = [id for id in ids if launch_request.is_name(id)]
        results = [unwrap(one) for one in parallel(lambda name: self._public_address(region, name), names)]
        return {name: address for name, address in zip(names, results, strict=True) if address}

    def close_ports(self, region: str, name: str) -> None:
        open_ports.close(self._connections, self._networks.path(region), name)

    launch_warnings = staticmethod(launch_request.warnings)

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:  # noqa: ARG002
        return launch_request.disk_price_per_hour(disk_gib, disk_tier)

    def console_output(self, region: str, id: str) -> str:
        machines = self._connections.client().virtual_machines
        where = machines.retrieve_boot_diagnostics_data(self._networks.group(region), id).serial_console_log_blob_uri
        return self._connections.read_signed(where) if where else ""

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [StorageQueue(self.name, url, self._connections.storage) for url in self.settings.interruption_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """Azure determines the notice (at least 30 seconds) and when it begins."""
        machines = self._connections.client().virtual_machines
        machines.simulate_eviction(self._networks.group(region), instance_id)

    def host_offers(self, region: str) -> Sequence[Offer]:
        zones: dict[str, list[str]] = {}
        for sku in skus.fetch(self._connections.client(), region, catalog.HOST_TYPES.__contains__).values():
            for zone in region_prices.zones_of(region, sku) if sku.is_available else ():
                zones.setdefault(zone, []).append(sku.name)
        return host_offers(self.name, region, zones, catalog.HOST_TYPES, catalog.on_demand_price)

    def environment_settings(self) -> Mapping[str, str]:
        return {"subscription": self._connections.subscription}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        resources = self._controller_resources(name, region)
        if (disk := resources.find_disk()) is not None:
            return disk
        self._networks.forget(region)  # the disk may be missing because its group was deleted
        self._networks.subnet(region)
        return resources.create_disk(zone, gib)

    def launch_host(self, request: LaunchRequest, needs: HostRequirements) -> Instance:
        region, name = request.offer.region, launch_request.name_of(request.owner.token, 0)
        if existing := self.describe(region, self._tombstones.known([name])):
            return existing[0]
        try:
            launched = self._launch_host(request, needs, name)
        except EventuallyConsistent:
            raise
        except Exception as error:
            translated = self._translate(region, error)
            raise EventuallyConsistent(str(translated)) if faults.is_transient(translated) else translated from error
        self._tombstones.record_launched([launched], is_spot=False)
        return launched

    def attach_disk(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002 - the machine is created with the disk
        if instance.state is not InstanceState.RUNNING:
            return None
        return self._controller_resources(instance.owner.controller, instance.region).address()

    def release(self, name: str, region: str) -> None:
        self._controller_resources(name, region).release()

    def remove_disk(self, name: str, region: str) -> None:
        self._controller_resources(name, region).remove_disk()

    def check(self) -> Sequence[Finding]:
        return AzureAccountCheck(self.settings, self._connections, self.regions).findings()

    def rehearse(self) -> Sequence[Finding]:
        return launch_rehearsal.rehearse(launch_rehearsal.sample_offers(self.offers()), self._find_image, self.classify)

    # ---- private ----

    def _find_image(self, offer: Offer) -> None:
        """Raises Azure's error for a public image that does not exist in the region of the offer, or CloudRejected."""
        body = launch_request.virtual_machine(
            launch_rehearsal.request_for(offer), 0, self.settings, subnet="", name="check"
        )
        image = body["properties"]["storageProfile"]["imageReference"]
        if "publisher" not in image:
            return
        where = f"/subscriptions/{self._connections.subscription}/providers/Microsoft.Compute/locations/{offer.region}"
        path = (
            f"{where}/publishers/{image['publisher']}/artifacttypes/vmimage/offers/{image['offer']}/skus/{image['sku']}"
        )
        if not self._connections.call("GET", f"{path}/versions", IMAGES_API):
            raise CloudRejected("PlatformImageNotFound", f"{':'.join(image.values())} has no version in {offer.region}")

    def regions(self) -> Sequence[str]:
        """The regions in use: the configured ones, or all of the built-in table."""
        return self.settings.regions or tuple(catalog.REGIONS)

    def _launch_host(self, request: LaunchRequest, needs: HostRequirements, name: str) -> Instance:
        region = request.offer.region
        resources, subnet = self._controller_resources(request.owner.controller, region), self._networks.subnet(region)
        identity = managed_identity.identity(self._connections, self._networks.path(region), region, needs.role)
        resources.require_interface(needs, subnet, is_public=self.settings.wants_public_ip(region))
        resources.require_disk(name)
        of_node = launch_request.virtual_machine(request, 0, self.settings, subnet=subnet, name=name)
        return self._create(region, name, controller_host.virtual_machine(of_node, needs, resources, identity=identity))

    def _controller_resources(self, name: str, region: str) -> controller_host.ControllerResources:
        return controller_host.ControllerResources(self._connections, self._networks.path(region), region, name)

    def _firewall(self, request: LaunchRequest) -> str | None:
        """The id of the security group with the open ports of the request; None if it opens none."""
        if request.open_ports is None:
            return None
        id = open_ports.ensure_if_allowed(self._connections, self._networks.path(request.offer.region), request)
        self._closed_ports = [] if id else [open_ports.NOT_ALLOWED]
        return id

    def _public_address(self, region: str, name: str) -> str | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            machine = self._connections.client().virtual_machines.get(self._networks.group(region), name)
        except ResourceNotFoundError:
            return None
        return open_ports.public_address(self._connections, machine)

    def _crawl(self, region: str, now: float) -> RegionCatalog:  # noqa: ARG002 - prices here have no time of day
        return region_prices.fetch(self._connections, region)

    def _create(self, region: str, name: str, body: dict[str, object]) -> Instance:
        """Start the creation, unless a machine of this name exists: then an earlier call has created it."""
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError
        from azure.mgmt.compute.models import VirtualMachine

        machines, group = self._connections.client().virtual_machines, self._networks.group(region)
        try:
            machine = machines.begin_create_or_update(
                group, name, VirtualMachine(body), match_condition=MatchConditions.IfMissing, polling=False
            ).result()
        except HttpResponseError as error:
            if faults.code_of(error) not in _MACHINE_EXISTS:
                raise
            machine = machines.get(group, name, expand="instanceView")
        instance = parse.instance(machine, self.name)
        assert instance is not None, f"Azure returned {name} without its tags"
        return instance

    def _start(self, request: LaunchRequest, one: Instance) -> None:
        """Begin to start a stopped machine as one of the request. Tags first: they say which attempt it belongs to."""
        from azure.mgmt.compute.models import VirtualMachineUpdate

        region = request.offer.region
        machines, group = self._connections.client().virtual_machines, self._networks.group(region)
        if one.owner.token != request.owner.token:
            body = launch_request.update_of_start(request, one.rank, self._clock.now())
            machines.begin_update(group, one.id, VirtualMachineUpdate(body), polling=False)
        machines.begin_start(group, one.id, polling=False)

    def _deallocate(self, region: str, name: str) -> None:
        """Begin to stop a machine, so that only its disk is billed. A missing machine is a success."""
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        try:
            machines.begin_deallocate(self._networks.group(region), name, polling=False)
        except ResourceNotFoundError:
            return
        except HttpResponseError as error:
            if error.status_code != 409:  # another operation is under way: the caller looks again
                raise

    def _undo_launch(self, region: str, names: Sequence[str], failed: Sequence[Exception]) -> Exception:
        """The exception to raise. After a definite rejection, the other machines are terminated. If all errors are
        ambiguous, they stay, since the launch is repeated."""
        if any(faults.code_of(error) in _NETWORK_IS_MISSING for error in failed):
            self._networks.forget(region)
        failed = [self._translate(region, error) for error in failed]
        rejected = [error for error in failed if faults.classify(error).kind is not FaultKind.AMBIGUOUS]
        if not rejected:
            return failed[0]
        if len(names) > 1:
            with suppress(Exception):  # the sweep terminates the others
                self.terminate(region, names)
            self._tombstones.forget(names)
        return rejected[0]

    def _translate(self, region: str, error: Exception) -> Exception:
        """Perdure's own network is created again if it is missing; the user has to correct a configured one."""
        own = self.settings.subnets.get(region)
        if own is None or faults.code_of(error) != "InvalidResourceReference":
            return error
        return CloudRejected("SubnetNotFound", f"azure.subnets.{region} is {own}: {error}")

    def _get(self, region: str, name: str) -> Instance | None:
        """None if it does not exist."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        try:
            machine = machines.get(self._networks.group(region), name, expand="instanceView")
        except ResourceNotFoundError:
            return None
        instance = parse.instance(machine, self.name)
        if instance is not None:
            self._tombstones.record_seen(instance, is_spot=parse.is_spot(machine))
            if instance.gone_reason is Reason.NO_CAPACITY:
                problem = parse.creation_error(machine)
                log.warning("azure.creation_failed", machine=name, zone=instance.zone, error=problem)
        return instance

    def _list(self, region: str) -> list[Instance]:
        """All machines in the region's group, page by page; none if there is no group."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        try:
            listed = list(machines.list(self._networks.group(region)))
        except ResourceNotFoundError:
            return []
        pairs = [(parse.instance(machine, self.name), parse.is_spot(machine)) for machine in listed]
        for instance, is_spot in pairs:
            if instance is not None:
                self._tombstones.record_seen(instance, is_spot=is_spot)
        return [instance for instance, _ in pairs if instance is not None]

    def _delete(self, region: str, name: str) -> None:
        """Forced, since the agent has already sent everything. A missing machine is a success."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        with suppress(ResourceNotFoundError):
            machines.begin_delete(self._networks.group(region), name, force_deletion=True, polling=False)
