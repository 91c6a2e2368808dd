"""Clouds that fail as real ones do, based on the in-memory cloud, and the client with which a process calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from faultworld.virtual_time import Scheduler
from perdure.controller.clouds.base.protocol import Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud, Faults, default_offers
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.process import Process


_Result = TypeVar("_Result")


class FaultyCloud(FakeCloud):
    """A cloud with outages and lost responses.

    It calls `on_launched(id)` for each new machine, and `on_ended(id, at)` when the end of a machine is scheduled.
    """

    def __init__(self, clock: Scheduler, name: str, faults: Faults, number: int) -> None:
        offers = [_with_price_of_cloud(offer, number) for offer in default_offers(name)]
        super().__init__(clock, offers=offers, faults=faults, name=name)
        self.outage_until = 0.0
        self.outage_takes_effect = False
        self.lost_answers = 0
        self.stale_until = 0.0
        self._stale_listing: list[Instance] = []
        self.on_launched: Callable[[str], object] = lambda _id: None
        self.on_ended: Callable[[str, float], object] = lambda _id, _at: None

    # --- the calls ----------------------------------------------------------------------------------------

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        if not self._reaches_cloud():
            raise ConnectionError("no route to the cloud")
        launched = super().launch(request)
        self._maybe_lose_response()
        return launched

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        if not self._reaches_cloud() or self._has_outage():
            raise ConnectionError("no route to the cloud")
        return super().describe(region, ids)

    def list_owned(self, controller: str) -> Sequence[Instance]:
        if not self._reaches_cloud() or self._has_outage():
            raise ConnectionError("no route to the cloud")
        if self._clock.now() < self.stale_until:
            return self._stale_listing
        return super().list_owned(controller)

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        if not self._reaches_cloud():
            raise ConnectionError("no route to the cloud")
        # A machine that is not listed yet is "not found", and callers treat that as success.
        visible = [id for id in ids if id in self._machines and self._is_visible(self._machines[id])]
        super().terminate(region, visible)
        self._publish_ends(visible)
        self._maybe_lose_response()

    def stop(self, region: str, ids: Sequence[str]) -> None:
        if not self._reaches_cloud():
            raise ConnectionError("no route to the cloud")
        visible = [id for id in ids if id in self._machines and self._is_visible(self._machines[id])]
        super().stop(region, visible)
        self._publish_ends(visible)
        self._maybe_lose_response()

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        if not self._reaches_cloud():
            raise ConnectionError("no route to the cloud")
        started = super().start(request, ids)
        self._maybe_lose_response()
        return started

    # --- called by the world ----------------------------------------------------------------------------------

    def serve_stale_listings(self, seconds: float) -> None:
        """For a while, return the listing of now for every listing."""
        described = [self._describe(machine) for machine in self._machines.values()]
        self._stale_listing = [instance for instance in described if instance.state is not InstanceState.GONE]
        self.stale_until = self._clock.now() + seconds

    def end_machine(self, machine_id: str, how: str, notice_s: float | None = None) -> None:
        """End the machine: by "preempt", "crash" or "forget"."""
        if how == "preempt":
            self._machines[machine_id].end(self._clock.now() + (notice_s or 0.0), Reason.PREEMPTED)
        elif how == "crash":
            self.crash(machine_id)
        else:
            self.forget(machine_id)
        self._publish_ends([machine_id])

    def power_off(self, machine_id: str) -> None:
        """A machine powers itself off."""
        if self._machines[machine_id].request.keeps_disks:
            super().power_off(machine_id)
        else:
            self.crash(machine_id)
        self._publish_ends([machine_id])

    def change_prices(self, factor: float) -> None:
        self._offers = tuple(replace(o, price_per_hour=round(o.price_per_hour * factor, 6)) for o in self._offers)

    def owner_of(self, machine_id: str) -> tuple[Owner, int]:
        """The owner of a machine, and its rank."""
        machine = self._machines[machine_id]
        return machine.request.owner, machine.rank

    def stopped(self) -> list[tuple[str, Owner]]:
        """The machines that are stopped, whose disks are kept, and to whom they belong."""
        machines = (m for m in self._machines.values() if not self._is_gone(m) and self._is_stopped(m))
        return [(m.id, m.request.owner) for m in machines]

    def living(self) -> list[str]:
        return [m.id for m in self._machines.values() if not self._is_gone(m)]

    # --- private --------------------------------------------------------------------------------------------

    def _start(self, id: str, rank: int, request: LaunchRequest) -> None:
        super()._start(id, rank, request)
        self.on_launched(id)

    def _restart(self, machine: Any, request: LaunchRequest) -> None:
        super()._restart(machine, request)
        self.on_launched(machine.id)

    def _publish_ends(self, ids: Sequence[str]) -> None:
        for id in ids:
            if (machine := self._machines.get(id)) is not None:
                at = min(machine.ends_at, machine.stopped_at)
                if at < float("inf"):
                    self.on_ended(id, at)

    def _has_outage(self) -> bool:
        return self._clock.now() < self.outage_until

    def _reaches_cloud(self) -> bool:
        """Whether a call reaches the cloud."""
        return not self._has_outage() or self.outage_takes_effect

    def _maybe_lose_response(self) -> None:
        if self._has_outage():
            raise ConnectionError("the connection broke before the response arrived")
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise ConnectionError("the connection broke before the response arrived")


def _with_price_of_cloud(offer: Offer, number: int) -> Offer:
    """The clouds differ in price by 1 %."""
    return replace(offer, price_per_hour=round(offer.price_per_hour * (1 + 0.01 * number), 6))


class CloudClient:
    """One process's client of a cloud, with a failpoint before each call and one before its response is used.

    A response takes up to `max_latency_s` seconds.
    """

    def __init__(self, cloud: FaultyCloud, process: Process, max_latency_s: float) -> None:
        self._cloud, self._process, self._max_latency_s = cloud, process, max_latency_s
        self.name, self.ignores = cloud.name, cloud.ignores
        self.notes, self.unusable = cloud.notes, cloud.unusable
        self.offers, self.classify = cloud.offers, cloud.classify
        self.disk_price_per_hour = cloud.disk_price_per_hour

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        return self._call(self._cloud.launch, request)

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return self._call(self._cloud.describe, region, ids)

    def list_owned(self, controller: str) -> Sequence[Instance]:
        return self._call(self._cloud.list_owned, controller)

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        self._call(self._cloud.terminate, region, ids)

    def stop(self, region: str, ids: Sequence[str]) -> None:
        self._call(self._cloud.stop, region, ids)

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        return self._call(self._cloud.start, request, ids)

    def _call(self, method: Callable[..., _Result], *args: Any) -> _Result:
        self._process.failpoint(f"before {method.__name__}")
        result = method(*args)
        self._process.threads.sleep(self._process.rng.uniform(0, self._max_latency_s))
        self._process.failpoint(f"after {method.__name__}")
        return result
