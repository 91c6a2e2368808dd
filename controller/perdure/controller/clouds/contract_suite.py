"""The contract of `Cloud` as a pytest suite: every cloud passes it, those of other packages included.

    from perdure.controller.clouds.contract_suite import CloudBench, CloudContract

    class TestToyCloud(CloudContract):
        @pytest.fixture
        def bench(self, tmp_path):
            cloud = ...
            with CloudBench(cloud, set_capacity=cloud.capacity.__setitem__) as bench:
                yield bench

The suite needs pytest and nothing else. It launches, describes and terminates machines through the cloud that the
fixture `bench` supplies: use an emulator or a simulation, not an account that is billed. The cloud must have offers in
two regions at least. Each test gets a cloud without machines. Optional protocols are tested if the cloud implements
them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import pytest

from perdure.controller.clouds.base.protocol import (
    Bootstrap,
    Instance,
    InstanceState,
    Interruptible,
    LaunchRequest,
    Owner,
    Stoppable,
    StoppedMachineLost,
)
from perdure.controller.clouds.base.protocol import Cloud as CloudProtocol
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.01


def _sleep() -> None:
    threading.Event().wait(POLL_INTERVAL_S)


@dataclass
class CloudBench:
    """A cloud under test. As a context manager it terminates the machines of the test at the end."""

    cloud: CloudProtocol
    #: Limits how many machines a zone may have: (zone, count). None: the cloud cannot; tests of capacity are skipped.
    set_capacity: Callable[[str, int], None] | None = None
    #: sha256 of the agent that machines should run. The controller's endpoint does not exist, so none is fetched.
    agent: str = "0" * 64
    #: Lets a moment pass for the cloud; called repeatedly while a test waits.
    wait: Callable[[], None] = _sleep
    controllers: set[str] = field(default_factory=set)

    def __enter__(self) -> CloudBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for controller in self.controllers:
            if remaining := self.cloud.list_owned(controller):
                self.terminate(remaining)

    def offer(self, market: Market = Market.SPOT) -> Offer:
        """The cheapest offer."""
        return min((o for o in self.cloud.offers() if o.market is market), key=lambda o: o.price_per_hour)

    def request(
        self, token: str, *, nodes: int = 1, controller: str = "ctl-1", offer: Offer | None = None
    ) -> LaunchRequest:
        self.controllers.add(controller)
        return LaunchRequest(
            owner=Owner(controller, job_id=7, task=1, generation=3, token=token),
            offer=offer or self.offer(),
            num_nodes=nodes,
            bootstrap=Bootstrap("http://127.0.0.1:1", "attempt-token", {"agent": self.agent}),
            name="contract",
        )

    def launch(self, token: str, *, nodes: int = 1, controller: str = "ctl-1") -> Sequence[Instance]:
        return self.cloud.launch(self.request(token, nodes=nodes, controller=controller))

    def describe(self, instances: Sequence[Instance]) -> list[Instance]:
        """The present descriptions, by rank."""
        described = self.cloud.describe(instances[0].region, [instance.id for instance in instances])
        return sorted(described, key=lambda instance: instance.rank)

    def wait_until(self, state: InstanceState, instances: Sequence[Instance]) -> list[Instance]:
        """Wait until all of these machines of one region are in `state`; returns their descriptions, by rank."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            described = self.describe(instances)
            if all(instance.state is state for instance in described):
                return described
            assert time.monotonic() < deadline, f"not {state} after {TIMEOUT_S:g} s: {described}"
            self.wait()

    def wait_until_gone(self, instances: Sequence[Instance]) -> list[Instance]:
        return self.wait_until(InstanceState.GONE, instances)

    def terminate(self, instances: Sequence[Instance]) -> list[Instance]:
        """Terminate machines of one region and wait until they are gone."""
        self.cloud.terminate(instances[0].region, [instance.id for instance in instances])
        return self.wait_until_gone(instances)

    def limit_capacity(self, zone: str, count: int) -> None:
        if self.set_capacity is None:
            pytest.skip("this cloud cannot limit the capacity of a zone")
        self.set_capacity(zone, count)

    def rejection(self, request: LaunchRequest) -> Exception:
        """The exception of a launch that fails; its class is the cloud's own choice."""
        with pytest.raises(Exception) as caught:  # noqa: PT011
            self.cloud.launch(request)
        return caught.value

    def stoppable(self) -> Stoppable:
        if not isinstance(self.cloud, Stoppable):
            pytest.skip("this cloud cannot stop machines")
        return self.cloud

    def kept(self, token: str, *, job_id: int = 7, nodes: int = 1) -> LaunchRequest:
        """A request for on-demand machines that may be stopped."""
        request = self.request(token, nodes=nodes, offer=self.offer(Market.ON_DEMAND))
        return replace(request, keeps_disks=True, owner=replace(request.owner, job_id=job_id))

    def launch_stopped(self, token: str, *, nodes: int = 1) -> list[Instance]:
        """Machines that were launched and stopped, by rank."""
        stoppable = self.stoppable()
        launched = self.wait_until(InstanceState.RUNNING, self.cloud.launch(self.kept(token, nodes=nodes)))
        stoppable.stop(launched[0].region, [one.id for one in launched])
        return self.wait_until(InstanceState.STOPPED, launched)

    def interruptible(self) -> Interruptible:
        if not isinstance(self.cloud, Interruptible):
            pytest.skip("this cloud cannot simulate an interruption")
        return self.cloud


