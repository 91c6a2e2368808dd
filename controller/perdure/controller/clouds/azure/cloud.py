"""Azure as a `Cloud`. Every call is made once, with a time-out; what it means when it fails, `faults` says.

A launch begins the creation of its machines and does not wait for it: they are PENDING. What Azure refuses at once is
raised; a machine that was accepted, and for which no room is found after all, is seen by `describe` (see `reading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import structlog

from perdure.controller.clock import Clock
from perdure.controller.clouds.azure import catalog, faults, identities, launching, market, reading, standing
from perdure.controller.clouds.azure.checking import Checking
from perdure.controller.clouds.azure.connections import Connections
from perdure.controller.clouds.azure.ended import Ended
from perdure.controller.clouds.azure.notices import StorageQueue
from perdure.controller.clouds.azure.places import Places
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base import Disk, Fault, Instance, InstanceState, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.checks import Finding
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.offercache import OfferCache
from perdure.controller.clouds.pricelist import PriceList, Source
from perdure.controller.clouds.queues import NoticeQueue
from perdure.controller.clouds.sold import Sold
from perdure.recovery.market import FaultKind, Market, Offer
from perdure.recovery.reasons import Reason

log = structlog.get_logger(__name__)

CALLS_AT_ONCE = 16
# A place that was found may be gone: it is looked for again before the next launch there.
_PLACE_IS_MISSING = {"InvalidResourceReference", "ResourceGroupNotFound"}
# The second: with other words, such as an agent that has changed since.
_IT_EXISTS = {"PreconditionFailed", "PropertyChangeNotAllowed"}

T = TypeVar("T")
Told = TypeVar("Told")


class AzureCloud:
    """A `Cloud` that is `Interruptible`, `Telling` and `Hosting`. `cache`: where what it sells is kept."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, cache: OfferCache, settings: AzureSettings, clock: Clock, *, name: str = "azure") -> None:
        self.name = name
        self.settings = settings
        self._connections = Connections(settings, clock)
        self._places = Places(settings, self._connections)
        self._ended = Ended(clock)
        source = Source(
            name,
            catalog.TYPES,
            self.regions,
            self._crawl,
            catalog.on_demand_price,
            faults.classify,
            table=catalog.sold,
            table_regions=tuple(catalog.REGIONS),
            table_of=catalog.TYPED,
            only=settings.regions,
        )
        self.prices = PriceList(source, cache, clock)

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        prices = "prices are Azure's retail prices, without what you have agreed upon with it"
        images = [] if self.settings.images else ["machines run the newest public Ubuntu image"]
        return [prices, *images, *self.prices.notes()]

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def offers(self) -> Sequence[Offer]:
        return self.prices.offers()

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        region = request.offer.region
        names = [launching.name_of(request.owner.token, rank) for rank in range(request.num_nodes)]
        # A name that was bought before is not bought again, though Azure may have forgotten it since.
        before = self.describe(region, self._ended.known(names))
        subnet = self._places.subnet(region)
        bodies = {
            name: launching.virtual_machine(request, rank, self.settings, subnet=subnet, name=name)
            for rank, name in enumerate(names)
            if name not in {instance.id for instance in before}
        }
        begun = _all_at_once(lambda item: self._create(region, *item), bodies.items())
        bought = [one for one in begun if isinstance(one, Instance)]
        failed = [one for one in begun if isinstance(one, Exception)]
        if failed:
            raise self._give_up(region, names, failed)
        self._ended.bought(bought, is_spot=request.offer.market is Market.SPOT)
        return sorted((*before, *bought), key=lambda instance: instance.rank)

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        names = [id for id in ids if launching.is_name(id)]
        found = [_result(one) for one in _all_at_once(lambda name: self._get(region, name), names)]
        seen = {instance.id: instance for instance in found if instance is not None}
        return [*seen.values(), *self._ended.not_found(region, [name for name in names if name not in seen])]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        listed = _all_at_once(self._list, self.regions())
        return [one for some in listed for one in _result(some) if one.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        names = [id for id in ids if launching.is_name(id)]
        self._ended.asked(region, names)
        for one in _all_at_once(lambda name: self._delete(region, name), names):
            _result(one)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- what only some clouds can do ----

    def notice_queues(self) -> Sequence[NoticeQueue]:
        return [StorageQueue(self.name, url, self._connections.storage) for url in self.settings.notice_queues]

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:  # noqa: ARG002
        """Azure alone says how long the notice is (30 seconds at least), and when it comes."""
        machines = self._connections.client().virtual_machines
        machines.simulate_eviction(self._places.group(region), instance_id)

    def found_here(self) -> Mapping[str, str]:
        return {"subscription": self._connections.subscription}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        kept = self._kept(name, region)
        if (found := kept.find_disk()) is not None:
            return found
        self._places.forget(region)  # with its group the disk is not found, either
        self._places.subnet(region)
        return kept.make_disk(zone, gib)

    def stand(self, request: LaunchRequest, needs: Standing) -> Instance:
        region, name = request.offer.region, launching.name_of(request.owner.token, 0)
        if before := self.describe(region, self._ended.known([name])):
            return before[0]
        try:
            made = self._stand(request, needs, name)
        except NotYet:
            raise
        except Exception as error:
            told = self._in_our_words(region, error)
            raise NotYet(str(told)) if faults.is_passing(told) else told from error
        self._ended.bought([made], is_spot=False)
        return made

    def settle(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002 - it has the disk from its birth on
        if instance.state is not InstanceState.RUNNING:
            return None
        return self._kept(instance.owner.controller, instance.region).address()

    def leave(self, name: str, region: str) -> None:
        self._kept(name, region).leave()

    def remove_disk(self, name: str, region: str) -> None:
        self._kept(name, region).remove_disk()

    def check(self) -> Sequence[Finding]:
        return Checking(self.settings, self._connections, self.regions).findings()

    # ---- private ----

    def regions(self) -> Sequence[str]:
        """The regions that are used: those of the configuration, or all that the catalog knows."""
        return self.settings.regions or tuple(catalog.REGIONS)

    def _stand(self, request: LaunchRequest, needs: Standing, name: str) -> Instance:
        region = request.offer.region
        kept, subnet = self._kept(request.owner.controller, region), self._places.subnet(region)
        identity = identities.identity(self._connections, self._places.path(region), region, needs.role)
        kept.require_interface(needs, subnet, is_public=self.settings.wants_public_ip(region))
        kept.require_disk(name)
        of_node = launching.virtual_machine(request, 0, self.settings, subnet=subnet, name=name)
        return self._create(region, name, standing.virtual_machine(of_node, needs, kept, identity=identity))

    def _kept(self, name: str, region: str) -> standing.Kept:
        return standing.Kept(self._connections, self._places.path(region), region, name)

    def _crawl(self, region: str, now: float) -> Sold:  # noqa: ARG002 - prices here have no time of day
        return market.crawl_region(self._connections, region)

    def _create(self, region: str, name: str, body: dict[str, object]) -> Instance:
        """Begin it, unless a machine of this name is there: then that is the one which was bought before."""
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError
        from azure.mgmt.compute.models import VirtualMachine

        machines, group = self._connections.client().virtual_machines, self._places.group(region)
        try:
            told = machines.begin_create_or_update(
                group, name, VirtualMachine(body), match_condition=MatchConditions.IfMissing, polling=False
            ).result()
        except HttpResponseError as error:
            if faults.code_of(error) not in _IT_EXISTS:
                raise
            told = machines.get(group, name, expand="instanceView")
        instance = reading.read(told, self.name)
        assert instance is not None, f"{name} came back without the tags that it was made with"
        return instance

    def _give_up(self, region: str, names: Sequence[str], failed: Sequence[Exception]) -> Exception:
        """What to raise. Refused for good: what was begun is given back. In doubt: it is asked for again as it is."""
        if any(faults.code_of(error) in _PLACE_IS_MISSING for error in failed):
            self._places.forget(region)
        failed = [self._in_our_words(region, error) for error in failed]
        refused = [error for error in failed if faults.classify(error).kind is not FaultKind.FIND_OUT]
        if not refused:
            return failed[0]
        if len(names) > 1:
            with suppress(Exception):  # the sweep ends what is left
                self.terminate(region, names)
            self._ended.forget(names)
        return refused[0]

    def _in_our_words(self, region: str, error: Exception) -> Exception:
        """A network of ours that is missing is made again; one of the user's is for the user to correct."""
        own = self.settings.subnets.get(region)
        if own is None or faults.code_of(error) != "InvalidResourceReference":
            return error
        return Refused("SubnetNotFound", f"azure.subnets.{region} is {own}: {error}")

    def _get(self, region: str, name: str) -> Instance | None:
        """None if it is not there."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        try:
            told = machines.get(self._places.group(region), name, expand="instanceView")
        except ResourceNotFoundError:
            return None
        instance = reading.read(told, self.name)
        if instance is not None:
            self._ended.shown(instance, is_spot=reading.is_spot(told))
            if instance.gone_reason is Reason.NO_CAPACITY:
                log.warning("azure.creation_failed", machine=name, zone=instance.zone, error=reading.trouble(told))
        return instance

    def _list(self, region: str) -> list[Instance]:
        """All that are ours there, page by page; none where there is not even a group."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        try:
            told = list(machines.list(self._places.group(region)))
        except ResourceNotFoundError:
            return []
        read = [(reading.read(one, self.name), reading.is_spot(one)) for one in told]
        for instance, is_spot in read:
            if instance is not None:
                self._ended.shown(instance, is_spot=is_spot)
        return [instance for instance, _ in read if instance is not None]

    def _delete(self, region: str, name: str) -> None:
        """By force: what the machine had to say, its agent has said. One that is not there is a success."""
        from azure.core.exceptions import ResourceNotFoundError

        machines = self._connections.client().virtual_machines
        with suppress(ResourceNotFoundError):
            machines.begin_delete(self._places.group(region), name, force_deletion=True, polling=False)


def _all_at_once(call: Callable[[T], Told], over: Iterable[T]) -> list[Told | Exception]:
    """What each call gives or raises, in order."""

    def caught(one: T) -> Told | Exception:
        try:
            return call(one)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return error

    each = list(over)
    if len(each) <= 1:
        return [caught(one) for one in each]
    with ThreadPoolExecutor(min(len(each), CALLS_AT_ONCE), thread_name_prefix="azure") as pool:
        return list(pool.map(caught, each))


def _result(told: Told | Exception) -> Told:
    if isinstance(told, Exception):
        raise told
    return told
