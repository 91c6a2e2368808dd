"""Clouds that fail as real ones do, over the product's own in-memory cloud, and each process's way to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from faultworld.timing import Scheduler
from perdure.controller.clouds.base import Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud, Faults, default_offers
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from faultworld.process import Process


class StormCloud(FakeCloud):
    """`born` is told of each machine at its launch, `ends` when its end is decided: (machine id, epoch seconds)."""

    def __init__(self, clock: Scheduler, name: str, faults: Faults, number: int) -> None:
        offers = [_dearer(o, number) for o in default_offers(name)]
        super().__init__(clock, offers=offers, faults=faults, name=name)
        self.outage_until = 0.0
        self.outage_takes_effect = False
        self.lost_answers = 0
        self.stale_until = 0.0
        self._stale: list[Instance] = []
        self.born: Callable[[str], object] = lambda _id: None
        self.ends: Callable[[str, float], object] = lambda _id, _at: None

    # --- the calls ----------------------------------------------------------------------------------------

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        effect = self._enter_storm()
        if not effect:
            raise ConnectionError("no route to the cloud")
        found = super().launch(request)
        self._lose_answer()
        return found

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        if not self._enter_storm() or self._is_out():
            raise ConnectionError("no route to the cloud")
        return super().describe(region, ids)

    def list_owned(self, controller: str) -> Sequence[Instance]:
        if not self._enter_storm() or self._is_out():
            raise ConnectionError("no route to the cloud")
        if self._clock.now() < self.stale_until:
            return self._stale
        return super().list_owned(controller)

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        if not self._enter_storm():
            raise ConnectionError("no route to the cloud")
        # A machine that the cloud does not show yet is "not found", which callers take for a success.
        visible = [id for id in ids if id in self._machines and self._is_known(self._machines[id])]
        super().terminate(region, visible)
        self._tell_ends(visible)
        self._lose_answer()

    # --- what happens to them ------------------------------------------------------------------------------

    def go_stale(self, seconds: float) -> None:
        """For a while, listings show what was there at the beginning of it."""
        self._stale = [i for m in self._machines.values() if (i := self._describe(m)).state is not InstanceState.GONE]
        self.stale_until = self._clock.now() + seconds

    def take(self, machine_id: str, how: str, notice_s: float | None = None) -> None:
        """The machine goes: "preempt", "crash" or "forget"."""
        if how == "preempt":
            self._machines[machine_id].end(self._clock.now() + (notice_s or 0.0), Reason.PREEMPTED)
        elif how == "crash":
            self.crash(machine_id)
        else:
            self.forget(machine_id)
        self._tell_ends([machine_id])

    def power_off(self, machine_id: str) -> None:
        """The machine switched itself off."""
        self.crash(machine_id)
        self._tell_ends([machine_id])

    def change_prices(self, factor: float) -> None:
        self._offers = tuple(replace(o, price_per_hour=round(o.price_per_hour * factor, 6)) for o in self._offers)

    def owner_of(self, machine_id: str) -> tuple[Owner, int]:
        """Whose it is, and its rank."""
        machine = self._machines[machine_id]
        return machine.request.owner, machine.rank

    def living(self) -> list[str]:
        return [m.id for m in self._machines.values() if not self._is_gone(m)]

    # --- private --------------------------------------------------------------------------------------------

    def _start(self, id: str, rank: int, request: LaunchRequest) -> None:
        super()._start(id, rank, request)
        self.born(id)

    def _tell_ends(self, ids: Sequence[str]) -> None:
        for id in ids:
            if id in self._machines:
                self.ends(id, self._machines[id].ends_at)

    def _is_out(self) -> bool:
        return self._clock.now() < self.outage_until

    def _enter_storm(self) -> bool:
        """Whether the call reaches the cloud at all."""
        return not self._is_out() or self.outage_takes_effect

    def _lose_answer(self) -> None:
        if self._is_out():
            raise ConnectionError("the connection broke before the answer came")
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise ConnectionError("the connection broke before the answer came")


def _dearer(offer: Any, number: int) -> Any:
    return replace(offer, price_per_hour=round(offer.price_per_hour * (1 + 0.01 * number), 6))


class MortalCloud:
    """A cloud as one process reaches it: the process may die or freeze before a call, and before its answer.

    The answer is waited for, at most `within_s`, while everything else goes on.
    """

    def __init__(self, cloud: StormCloud, process: Process, within_s: float) -> None:
        self._cloud, self._process, self._within_s = cloud, process, within_s
        self.name, self.ignores = cloud.name, cloud.ignores
        self.notes, self.unusable, self.offers, self.classify = (
            cloud.notes,
            cloud.unusable,
            cloud.offers,
            cloud.classify,
        )

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        return self._call(self._cloud.launch, request)

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return self._call(self._cloud.describe, region, ids)

    def list_owned(self, controller: str) -> Sequence[Instance]:
        return self._call(self._cloud.list_owned, controller)

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        self._call(self._cloud.terminate, region, ids)

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        self._process.point(f"before {method.__name__}")
        found = method(*args)
        self._process.threads.sleep(self._process.rng.uniform(0, self._within_s))
        self._process.point(f"after {method.__name__}")
        return found