class CloudContract:
    """Subclass it in a test module, with a fixture `bench` that yields a `CloudBench`."""

    # ---- offers ----

    def test_unusable__is_none(self, bench: CloudBench) -> None:
        assert bench.cloud.unusable() is None

    def test_offers__have_positive_prices_and_cheaper_spot(self, bench: CloudBench) -> None:
        offers = bench.cloud.offers()
        assert offers
        on_demand = {(o.zone, o.instance_type): o.price_per_hour for o in offers if o.market is Market.ON_DEMAND}
        spot = {(o.zone, o.instance_type): o.price_per_hour for o in offers if o.market is Market.SPOT}
        assert on_demand.keys() <= spot.keys(), "types that are sold as spot only are allowed, others are not"
        assert all(0 < o.price_per_hour < o.on_demand_price_per_hour for o in offers if o.market is Market.SPOT)
        for offer in offers:
            price = on_demand.get((offer.zone, offer.instance_type), offer.on_demand_price_per_hour)
            assert offer.on_demand_price_per_hour == price
        assert {o.cloud for o in offers} == {bench.cloud.name}

    def test_offers__are_unique_and_differ_in_price_by_region(self, bench: CloudBench) -> None:
        offers = bench.cloud.offers()
        assert len({o.key for o in offers}) == len(offers)
        first = offers[0]
        same = [o for o in offers if (o.instance_type, o.market) == (first.instance_type, first.market)]
        prices = {o.region: o.price_per_hour for o in same}
        assert len(prices) == len(set(prices.values())) > 1

    # ---- launch ----

    def test_launch__returns_machines_that_are_described_and_listed(self, bench: CloudBench) -> None:
        launched = bench.launch("t1", nodes=2)
        assert [i.rank for i in sorted(launched, key=lambda i: i.rank)] == [0, 1]
        addresses = [i.ip for i in launched if i.ip is not None]  # some clouds assign them later, or not at all
        assert len({i.id for i in launched}) == 2
        assert len(set(addresses)) == len(addresses)
        described = bench.describe(launched)
        offer = bench.offer()
        for machine in described:
            assert machine.state is InstanceState.RUNNING
            assert (machine.cloud, machine.region, machine.zone) == (offer.cloud, offer.region, offer.zone)
            assert machine.instance_type == offer.instance_type
            assert machine.launched_at is not None
            assert machine.ended_at is None
            assert machine.gone_reason is None
        assert sorted(bench.cloud.list_owned("ctl-1"), key=lambda i: i.rank) == described

    def test_launch__stores_the_owner(self, bench: CloudBench) -> None:
        request = bench.request("t1")
        launched = bench.cloud.launch(request)
        assert bench.describe(launched)[0].owner == request.owner

    def test_launch__is_idempotent_by_token(self, bench: CloudBench) -> None:
        first = bench.launch("t1", nodes=2)
        second = bench.launch("t1", nodes=2)
        assert {i.id for i in first} == {i.id for i in second}
        assert len(bench.cloud.list_owned("ctl-1")) == 2

    def test_launch__returns_ended_machines_of_its_token(self, bench: CloudBench) -> None:
        first = bench.launch("t1")
        bench.terminate(first)
        second = bench.launch("t1")
        assert [(i.id, i.state) for i in second] == [(first[0].id, InstanceState.GONE)]
        assert not bench.cloud.list_owned("ctl-1")

    def test_launch__returns_machines_of_its_token_from_a_full_zone(self, bench: CloudBench) -> None:
        first = bench.launch("t1")
        bench.limit_capacity(bench.offer().zone, 0)
        assert [i.id for i in bench.launch("t1")] == [first[0].id]

    def test_launch__gives_each_token_its_own_machines(self, bench: CloudBench) -> None:
        assert bench.launch("t1")[0].id != bench.launch("t2")[0].id

    def test_launch__is_all_or_nothing(self, bench: CloudBench) -> None:
        bench.limit_capacity(bench.offer().zone, 2)
        error = bench.rejection(bench.request("t1", nodes=3))
        assert bench.cloud.classify(error).kind is FaultKind.AVOID_ZONE
        assert not bench.cloud.list_owned("ctl-1")
        assert len(bench.launch("t2", nodes=2)) == 2

    def test_launch__can_be_repeated_after_a_rejection(self, bench: CloudBench) -> None:
        zone = bench.offer().zone
        bench.limit_capacity(zone, 0)
        bench.rejection(bench.request("t1"))
        bench.limit_capacity(zone, 1)
        assert bench.launch("t1")[0].state in (InstanceState.PENDING, InstanceState.RUNNING)

    def test_launch__reuses_capacity_of_ended_machines(self, bench: CloudBench) -> None:
        bench.limit_capacity(bench.offer().zone, 1)
        bench.terminate(bench.launch("t1"))
        assert bench.launch("t2")

    def test_launch__rejects_an_unknown_instance_type(self, bench: CloudBench) -> None:
        request = bench.request("t1", offer=replace(bench.offer(), instance_type="no-such-type"))
        fault = bench.cloud.classify(bench.rejection(request))
        assert fault.kind in (FaultKind.GIVE_UP, FaultKind.AVOID_ZONE)
        assert not bench.cloud.list_owned("ctl-1")

    # ---- classify ----

    def test_classify__limits_missing_capacity_to_the_zone(self, bench: CloudBench) -> None:
        offer = bench.offer()
        bench.limit_capacity(offer.zone, 0)
        fault = bench.cloud.classify(bench.rejection(bench.request("t1")))
        assert (fault.kind, fault.reason) == (FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
        assert not fault.whole_region
        assert not fault.whole_cloud
        assert fault.code
        assert offer.zone in fault.message
        assert fault.retry_after_s is None or fault.retry_after_s > 0
        elsewhere = next(o for o in bench.cloud.offers() if o.zone != offer.zone)
        assert bench.cloud.launch(bench.request("t2", offer=elsewhere))

    @pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError(), RuntimeError("?")], ids=repr)
    def test_classify__treats_an_unknown_error_as_ambiguous(self, bench: CloudBench, error: Exception) -> None:
        assert bench.cloud.classify(error).kind is FaultKind.AMBIGUOUS

    # ---- describe and list_owned ----

    def test_describe__omits_unknown_machines(self, bench: CloudBench) -> None:
        region = bench.offer().region
        assert not bench.cloud.describe(region, ["no-such-machine"])
        assert not bench.cloud.describe(region, [])
        launched = bench.launch("t1")
        elsewhere = next(o.region for o in bench.cloud.offers() if o.region != region)
        assert not bench.cloud.describe(elsewhere, [launched[0].id])

    @pytest.mark.parametrize("id", ["", ".", "..", "../x", "/etc", "a/b", ".new-1"])
    def test_describe__treats_an_invalid_id_as_unknown(self, bench: CloudBench, id: str) -> None:
        region = bench.offer().region
        bench.launch("t1")
        assert not bench.cloud.describe(region, [id])
        bench.cloud.terminate(region, [id])

    def test_list_owned__lists_the_machines_of_one_controller(self, bench: CloudBench) -> None:
        own = bench.launch("t1", controller="ctl-1")
        foreign = bench.launch("t2", controller="ctl-2")
        assert [i.id for i in bench.cloud.list_owned("ctl-1")] == [own[0].id]
        assert [i.id for i in bench.cloud.list_owned("ctl-2")] == [foreign[0].id]
        assert not bench.cloud.list_owned("ctl-3")

    # ---- terminate ----

    def test_terminate__ends_machines_and_billing(self, bench: CloudBench) -> None:
        gone = bench.terminate(bench.launch("t1", nodes=2))
        assert len(gone) == 2
        for machine in gone:
            assert machine.state is InstanceState.GONE
            assert machine.launched_at is not None
            assert machine.ended_at is not None
            assert machine.launched_at <= machine.ended_at
            assert machine.gone_reason not in (None, Reason.PREEMPTED)
        assert not bench.cloud.list_owned("ctl-1")

    def test_terminate__is_idempotent_and_ignores_unknown_machines(self, bench: CloudBench) -> None:
        launched = bench.launch("t1")
        ids = [launched[0].id, "no-such-machine"]
        bench.cloud.terminate(launched[0].region, ids)
        bench.cloud.terminate(launched[0].region, ids)
        gone = bench.wait_until_gone(launched)
        bench.cloud.terminate(launched[0].region, ids)
        assert bench.describe(launched) == gone

    def test_terminate__affects_only_its_region(self, bench: CloudBench) -> None:
        launched = bench.launch("t1")
        elsewhere = next(o.region for o in bench.cloud.offers() if o.region != launched[0].region)
        bench.cloud.terminate(elsewhere, [launched[0].id])
        bench.wait()
        assert bench.describe(launched)[0].state is InstanceState.RUNNING

    def test_stop__keeps_machines_that_are_listed_and_end_with_terminate(self, bench: CloudBench) -> None:
        stopped = bench.launch_stopped("t1", nodes=2)
        assert {one.id for one in bench.cloud.list_owned("ctl-1")} == {one.id for one in stopped}
        assert all(one.gone_reason not in (None, Reason.PREEMPTED) for one in stopped)
        bench.terminate(stopped)
        assert not bench.cloud.list_owned("ctl-1")

    def test_stop__is_idempotent_and_ignores_unknown_and_ended_machines(self, bench: CloudBench) -> None:
        stopped, stoppable = bench.launch_stopped("t1"), bench.stoppable()
        region, ids = stopped[0].region, [stopped[0].id, "no-such-machine"]
        stoppable.stop(region, ids)
        assert bench.describe(stopped)[0].state is InstanceState.STOPPED
        bench.terminate(stopped)
        stoppable.stop(region, ids)
        assert bench.describe(stopped)[0].state is InstanceState.GONE

    def test_stop__leaves_room_for_others(self, bench: CloudBench) -> None:
        bench.limit_capacity(bench.offer(Market.ON_DEMAND).zone, 1)
        bench.launch_stopped("t1")
        assert bench.cloud.launch(bench.kept("t2"))

    def test_start__runs_the_same_machines_for_another_owner(self, bench: CloudBench) -> None:
        stopped, stoppable = bench.launch_stopped("t1", nodes=2), bench.stoppable()
        request = bench.kept("t2", job_id=8, nodes=2)
        for _ in range(2):  # a call whose answer was lost is repeated
            started = stoppable.start(request, [one.id for one in stopped])
            assert [one.id for one in sorted(started, key=lambda one: one.rank)] == [one.id for one in stopped]
        running = bench.wait_until(InstanceState.RUNNING, started)
        assert [(one.rank, one.owner, one.ended_at) for one in running] == [(r, request.owner, None) for r in (0, 1)]
        stoppable.stop(running[0].region, [one.id for one in running])
        bench.wait_until(InstanceState.STOPPED, running)

    def test_start__is_all_or_nothing(self, bench: CloudBench) -> None:
        stopped, stoppable = bench.launch_stopped("t1", nodes=2), bench.stoppable()
        request = bench.kept("t2", job_id=8, nodes=2)
        bench.limit_capacity(request.offer.zone, 1)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            stoppable.start(request, [one.id for one in stopped])
        assert bench.cloud.classify(caught.value).reason is Reason.NO_CAPACITY
        bench.wait_until(InstanceState.STOPPED, stopped)
        bench.limit_capacity(request.offer.zone, 2)
        bench.wait_until(InstanceState.RUNNING, stoppable.start(request, [one.id for one in stopped]))

    def test_start__of_a_machine_that_is_gone_names_it(self, bench: CloudBench) -> None:
        stopped, stoppable = bench.launch_stopped("t1", nodes=2), bench.stoppable()
        bench.terminate(stopped[1:])
        with pytest.raises(StoppedMachineLost):
            stoppable.start(bench.kept("t2", nodes=2), [one.id for one in stopped])
        with pytest.raises(StoppedMachineLost):
            stoppable.start(bench.kept("t3"), ["no-such-machine"])
        assert bench.describe(stopped[:1])[0].state is InstanceState.STOPPED

    # ---- interrupt ----

    def test_interrupt__without_notice_preempts_one_machine(self, bench: CloudBench) -> None:
        cloud = bench.interruptible()
        launched = bench.launch("t1", nodes=2)
        cloud.interrupt(launched[0].region, launched[0].id, notice_s=None)
        gone = bench.wait_until_gone(launched[:1])
        assert gone[0].gone_reason is Reason.PREEMPTED
        assert bench.describe(launched[1:])[0].state is InstanceState.RUNNING

    def test_interrupt__with_notice_preempts_at_the_deadline(self, bench: CloudBench) -> None:
        cloud = bench.interruptible()
        launched = bench.launch("t1")
        cloud.interrupt(launched[0].region, launched[0].id, notice_s=1.5)
        assert bench.describe(launched)[0].state in (InstanceState.RUNNING, InstanceState.ENDING)
        gone = bench.wait_until_gone(launched)
        assert gone[0].gone_reason is Reason.PREEMPTED
        assert gone[0].ended_at is not None
        assert launched[0].launched_at is not None
        assert gone[0].ended_at - launched[0].launched_at >= 1.5

    def test_interrupt__rejects_a_machine_that_does_not_run(self, bench: CloudBench) -> None:
        cloud = bench.interruptible()
        launched = bench.launch("t1")
        bench.terminate(launched)
        for id in (launched[0].id, "no-such-machine"):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                cloud.interrupt(launched[0].region, id, notice_s=None)
            assert bench.cloud.classify(caught.value).kind is FaultKind.GIVE_UP
