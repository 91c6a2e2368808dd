"""The injected faults of the fake cloud, which the contract of all clouds does not cover."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.base.protocol import Bootstrap, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud, FakeError
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at=1000.0)


@pytest.fixture
def cloud(clock: ManualClock) -> FakeCloud:
    return FakeCloud(clock)


def request(cloud: FakeCloud, token: str = "t", nodes: int = 1) -> LaunchRequest:
    return LaunchRequest(Owner("c", 1, 0, 1, token), cloud.offers()[0], nodes, Bootstrap("http://x", "s", {}), "n")


def states(cloud: FakeCloud) -> list[InstanceState]:
    return [i.state for i in cloud.list_owned("c")]


@pytest.mark.parametrize("num_started", [0, 1, 3])
def test_launch__can_be_repeated_after_a_broken_connection(cloud: FakeCloud, num_started: int) -> None:
    cloud.faults.broken_launches = [num_started]
    with pytest.raises(ConnectionError) as caught:
        cloud.launch(request(cloud, nodes=3))
    assert cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS
    assert len(cloud.list_owned("c")) == num_started
    assert [i.rank for i in cloud.launch(request(cloud, nodes=3))] == [0, 1, 2]
    assert len(cloud.list_owned("c")) == 3


def test_describe__can_be_delayed(cloud: FakeCloud, clock: ManualClock) -> None:
    cloud.faults.listing_delay_s = 30
    (launched,) = cloud.launch(request(cloud))
    assert not cloud.list_owned("c")
    assert not cloud.describe(launched.region, [launched.id])
    clock.advance(30)
    assert states(cloud) == [InstanceState.RUNNING]


def test_describe__can_be_pending_and_ending(cloud: FakeCloud, clock: ManualClock) -> None:
    cloud.faults.boot_s, cloud.faults.ending_s = 40, 20
    (launched,) = cloud.launch(request(cloud))
    assert launched.state is InstanceState.PENDING
    clock.advance(40)
    assert states(cloud) == [InstanceState.RUNNING]
    cloud.terminate(launched.region, [launched.id])
    assert states(cloud) == [InstanceState.ENDING]
    clock.advance(20)
    (gone,) = cloud.describe(launched.region, [launched.id])
    assert (gone.state, gone.ended_at) == (InstanceState.GONE, 1060.0)


def test_terminate__does_not_delay_an_earlier_termination(cloud: FakeCloud, clock: ManualClock) -> None:
    cloud.faults.ending_s = 20
    (launched,) = cloud.launch(request(cloud))
    for _ in range(2):
        cloud.terminate(launched.region, [launched.id])
        clock.advance(10)
    assert cloud.describe(launched.region, [launched.id])[0].ended_at == 1020.0


def test_calls__can_be_throttled(cloud: FakeCloud) -> None:
    cloud.faults.throttle = 2
    for _ in range(2):
        with pytest.raises(FakeError) as caught:
            cloud.list_owned("c")
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert not cloud.list_owned("c")
    assert cloud.calls["list_owned"] == 3


def test_notice__lasts_until_its_deadline(cloud: FakeCloud, clock: ManualClock) -> None:
    (launched,) = cloud.launch(request(cloud))
    assert cloud.notice(launched.id) is None
    cloud.preempt(launched.id, notice_s=120)
    assert cloud.notice(launched.id) == 1120.0
    clock.advance(119)
    assert states(cloud) == [InstanceState.RUNNING]
    clock.advance(1)
    (gone,) = cloud.describe(launched.region, [launched.id])
    assert (gone.state, gone.gone_reason, gone.ended_at) == (InstanceState.GONE, Reason.PREEMPTED, 1120.0)
    assert cloud.notice(launched.id) is None


def test_terminate__before_the_deadline_is_no_preemption(cloud: FakeCloud, clock: ManualClock) -> None:
    (launched,) = cloud.launch(request(cloud))
    cloud.preempt(launched.id, notice_s=120)
    cloud.terminate(launched.region, [launched.id])
    clock.advance(200)
    (gone,) = cloud.describe(launched.region, [launched.id])
    assert (gone.gone_reason, gone.ended_at) == (Reason.MACHINE_STOPPED, 1000.0)


def test_machines__can_crash_and_be_forgotten(cloud: FakeCloud, clock: ManualClock) -> None:
    crashed, forgotten = cloud.launch(request(cloud, nodes=2))
    cloud.crash(crashed.id)
    cloud.forget(forgotten.id)
    (seen,) = cloud.describe(crashed.region, [crashed.id, forgotten.id])
    assert (seen.id, seen.gone_reason) == (crashed.id, Reason.MACHINE_CRASHED)
    clock.advance(cloud.faults.forgotten_after_s)
    assert not cloud.describe(crashed.region, [crashed.id])
    assert [i.id for i in cloud.launch(request(cloud, nodes=2))] == [crashed.id, forgotten.id]


def test_bill__is_per_second(cloud: FakeCloud, clock: ManualClock) -> None:
    first, second = cloud.launch(request(cloud, nodes=2))
    clock.advance(1800)
    cloud.terminate(first.region, [first.id])
    clock.advance(1800)
    bill = {charge.instance_id: charge for charge in cloud.bill()}
    assert (bill[first.id].seconds, bill[second.id].seconds) == (1800.0, 3600.0)
    assert bill[second.id].usd == pytest.approx(cloud.offers()[0].price_per_hour)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NoCapacity", FaultKind.AVOID_ZONE),
        ("QuotaExceeded", FaultKind.AVOID_REGION),
        ("BadCredentials", FaultKind.AVOID_CLOUD),
        ("BadRequest", FaultKind.GIVE_UP),
    ],
)
def test_launch__can_fail_with_any_code(cloud: FakeCloud, code: str, kind: FaultKind) -> None:
    cloud.faults.launch_errors[cloud.offers()[0].zone] = code
    with pytest.raises(FakeError) as caught:
        cloud.launch(request(cloud))
    fault = cloud.classify(caught.value)
    assert fault.kind is kind
    assert fault.whole_region == (kind is FaultKind.AVOID_REGION)
    assert fault.whole_cloud == (kind is FaultKind.AVOID_CLOUD)
