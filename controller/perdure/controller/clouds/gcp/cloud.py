"""Compute Engine as a `Cloud`. Every call is made once, with a time-out; `faults` classifies failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from perdure.controller.clouds.base import launch_rehearsal
from perdure.controller.clouds.base.account_checks import Finding
from perdure.controller.clouds.base.drivers import DriverFilter
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.notice_queue import NoticeQueue
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
from perdure.controller.clouds.base.recent_launches import RecentLaunches
from perdure.controller.clouds.gcp import controller_host, faults
from perdure.controller.clouds.gcp.account_check import GcpAccountCheck
from perdure.controller.clouds.gcp.iam import service_account
from perdure.controller.clouds.gcp.machines import images, launch_request, parse, restart, tombstones
from perdure.controller.clouds.gcp.machines.tombstones import GcpTombstones
from perdure.controller.clouds.gcp.notices import PubSubQueue
from perdure.controller.clouds.gcp.pricing import catalog, region_prices
from perdure.controller.clouds.gcp.pricing.retail_prices import GooglePriceList
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.sdk.parallel_calls import parallel
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import OfferCache
from perdure.controller.clouds.pricing.price_list import PriceList, PriceSource
from perdure.controller.clouds.pricing.region_catalog import RegionCatalog, host_offers
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Offer

NAMES_PER_CALL = 50
# How long to wait for an operation. The service would wait for two minutes, but a stopping daemon waits for its calls.
# A launch that takes longer is repeated with its token.
WAIT_S = 25.0
MAX_LAUNCH_TRIES = 16
ANYBODY = "0.0.0.0/0"
LINKS = "https://www.googleapis.com/compute/v1"


class GcpCloud:
    """A `Cloud` that is `Interruptible`, `Stoppable`, `HasNoticeQueues` and `Hosting`. `cache`: stores the offers."""

    ignores: frozenset[str] = frozenset()
    launch_warnings = staticmethod(launch_request.warnings)

    def __init__(self, cache: OfferCache, settings: GcpSettings, clock: Clock) -> None:
        self.name = "gcp"
        self.settings = settings
        self._driver_filter = DriverFilter("gcp", lambda _: settings.image is not None, regions=settings.subnets)
        self._connections = GcpConnections(settings, clock)
        source = PriceSource(
            self.name,
            catalog.TYPES,
            self._regions,
            self._crawl,
            catalog.on_demand_price,
            faults.classify,
            fallback=catalog.fallback,
            fallback_regions=tuple(catalog.REGION_FACTORS),
            catalog_month=catalog.CATALOG_MONTH,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)
        self._recent = RecentLaunches(clock)
        self._tombstones = GcpTombstones()
        self._price_list = GooglePriceList(self._connections, clock)

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        prices = "prices are Google's list prices, without your discounts"
        if problem := self._price_list.problem:
            prices = f"prices come from the built-in table, and are estimates outside us-central1: {problem}"
        images = [] if self.settings.image else ["machines run Ubuntu 24.04, with NVIDIA's driver on those with GPUs"]
        return [prices, *images, *self.prices.notes()]

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self._driver_filter.select(self.prices.offers())

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        if (ports := request.open_ports) is not None:
            ranges = [f"{first}-{last}" if first != last else str(first) for first, last in ports.ranges]
            text = "Ports of a cluster that Perdure has opened"
            controller_host.admit(self._connections, ports.name, ranges, ANYBODY, self.settings, description=text)
        for attempt in range(MAX_LAUNCH_TRIES):
            try:
                operation = self._bulk_insert(request, attempt)
            except Exception as error:
                if faults.code_of(error) not in faults.EXISTS:
                    raise
                # The token launched the machines so long ago that Google no longer knows the request, only the names.
                return self._launched(request, attempt)
            if tombstones.is_done(operation) and operation.error.errors:
                continue  # an earlier call failed: Google returns that result for its request id from now on
            self._wait_for_launch(request, attempt, operation)
            return self._launched(request, attempt)
        raise CloudRejected(faults.SUMMARY, f"{request.offer.zone} has rejected this launch {MAX_LAUNCH_TRIES} times")

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        places = {id: place for id in ids if (place := parse.place_of(id, region)) is not None}
        zones = {zone for zone, _ in places.values()}
        listed = {
            instance.id: instance
            for zone in zones
            for instance in self._find(zone, [name for other, name in places.values() if other == zone])
        }
        missing = [id for id in places if id not in listed]
        recent = {instance.id: instance for instance in self._recent.find(region, missing)}
        gone = parallel(missing, self._tombstone)
        return [*listed.values(), *(dead or recent[id] for id, dead in gone.items() if dead or id in recent)]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        labelled = f'labels.{launch_request.LABEL}controller = "{launch_request.label(controller)}"'
        request = {"project": self._connections.project, "filter": labelled}
        resources: list[Any] = []
        for scope, part in self._connections.instances.aggregated_list(request=request, **self._connections.once):
            if getattr(part.warning, "code", "") == "UNREACHABLE":
                raise CloudRejected("UNREACHABLE", f"the machines of {scope} are temporarily unknown")
            resources += part.instances
        return [instance for instance in self._parse(resources) if instance.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        parallel([id for id in ids if parse.place_of(id, region)], self._delete)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- the optional protocols ----

    def stop(self, region: str, ids: Sequence[str]) -> None:
        states = (InstanceState.PENDING, InstanceState.RUNNING)
        on = [one.id for one in self.describe(region, ids) if one.state in states]
        parallel(on, lambda id: restart.stop(self._connections, id))

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        region, zone = request.offer.region, request.offer.zone
        known = {one.id: one.state for one in self.describe(region, ids)}
        if any(known.get(id, InstanceState.GONE) is InstanceState.GONE for id in ids):
            raise StoppedMachineLost(", ".join(ids))
        off = [id for id in ids if known[id] is InstanceState.STOPPED]
        for change in (restart.set_metadata, restart.set_labels):
            resources = self._list(zone, _any_of([id.partition("/")[2] for id in off])) if off else ()
            for operation in [change(self._connections, request, zone, one) for one in resources]:
                self._complete(zone, operation)
        try:
            begun = parallel(off, lambda id: restart.start(self._connections, id))
            for operation in begun.values():
                self._complete(zone, operation)
        except Exception as error:
            if self.classify(error).kind is not FaultKind.AMBIGUOUS:  # otherwise the call is repeated
                parallel(off, lambda id: restart.stop(self._connections, id))  # it may not show yet that they run
            raise
        return self.describe(region, ids)

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        places = [place for id in ids if (place := parse.place_of(id, region)) is not None]
        resources = [(zone, one) for zone, name in places for one in self._list(zone, f'name = "{name}"')]
        addresses = {parse.id_of(zone, one.name): parse.public_address(one) for zone, one in resources}
        return {id: address for id, address in addresses.items() if address}

    def close_ports(self, region: str, name: str) -> None:  # noqa: ARG002 - the rule holds for all regions
        controller_host.remove_rule(self._connections, name)

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:
        return launch_request.disk_price_per_hour(offer.instance_type, disk_gib, disk_tier)

    def console_output(self, region: str, id: str) -> str:  # noqa: ARG002 - the id has the zone
        zone, _, name = id.partition("/")
        request = {"project": self._connections.project, "zone": zone, "instance": name}
        return str(
            self._connections.instances.get_serial_port_output(request=request, **self._connections.once).contents
        )

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [PubSubQueue(self.name, name, self._connections.session) for name in self.settings.interruption_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """Google's own simulation, which ignores `notice_s`."""
        place = parse.place_of(instance_id, region)
        resources = self._list(place[0], f'name = "{place[1]}"') if place else []
        if place is None or not resources:
            raise CloudRejected("notFound", f"there is no machine {instance_id}")
        if resources[0].scheduling.provisioning_model != "SPOT":
            raise CloudRejected(
                "invalid", f"{instance_id} is not a spot machine: Google simulates preemptions of those only"
            )
        target = {"project": self._connections.project, "zone": place[0], "instance": place[1]}
        self._connections.instances.simulate_maintenance_event_unary(request=target, **self._connections.once)

    def host_offers(self, region: str) -> Sequence[Offer]:
        zones = {o.zone for o in self.offers() if o.region == region and o.instance_type.startswith("e2-")}
        types = catalog.HOST_TYPES
        return host_offers(self.name, region, dict.fromkeys(sorted(zones), types), types, catalog.on_demand_price)

    def environment_settings(self) -> Mapping[str, str]:
        return {"project": self._connections.project}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        return controller_host.state_disk(self._connections, name, region, zone, gib)

    def launch_host(self, request: LaunchRequest, needs: HostRequirements) -> Instance:
        zone, (name,) = request.offer.zone, launch_request.names(request, 0)
        if (gone := self._tombstone(parse.id_of(zone, name))) is not None:
            return gone
        connections, controller = self._connections, request.owner.controller
        account = service_account.account(connections, needs.role)
        controller_host.open_port(connections, controller, needs, self.settings)
        address = controller_host.address(connections, controller, request.offer.region, self.settings)
        controller_host.require_disk(connections, needs.disk, name)
        of_node, project = launch_request.properties(request, self.settings), connections.project
        body = controller_host.instance(of_node, request, needs, project=project, address=address, account=account)
        try:
            self._wait_for_launch(request, 0, controller_host.insert(connections, zone, body))
        except Exception as error:
            code = faults.code_of(error)
            if controller_host.is_new_account_unknown(error) or code in (faults.PENDING, *faults.IN_USE):
                raise EventuallyConsistent(str(error)) from error
            if code not in faults.EXISTS:
                raise
        (launched,) = self._launched(request, 0)
        return launched

    def attach_disk(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002 - the machine is created with the disk
        if instance.state is not InstanceState.RUNNING:
            return None
        return controller_host.address(self._connections, instance.owner.controller, instance.region, self.settings)

    def release(self, name: str, region: str) -> None:
        controller_host.release(self._connections, name, region)

    def remove_disk(self, name: str, region: str) -> None:
        controller_host.remove_disk(self._connections, name, region)

    def check(self) -> Sequence[Finding]:
        return GcpAccountCheck(self.settings, self._connections).findings()

    def rehearse(self) -> Sequence[Finding]:
        find = partial(images.find_for, self._connections, self.settings)
        return launch_rehearsal.rehearse(launch_rehearsal.sample_offers(self.offers()), find, self.classify)

    # ---- launching ----

    def _bulk_insert(self, request: LaunchRequest, attempt: int) -> Any:
        body = launch_request.bulk_insert(request, self.settings, attempt)
        call = {
            "project": self._connections.project,
            "zone": request.offer.zone,
            "request_id": launch_request.request_id(request, attempt),
            "bulk_insert_instance_resource_resource": body,
        }
        return self._connections.instances.bulk_insert_unary(request=call, **self._connections.once)

    def _wait_for_launch(self, request: LaunchRequest, attempt: int, operation: Any) -> None:
        """Wait until the operation is done. Raises CloudRejected if it fails, or takes longer than `WAIT_S`."""
        try:
            self._complete(request.offer.zone, operation)
        except CloudRejected as failure:
            if failure.code in faults.EXISTS:
                return
            if failure.code != faults.PENDING:
                self._undo_launch(request, attempt)
            raise

    def _complete(self, zone: str, operation: Any) -> None:
        """Wait until the operation is done. Raises CloudRejected if it fails, or takes longer than `WAIT_S`."""
        operation = self._wait(zone, operation)
        if not tombstones.is_done(operation):
            raise CloudRejected(faults.PENDING, f"operation {operation.name} in {zone} is not done yet")
        if (failure := self._failure(zone, operation)) is not None:
            raise failure

    def _wait(self, zone: str, operation: Any) -> Any:
        if tombstones.is_done(operation):
            return operation
        waited = {"project": self._connections.project, "zone": zone, "operation": operation.name}
        try:
            return self._connections.operations.wait(request=waited, retry=None, timeout=WAIT_S)
        except Exception as error:
            if faults.code_of(error) not in faults.TIMED_OUT:
                raise
            return operation

    def _failure(self, zone: str, operation: Any) -> CloudRejected | None:
        """The cause of a failure. If a bulk operation does not name it, one of its parts does."""
        failure = faults.failure_of(_errors(operation))
        if failure is None or failure.code != faults.SUMMARY or not operation.operation_group_id:
            return failure
        parts = self._operations(zone, f'operationGroupId = "{operation.operation_group_id}"')
        return faults.failure_of([error for part in parts for error in _errors(part)]) or failure

    def _undo_launch(self, request: LaunchRequest, attempt: int) -> None:
        """Google terminates the machines of a failed bulk insert. This makes sure."""
        zone, names = request.offer.zone, launch_request.names(request, attempt)
        self.terminate(request.offer.region, [parse.id_of(zone, one.name) for one in self._list(zone, _any_of(names))])

    def _launched(self, request: LaunchRequest, attempt: int) -> list[Instance]:
        """The machines of a completed launch, in their present state."""
        zone, names = request.offer.zone, launch_request.names(request, attempt)
        listed = {instance.id: instance for instance in self._find(zone, names)}
        missing = [
            Instance(
                id=parse.id_of(zone, name),
                rank=rank,
                owner=request.owner,
                state=InstanceState.PENDING,
                cloud=self.name,
                region=request.offer.region,
                zone=zone,
                instance_type=request.offer.instance_type,
            )
            for rank, name in enumerate(names)
            if parse.id_of(zone, name) not in listed
        ]
        self._tombstones.record_seen(missing)
        gone = parallel([instance.id for instance in missing], self._tombstone)
        launched = [*listed.values(), *(gone[instance.id] or instance for instance in missing)]
        self._recent.add(instance for instance in launched if instance.state is not InstanceState.GONE)
        return launched

    # ---- describing ----

    def _find(self, zone: str, names: Sequence[str]) -> list[Instance]:
        resources: list[Any] = []
        for start in range(0, len(names), NAMES_PER_CALL):
            resources += self._list(zone, _any_of(names[start : start + NAMES_PER_CALL]))
        return self._parse(resources)

    def _list(self, zone: str, filter_text: str) -> list[Any]:
        request = {"project": self._connections.project, "zone": zone, "filter": filter_text}
        return list(self._connections.instances.list(request=request, **self._connections.once))

    def _parse(self, resources: Iterable[Any]) -> list[Instance]:
        """The instances that have an owner, with the reasons of those that are ENDING or STOPPED."""
        instances = [one for one in map(parse.instance, resources) if one is not None]
        self._tombstones.record_seen(instances)
        ending = [one.id for one in instances if one.state in (InstanceState.ENDING, InstanceState.STOPPED)]
        lifespans = parallel(ending, self._lifespan)
        return [replace(i, gone_reason=lifespans[i.id].reason) if i.id in lifespans else i for i in instances]

    def _tombstone(self, id: str) -> Instance | None:
        """The tombstone of a machine that is not listed any more; None without proof that it has ended."""
        if (known := self._tombstones.get(id)) is not None:
            return known
        lifespan = self._lifespan(id)
        if lifespan.reason is None:
            return None
        tombstone = tombstones.tombstone(id, lifespan, self._tombstones.last_seen(id))
        self._tombstones.add(tombstone)
        return tombstone

    def _lifespan(self, id: str) -> tombstones.Lifespan:
        zone, _, name = id.partition("/")
        link = f"{LINKS}/projects/{self._connections.project}/zones/{zone}/instances/{name}"
        return tombstones.lifespan(self._operations(zone, f'targetLink = "{link}"'))

    def _operations(self, zone: str, filter_text: str) -> Iterator[Any]:
        request = {"project": self._connections.project, "zone": zone, "filter": filter_text}
        return iter(self._connections.operations.list(request=request, **self._connections.once))

    # ---- helpers ----

    def _delete(self, id: str) -> None:
        zone, _, name = id.partition("/")
        target = {"project": self._connections.project, "zone": zone, "instance": name}
        try:
            self._connections.instances.delete_unary(request=target, **self._connections.once)
        except Exception as error:
            if faults.code_of(error) not in faults.MISSING:
                raise

    def _regions(self) -> Sequence[str]:
        """The regions in use: the configured ones, or all of the project."""
        return self.settings.regions or region_prices.list_regions(self._connections)

    def _crawl(self, region: str, now: float) -> RegionCatalog:  # noqa: ARG002 - prices here have no time of day
        return region_prices.fetch(self._connections, self._price_list, region)


def _any_of(names: Sequence[str]) -> str:
    return " OR ".join(f'(name = "{name}")' for name in names)


def _errors(operation: Any) -> list[dict[str, str]]:
    return [{"code": one.code, "message": one.message} for one in operation.error.errors]
