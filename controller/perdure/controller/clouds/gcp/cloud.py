"""Compute Engine as a `Cloud`. Every call is made once, with a time-out; what it means when it fails, `faults` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import Disk, Fault, Instance, InstanceState, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.checks import Finding
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.fresh import Fresh
from perdure.controller.clouds.gcp import accounts, catalog, faults, history, launching, market, reading, standing
from perdure.controller.clouds.gcp.billing import PriceBook
from perdure.controller.clouds.gcp.checking import Checking
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.memory import Memory
from perdure.controller.clouds.gcp.notices import PubSubQueue
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.offercache import OfferCache
from perdure.controller.clouds.pricelist import PriceList, Source
from perdure.controller.clouds.queues import NoticeQueue
from perdure.controller.clouds.sold import Sold
from perdure.recovery.market import Offer

NAMES_AT_ONCE = 50
CALLS_AT_ONCE = 8
# The service would hold a call that waits for an operation for two minutes. A daemon that is told to stop waits for its
# calls, and a launch that takes longer is asked for again by its token.
WAIT_S = 25.0
MOST_GOES = 16
T = TypeVar("T")
LINKS = "https://www.googleapis.com/compute/v1"


class GcpCloud:
    """A `Cloud` that is `Interruptible`, `Telling` and `Hosting`. `cache`: where what it sells is kept."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, cache: OfferCache, settings: GcpSettings, clock: Clock) -> None:
        self.name = "gcp"
        self.settings = settings
        self._connections = Connections(settings, clock)
        source = Source(
            self.name,
            catalog.TYPES,
            self._regions,
            self._crawl,
            catalog.on_demand_price,
            faults.classify,
            table=catalog.sold,
            table_regions=tuple(catalog.REGION_FACTORS),
            table_of=catalog.TYPED,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)
        self._fresh = Fresh(clock)
        self._memory = Memory()
        self._book = PriceBook(self._connections, clock)

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        prices = "prices are Google's list prices, without what you have agreed upon with it"
        if trouble := self._book.trouble:
            prices = f"prices are from a table, and estimated outside us-central1: {trouble}"
        images = [] if self.settings.image else ["machines run Ubuntu 24.04, with NVIDIA's driver where there are GPUs"]
        return [prices, *images, *self.prices.notes()]

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self.prices.offers()

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        for go in range(MOST_GOES):
            try:
                operation = self._bulk_insert(request, go)
            except Exception as error:
                if faults.code_of(error) not in faults.EXISTS:
                    raise
                # The token has bought so long ago that Google has forgotten the request, but not the machines.
                return self._bought(request, go)
            if history.is_done(operation) and operation.error.errors:
                continue  # an earlier call came to nothing, which is all that its request's id stands for from now on
            self._settle(request, go, operation)
            return self._bought(request, go)
        raise Refused(faults.SUMMARY, f"{request.offer.zone} has refused this launch {MOST_GOES} times")

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        places = {id: place for id in ids if (place := reading.place_of(id, region)) is not None}
        zones = {zone for zone, _ in places.values()}
        seen = {
            one.id: one
            for zone in zones
            for one in self._find(zone, [name for where, name in places.values() if where == zone])
        }
        missing = [id for id in places if id not in seen]
        fresh = {one.id: one for one in self._fresh.among(region, missing)}
        gone = _each(missing, self._tombstone)
        return [*seen.values(), *(buried or fresh[id] for id, buried in gone.items() if buried or id in fresh)]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        labelled = f'labels.{launching.LABEL}controller = "{launching.label(controller)}"'
        request = {"project": self._connections.project, "filter": labelled}
        found: list[Any] = []
        for scope, told in self._connections.instances.aggregated_list(request=request, **self._connections.once):
            if getattr(told.warning, "code", "") == "UNREACHABLE":
                raise Refused("UNREACHABLE", f"{scope} does not tell which machines are there")
            found += told.instances
        return [one for one in self._read(found) if one.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        _each([id for id in ids if reading.place_of(id, region)], self._delete)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- what only some clouds can do ----

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [PubSubQueue(self.name, name, self._connections.session) for name in self.settings.notice_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """Google's own rehearsal. It gives the notice that Google gives, whatever `notice_s` says."""
        place = reading.place_of(instance_id, region)
        found = self._list(place[0], f'name = "{place[1]}"') if place else []
        if place is None or not found:
            raise Refused("notFound", f"there is no machine {instance_id}")
        if found[0].scheduling.provisioning_model != "SPOT":
            raise Refused("invalid", f"{instance_id} is no spot machine: Google takes none but those")
        target = {"project": self._connections.project, "zone": place[0], "instance": place[1]}
        self._connections.instances.simulate_maintenance_event_unary(request=target, **self._connections.once)

    def found_here(self) -> Mapping[str, str]:
        return {"project": self._connections.project}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        return standing.state_disk(self._connections, name, region, zone, gib)

    def stand(self, request: LaunchRequest, needs: Standing) -> Instance:
        zone, (name,) = request.offer.zone, launching.names(request, 0)
        if (gone := self._tombstone(reading.id_of(zone, name))) is not None:
            return gone
        connections, controller = self._connections, request.owner.controller
        account = accounts.account(connections, needs.role)
        standing.open_port(connections, controller, needs, self.settings)
        address = standing.address(connections, controller, request.offer.region, self.settings)
        standing.require_disk(connections, needs.disk, name)
        of_node, project = launching.properties(request, self.settings), connections.project
        body = standing.instance(of_node, request, needs, project=project, address=address, account=account)
        try:
            self._settle(request, 0, standing.insert(connections, zone, body))
        except Exception as error:
            code = faults.code_of(error)
            if standing.is_unheard_of(error) or code in (faults.PENDING, *faults.IN_USE):
                raise NotYet(str(error)) from error
            if code not in faults.EXISTS:
                raise
        (bought,) = self._bought(request, 0)
        return bought

    def settle(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002 - it has the disk from its birth on
        if instance.state is not InstanceState.RUNNING:
            return None
        return standing.address(self._connections, instance.owner.controller, instance.region, self.settings)

    def leave(self, name: str, region: str) -> None:
        standing.leave(self._connections, name, region)

    def remove_disk(self, name: str, region: str) -> None:
        standing.remove_disk(self._connections, name, region)

    def check(self) -> Sequence[Finding]:
        return Checking(self.settings, self._connections).findings()

    # ---- launching ----

    def _bulk_insert(self, request: LaunchRequest, go: int) -> Any:
        body = launching.bulk_insert(request, self.settings, go)
        call = {
            "project": self._connections.project,
            "zone": request.offer.zone,
            "request_id": launching.request_id(request, go),
            "bulk_insert_instance_resource_resource": body,
        }
        return self._connections.instances.bulk_insert_unary(request=call, **self._connections.once)

    def _settle(self, request: LaunchRequest, go: int, operation: Any) -> None:
        """Until the operation is done. Raises Refused if it failed, or is not done after `WAIT_S`."""
        zone = request.offer.zone
        operation = self._wait(zone, operation)
        if not history.is_done(operation):
            raise Refused(faults.PENDING, f"operation {operation.name} in {zone} is not done yet")
        failure = self._failure(zone, operation)
        if failure is not None and failure.code not in faults.EXISTS:
            self._give_back(request, go)
            raise failure

    def _wait(self, zone: str, operation: Any) -> Any:
        if history.is_done(operation):
            return operation
        waited = {"project": self._connections.project, "zone": zone, "operation": operation.name}
        try:
            return self._connections.operations.wait(request=waited, retry=None, timeout=WAIT_S)
        except Exception as error:
            if faults.code_of(error) not in faults.TIMED_OUT:
                raise
            return operation

    def _failure(self, zone: str, operation: Any) -> Refused | None:
        """Where the whole names no cause, one of its parts does."""
        failure = faults.failure_of(_errors(operation))
        if failure is None or failure.code != faults.SUMMARY or not operation.operation_group_id:
            return failure
        parts = self._operations(zone, f'operationGroupId = "{operation.operation_group_id}"')
        return faults.failure_of([error for part in parts for error in _errors(part)]) or failure

    def _give_back(self, request: LaunchRequest, go: int) -> None:
        """Google ends the machines of a bulk insert that came to nothing. This makes sure."""
        zone = request.offer.zone
        left = [reading.id_of(zone, one.name) for one in self._list(zone, _any_of(launching.names(request, go)))]
        self.terminate(request.offer.region, left)

    def _bought(self, request: LaunchRequest, go: int) -> list[Instance]:
        """The machines of a launch that was done: as they are, or what became of them."""
        zone, names = request.offer.zone, launching.names(request, go)
        seen = {one.id: one for one in self._find(zone, names)}
        unseen = [
            Instance(
                id=reading.id_of(zone, name),
                rank=rank,
                owner=request.owner,
                state=InstanceState.PENDING,
                cloud=self.name,
                region=request.offer.region,
                zone=zone,
                instance_type=request.offer.instance_type,
            )
            for rank, name in enumerate(names)
            if reading.id_of(zone, name) not in seen
        ]
        self._memory.remember(unseen)
        gone = _each([one.id for one in unseen], self._tombstone)
        bought = [*seen.values(), *(gone[one.id] or one for one in unseen)]
        self._fresh.remember(one for one in bought if one.state is not InstanceState.GONE)
        return bought

    # ---- looking ----

    def _find(self, zone: str, names: Sequence[str]) -> list[Instance]:
        found: list[Any] = []
        for start in range(0, len(names), NAMES_AT_ONCE):
            found += self._list(zone, _any_of(names[start : start + NAMES_AT_ONCE]))
        return self._read(found)

    def _list(self, zone: str, wanted: str) -> list[Any]:
        request = {"project": self._connections.project, "zone": zone, "filter": wanted}
        return list(self._connections.instances.list(request=request, **self._connections.once))

    def _read(self, told: Iterable[Any]) -> list[Instance]:
        """Those that say whose they are; why they end, for those that do."""
        found = [one for one in map(reading.read, told) if one is not None]
        self._memory.remember(found)
        fates = _each([one.id for one in found if one.state is InstanceState.ENDING], self._fate)
        return [history.ending(one, fates[one.id]) if one.id in fates else one for one in found]

    def _tombstone(self, id: str) -> Instance | None:
        """A machine that is not there any more; None if nothing tells that it has ended."""
        if (known := self._memory.tombstone(id)) is not None:
            return known
        told = self._fate(id)
        if told.reason is None:
            return None
        buried = history.tombstone(id, told, self._memory.last_seen(id))
        self._memory.bury(buried)
        return buried

    def _fate(self, id: str) -> history.Fate:
        zone, _, name = id.partition("/")
        link = f"{LINKS}/projects/{self._connections.project}/zones/{zone}/instances/{name}"
        return history.fate(self._operations(zone, f'targetLink = "{link}"'))

    def _operations(self, zone: str, wanted: str) -> Iterator[Any]:
        request = {"project": self._connections.project, "zone": zone, "filter": wanted}
        return iter(self._connections.operations.list(request=request, **self._connections.once))

    # ---- small ----

    def _delete(self, id: str) -> None:
        zone, _, name = id.partition("/")
        target = {"project": self._connections.project, "zone": zone, "instance": name}
        try:
            self._connections.instances.delete_unary(request=target, **self._connections.once)
        except Exception as error:
            if faults.code_of(error) not in faults.MISSING:
                raise

    def _regions(self) -> Sequence[str]:
        """The regions that are used: those of the configuration, or all of the project."""
        return self.settings.regions or market.regions(self._connections)

    def _crawl(self, region: str, now: float) -> Sold:  # noqa: ARG002 - prices here have no time of day
        return market.crawl_region(self._connections, self._book, region)


def _each(ids: Sequence[str], do: Callable[[str], T]) -> dict[str, T]:
    """Side by side. All are done, whatever happens to one; then the first error is raised."""
    if len(ids) < 2:
        return {id: do(id) for id in ids}
    with ThreadPoolExecutor(min(len(ids), CALLS_AT_ONCE), thread_name_prefix="gcp-calls") as pool:
        asked = {id: pool.submit(do, id) for id in ids}
    return {id: one.result() for id, one in asked.items()}


def _any_of(names: Sequence[str]) -> str:
    return " OR ".join(f'(name = "{name}")' for name in names)


def _errors(operation: Any) -> list[dict[str, str]]:
    return [{"code": one.code, "message": one.message} for one in operation.error.errors]
